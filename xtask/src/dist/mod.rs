//! `cargo xtask dist`: the files of a release.
//!
//! Input: the program `bellerophon`, which is built if it is not named. Output, in a directory: an
//! archive of the program, its manual pages and completions; an SBOM; manifests, a kustomize base and
//! an OLM bundle; a krew index; metadata of Artifact Hub; `SHA256SUMS`.
//!
//! Guarantees: nothing is published; the same program gives the same files, byte for byte. Archives
//! of other targets in the directory stay, and are in the krew manifest and in `SHA256SUMS`.

mod archive; // tar and gzip
mod krew; // the manifest of the kubectl plugin
mod sbom; // the software bill of materials

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest as _, Sha256};

use self::archive::{Entry, Mode};

/// The version of all crates of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The shells whose completions are in archives.
const SHELLS: [&str; 3] = ["bash", "fish", "zsh"];

/// Where archives are published, if the command line does not name it. The domain is reserved for
/// documentation.
const EXAMPLE_URL: &str = "https://bellerophon.example/releases";

/// Metadata of a repository for Artifact Hub. All of its members are optional; they belong to the
/// account that publishes.
const ARTIFACT_HUB: &str = "\
# Metadata of this repository for Artifact Hub. Set repositoryID to the identifier that Artifact Hub
# shows, and owners to those who may claim it.
owners: []
";

/// The command line of the task.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    out: PathBuf,
    binary: Option<PathBuf>,
    target: Option<String>,
    url: String,
}

impl Options {
    /// Parses `[--out DIR] [--binary FILE] [--target TRIPLE] [--url URL]`.
    ///
    /// # Errors
    /// An unknown argument, or one without its value.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            out: PathBuf::from("target/packages"),
            binary: None,
            target: None,
            url: EXAMPLE_URL.to_owned(),
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let mut value = || {
                let value = arguments.next().cloned();
                value.ok_or_else(|| format!("{name} needs a value"))
            };
            match name.as_str() {
                "--out" => options.out = value()?.into(),
                "--binary" => options.binary = Some(value()?.into()),
                "--target" => options.target = Some(value()?),
                "--url" => options.url = value()?.trim_end_matches('/').to_owned(),
                _ => return Err(format!("dist does not know {name:?}")),
            }
        }
        Ok(options)
    }
}

/// Writes the files of a release.
///
/// # Errors
/// The program is not built, does not run on this machine, or a file cannot be written.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let target = match &options.target {
        Some(target) => target.clone(),
        None => host_target()?,
    };
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => build(root, options.target.as_deref())?,
    };
    let out = root.join(&options.out);
    create(&out)?;

    let release = format!("bellerophon-{VERSION}");
    let name = format!("{release}-{target}");
    let entries = program_files(root, &binary, &name)?;
    write(
        &out.join(format!("{name}.tar.gz")),
        &archive::tar_gz(&entries)?,
    )?;

    let sbom = sbom::generate(root, &target)?;
    write(&out.join(format!("{release}.cdx.json")), sbom.as_bytes())?;

    let manifests = output(Command::new(&binary).args(["manifests", "all,reboot-agent"]))?;
    write(&out.join(format!("{release}-install.yaml")), &manifests)?;
    let kustomize = out.join("kustomize");
    let bundle = out.join("olm/bellerophon").join(VERSION);
    for (operators, format, directory) in [
        ("all,reboot-agent", "kustomize", &kustomize),
        // OLM installs no DaemonSets.
        ("all", "olm", &bundle),
    ] {
        // Files of an earlier version would be part of the base.
        remove(directory)?;
        let mut command = Command::new(&binary);
        command.args(["manifests", operators, "--format", format, "--out"]);
        output(command.arg(directory))?;
    }

    let plugins = out.join("krew/plugins");
    create(&plugins)?;
    let manifest = krew::manifest(&options.url, &archives(&out)?)?;
    write(&plugins.join("bellerophon.yaml"), manifest.as_bytes())?;
    for repository in ["krew", "olm"] {
        let path = out.join(repository).join("artifacthub-repo.yml");
        write(&path, ARTIFACT_HUB.as_bytes())?;
    }
    write(&out.join("SHA256SUMS"), checksums(&out)?.as_bytes())?;
    if options.url == EXAMPLE_URL {
        eprintln!("xtask: the krew manifest has the URL {EXAMPLE_URL}; set --url to publish it");
    }
    eprintln!("xtask: {}", out.display());
    Ok(())
}

