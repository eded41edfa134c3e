//! The directory of test binaries.
//!
//! Guarantees: a directory that exists is brought up to date without a moment in which a program is
//! missing, also by several processes concurrently; its programs are links to this binary, so it
//! takes no space.

use std::{env, fs, io, path::Path, path::PathBuf};

use super::{KUBERNETES_VERSION, Profile};
use crate::error::CliError;

/// The names that select a program.
pub(super) const PROGRAMS: [&str; 3] = ["kube-apiserver", "etcd", "kubectl"];

/// The file that has the name of the profile.
const PROFILE_FILE: &str = "profile";

/// A directory of one profile.
#[derive(Debug)]
pub(super) struct Layout {
    root: PathBuf,
    profile: Profile,
}

/// `bellerophon/envtest` in the data directory of the user.
///
/// # Errors
/// The user has no home directory.
pub(super) fn default_root() -> Result<PathBuf, CliError> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let data = variable("XDG_DATA_HOME").map(PathBuf::from);
    let data = data.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/share")));
    match data {
        Some(data) => Ok(data.join("bellerophon/envtest")),
        None => Err(
            CliError::Failed("neither XDG_DATA_HOME nor HOME is set".to_owned())
                .with_hint("name a directory with --bin-dir"),
        ),
    }
}

impl Layout {
    /// The layout of a profile below `root`. Profiles other than the default have a separate
    /// directory, because suites take the first version they find.
    pub(super) fn new(root: &Path, profile: Profile) -> Self {
        let root = match profile {
            Profile::None => root.to_owned(),
            Profile::Core => root.join(profile.name()),
        };
        Self { root, profile }
    }

    /// The directory that has `k8s`.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the programs.
    pub(super) fn directory(&self) -> PathBuf {
        let os = match env::consts::OS {
            "macos" => "darwin",
            os => os,
        };
        let arch = match env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            arch => arch,
        };
        let version = format!("{KUBERNETES_VERSION}-{os}-{arch}");
        self.root.join("k8s").join(version)
    }

    /// Creates the directory, and returns its absolute path: Go runs tests in the directory of their
    /// package.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn create(&self) -> io::Result<PathBuf> {
        let directory = self.directory();
        fs::create_dir_all(&directory)?;
        let directory = fs::canonicalize(&directory)?;
        let program = env::current_exe()?;
        for name in PROGRAMS {
            replace(&directory.join(name), |draft| link(&program, draft))?;
        }
        let profile = self.profile.name();
        replace(&directory.join(PROFILE_FILE), |draft| {
            fs::write(draft, profile)
        })?;
        Ok(directory)
    }

    /// The profile of a directory; the default one if it names none.
    pub(super) fn profile_in(directory: &Path) -> Profile {
        let name = fs::read_to_string(directory.join(PROFILE_FILE)).unwrap_or_default();
        let mut profiles = Profile::ALL.into_iter();
        profiles
            .find(|profile| profile.name() == name.trim())
            .unwrap_or_default()
    }
}

/// Creates a file under another name, and gives it its name then.
fn replace(path: &Path, create: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let draft = path.with_extension(format!("{}.draft", std::process::id()));
    // Of a process that was killed and whose number is used again.
    drop(fs::remove_file(&draft));
    create(&draft)?;
    fs::rename(&draft, path)
}

#[cfg(unix)]
fn link(program: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(program, path)
}

#[cfg(not(unix))]
fn link(program: &Path, path: &Path) -> io::Result<()> {
    fs::copy(program, path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_has_the_programs_and_its_profile() {
        let root = tempfile::tempdir().expect("a directory");
        for profile in Profile::ALL {
            let layout = Layout::new(root.path(), profile);
            let directory = layout.create().expect("created");
            assert_eq!(layout.create().expect("created again"), directory);
            assert!(directory.is_absolute());
            let mut names: Vec<String> = fs::read_dir(&directory)
                .expect("readable")
                .map(|entry| {
                    let name = entry.expect("readable").file_name();
                    name.into_string().expect("UTF-8")
                })
                .collect();
            names.sort();
            assert_eq!(names, ["etcd", "kube-apiserver", "kubectl", "profile"]);
            assert_eq!(Layout::profile_in(&directory), profile);
            let name = directory.file_name().and_then(|name| name.to_str());
            assert!(
                name.is_some_and(|name| name.starts_with("1.36.4-")),
                "{name:?}"
            );
        }
        assert_eq!(Layout::profile_in(root.path()), Profile::None);
    }
}
