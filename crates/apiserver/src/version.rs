//! `/version`: the Kubernetes release that this server implements.

use serde::Serialize;

/// The release whose behaviour the server has.
pub(crate) const GIT_VERSION: &str = "v1.36.4";
pub(crate) const MAJOR: &str = "1";
pub(crate) const MINOR: &str = "36";

/// The oldest minor release that a cluster with this server can hold.
const MINOR_MIN: &str = "35";

/// Kubernetes and this program, side by side: the release by its number, the build by what it was
/// built from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Info {
    pub(crate) major: &'static str,
    pub(crate) minor: &'static str,
    emulation_major: &'static str,
    emulation_minor: &'static str,
    min_compatibility_major: &'static str,
    min_compatibility_minor: &'static str,
    pub(crate) git_version: &'static str,
    pub(crate) git_commit: &'static str,
    pub(crate) git_tree_state: &'static str,
    pub(crate) build_date: &'static str,
    pub(crate) go_version: &'static str,
    pub(crate) compiler: &'static str,
    pub(crate) platform: String,
}

/// The response of `/version`.
pub(crate) fn info() -> Info {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Info {
        major: MAJOR,
        minor: MINOR,
        emulation_major: MAJOR,
        emulation_minor: MINOR,
        min_compatibility_major: MAJOR,
        min_compatibility_minor: MINOR_MIN,
        git_version: GIT_VERSION,
        git_commit: concat!("bellerophon-", env!("CARGO_PKG_VERSION")),
        git_tree_state: "clean",
        // The build date of Kubernetes builds without one.
        build_date: "1970-01-01T00:00:00Z",
        go_version: concat!("rust", env!("CARGO_PKG_RUST_VERSION")),
        compiler: "rustc",
        platform: format!("{}/{architecture}", std::env::consts::OS),
    }
}
