//! Tasks of the repository, run by `cargo xtask`.

pub mod check; // the checks of CI
pub mod codecs; // no decoders of built-in types in operators
pub mod dist; // the files of a release
pub mod first_hour; // the steps of a new author, timed
mod generated_part; // pages with a generated part
mod processes; // processes of tasks
pub mod real; // operators on a control plane of Kubernetes
pub mod reference; // docs/reference/annotations.md
pub mod tasks; // the subcommands
pub mod tidy; // rules that the compiler does not check
pub mod types; // the table of built-in types of the API server
pub mod upstream; // the conformance tests of Kubernetes
pub mod upstream_page; // the page with their results
pub mod upstream_report; // the results of the conformance tests
pub mod user_crate; // the project of `bellerophon new`

use std::{
    env,
    path::{Path, PathBuf},
};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a directory of the repository")
        .to_path_buf()
}

/// The directory of the programs that cargo builds.
pub fn target_directory(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}
