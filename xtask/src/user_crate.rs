//! `cargo xtask user-crate`: builds and tests the project of `bellerophon new` outside of the
//! repository.
//!
//! Output: its tests pass in a temporary directory, and neither the compiler nor clippy has warnings.
//!
//! Guarantee: the project refers to the repository by path only, so that all it needs is public.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// The projects: a name, and options of `bellerophon new`.
const PROJECTS: [(&str, &[&str]); 2] = [
    ("hero", &[]),
    (
        "bucket",
        &["--group", "storage.example.com", "--finalizer", "--webhook"],
    ),
];

/// Generates the projects, builds them and runs their tests.
///
/// # Errors
/// A project cannot be generated, has a warning, or its test fails.
pub fn run(root: &Path) -> Result<(), String> {
    let directory = env::temp_dir().join(format!("bellerophon-new-{}", std::process::id()));
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let result = PROJECTS.iter().try_for_each(|(name, options)| {
        eprintln!("==> the project {name}");
        generate(root, &directory, name, options)?;
        let project = directory.join(name);
        cargo(root, &project, &["test", "--quiet"])?;
        cargo(root, &project, &["clippy", "--quiet", "--all-targets"])
    });
    if let Err(error) = fs::remove_dir_all(&directory) {
        eprintln!("xtask: cannot remove {}: {error}", directory.display());
    }
    result
}

fn generate(root: &Path, directory: &Path, name: &str, options: &[&str]) -> Result<(), String> {
    let manifest = root.join("Cargo.toml");
    let mut command = Command::new(env!("CARGO"));
    command
        .args([
            "run",
            "--quiet",
            "--package",
            "bellerophon-cli",
            "--manifest-path",
        ])
        .arg(manifest)
        .args(["--", "new", name, "--toolkit"])
        .arg(root)
        .args(options)
        .current_dir(directory);
    succeed(&mut command, &format!("bellerophon new {name}")).map(drop)
}

/// Runs a command of cargo on a project, without warnings.
fn cargo(root: &Path, project: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(arguments)
        .current_dir(project)
        // Not the one that projects of a user share.
        .env("CARGO_BUILD_BUILD_DIR", crate::target_directory(root))
        // Cargo sets these for the build of this program; the project is another one.
        .env_remove("CARGO_MANIFEST_DIR");
    let name = project.file_name().unwrap_or_default().display();
    let what = format!("cargo {} of the project {name}", arguments[0]);
    let stderr = succeed(&mut command, &what)?;
    match stderr.contains("warning") {
        true => Err(format!("{what} has warnings:\n{stderr}")),
        false => Ok(()),
    }
}

/// Runs a command, and returns what it wrote to stderr.
fn succeed(command: &mut Command, what: &str) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8_lossy(&output.stdout);
    match output.status.success() {
        true => Ok(stderr),
        false => Err(format!("{what} fails:\n{stdout}{stderr}")),
    }
}