/// Builds the program with the profile `dist`.
fn build(root: &Path, target: Option<&str>) -> Result<PathBuf, String> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--locked", "--profile", "dist"])
        .args(["--package", "bellerophon-cli"])
        .current_dir(root);
    if let Some(target) = target {
        command.args(["--target", target]);
    }
    let status = command
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !status.success() {
        return Err("bellerophon was not built, see above".to_owned());
    }
    let directory = crate::target_directory(root);
    let directory = target.map_or(directory.clone(), |target| directory.join(target));
    let suffix = env::consts::EXE_SUFFIX;
    Ok(directory.join("dist").join(format!("bellerophon{suffix}")))
}

/// The target of the compiler.
fn host_target() -> Result<String, String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let version = String::from_utf8_lossy(&version).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| format!("rustc -vV names no host: {version}"))
}

/// The files of the archive: the program, its license, manual pages and completions.
fn program_files(root: &Path, binary: &Path, top: &str) -> Result<Vec<Entry>, String> {
    let suffix = if top.contains("-windows-") {
        ".exe"
    } else {
        ""
    };
    let file = |path: &str, content: Vec<u8>| Entry {
        path: format!("{top}/{path}"),
        content,
        mode: Mode::File,
    };
    let mut entries = vec![
        Entry {
            mode: Mode::Program,
            ..file(&format!("bellerophon{suffix}"), read(binary)?)
        },
        file("LICENSE", read(&root.join("LICENSE"))?),
        file("README.md", read(&root.join("README.md"))?),
    ];
    for shell in SHELLS {
        let script = output(Command::new(binary).args(["completions", shell]))?;
        entries.push(file(&format!("completions/bellerophon.{shell}"), script));
    }
    let pages = env::temp_dir().join(format!("bellerophon-man-{}", std::process::id()));
    output(Command::new(binary).arg("man").arg(&pages))?;
    let mut names = names_in(&pages)?;
    // The order of directory entries depends on the file system.
    names.sort();
    for name in names {
        let content = read(&pages.join(&name))?;
        entries.push(file(&format!("man/man1/{name}"), content));
    }
    remove(&pages)?;
    Ok(entries)
}

/// The archives of the program in a directory, by file name.
fn archives(out: &Path) -> Result<Vec<(String, String)>, String> {
    let mut names = names_in(out)?;
    names.retain(|name| name.starts_with("bellerophon-") && name.ends_with(".tar.gz"));
    names.sort();
    let with_checksum = |name: String| Ok((name.clone(), sha256(&read(&out.join(name))?)));
    names.into_iter().map(with_checksum).collect()
}

/// A line per file, as `sha256sum --check` reads it.
fn checksums(out: &Path) -> Result<String, String> {
    let mut names = names_in(out)?;
    names.retain(|name| name != "SHA256SUMS" && out.join(name).is_file());
    names.sort();
    let mut text = String::new();
    for name in names {
        let sum = sha256(&read(&out.join(&name))?);
        text.push_str(&format!("{sum}  {name}\n"));
    }
    Ok(text)
}

fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn names_in(directory: &Path) -> Result<Vec<String>, String> {
    let failed = |error| format!("cannot read {}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    Ok(names)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    fs::write(path, content).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn create(directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))
}

fn remove(directory: &Path) -> Result<(), String> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// What a command prints.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("cannot start {name}: {error}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!(
            "{name} fails: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed() {
        let parse = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Options::parse(&words)
        };
        let options = parse("--out o --binary b --target t --url https://host/").expect("options");
        assert_eq!(options.out, Path::new("o"));
        assert_eq!(options.binary.as_deref(), Some(Path::new("b")));
        assert_eq!(options.target.as_deref(), Some("t"));
        assert_eq!(options.url, "https://host");
        assert_eq!(parse("--out"), Err("--out needs a value".to_owned()));
        assert_eq!(parse("o"), Err("dist does not know \"o\"".to_owned()));
    }

    #[test]
    fn checksum_is_that_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
