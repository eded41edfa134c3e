//! `cargo xtask user-crate`: builds and tests a crate outside of the repository.
//!
//! Input: `ci/user-crate`. Output: its tests pass in a temporary directory.
//!
//! Guarantee: the crate refers to the repository by path only, so that all it needs is public.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const SOURCE: &str = "ci/user-crate";
const FILES: [&str; 3] = ["Cargo.toml", "src/main.rs", "tests/reconciles.rs"];

/// Copies the crate, builds it and runs its test.
///
/// # Errors
/// A file cannot be copied, or the test fails.
pub fn run(root: &Path) -> Result<(), String> {
    let copy = env::temp_dir().join(format!("bellerophon-user-crate-{}", std::process::id()));
    let result = copy_crate(root, &copy).and_then(|()| test(root, &copy));
    if let Err(error) = fs::remove_dir_all(&copy) {
        eprintln!("xtask: cannot remove {}: {error}", copy.display());
    }
    result
}

fn copy_crate(root: &Path, copy: &Path) -> Result<(), String> {
    for file in FILES {
        let text = read(&root.join(SOURCE).join(file))?;
        let crates = root.join("crates").display().to_string();
        write(&copy.join(file), &text.replace("../../crates", &crates))?;
    }
    // The versions that the repository is tested with.
    write(&copy.join("Cargo.lock"), &read(&root.join("Cargo.lock"))?)
}

fn test(root: &Path, copy: &Path) -> Result<(), String> {
    let status = Command::new(env!("CARGO"))
        .args(["test", "--quiet"])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", target(root))
        // Cargo sets these for the build of this program; the crate is another one.
        .env_remove("CARGO_MANIFEST_DIR")
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!(
            "the test of {SOURCE} fails outside of the repository"
        )),
    }
}

fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let directory = path.parent().expect("a file of a crate has a directory");
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(path, text));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}
