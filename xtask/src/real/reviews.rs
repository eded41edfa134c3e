//! AdmissionReviews of kube-apiserver, with the answers of webhooks of controller-runtime.
//!
//! Output: the file of the tests of the toolkit, which give the same answers. The program that records
//! them is crates/conformance/envtest/reviews.

use std::{path::Path, process::Command};

use super::{build::Programs, control_plane::ControlPlane};
use crate::processes::succeed;

/// The Go module of the program, relative to the root.
const MODULE: &str = "crates/conformance/envtest";

/// The file, relative to the root.
const FILE: &str = "crates/toolkit/tests/toolkit/webhook/kube_apiserver.json";

/// Starts a control plane in a directory, and writes the file.
///
/// # Errors
/// A program cannot be built or started, or a case is not answered as expected.
pub(super) fn record(root: &Path, programs: &Programs, directory: &Path) -> Result<(), String> {
    let control_plane = ControlPlane::start(programs, directory, &programs.logs())?;
    let mut go = Command::new("go");
    go.args(["run", "./reviews"])
        .arg(control_plane.kubeconfig())
        .arg(root.join(FILE))
        .current_dir(root.join(MODULE));
    let printed = succeed(&mut go, "go run ./reviews")?;
    eprintln!("{FILE}: {}", printed.trim_end());
    Ok(())
}
