//! The habits of this repository, executable: one command equals CI, tidiness is a test.

pub mod check; // what CI runs, step by step
pub mod tasks; // the subcommands
pub mod tidy; // the rules a compiler does not check
pub mod types; // the table of built-in types
pub mod upstream; // Kubernetes' own conformance tests
pub mod upstream_report; // what came out of them
pub mod user_crate; // a crate as a user writes it

use std::path::{Path, PathBuf};

/// The root of the repository, wherever the task was started.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the repository")
        .to_path_buf()
}
