//! The Python `kubernetes` client against the binary: list, create, patch, watch.
//!
//! PYTHON is the interpreter; default: `python3`. The test is skipped if it has no `kubernetes`
//! module, and fails then with BELLEROPHON_REQUIRE_PYTHON=1.

use std::{env, process::Command};

use crate::running::RunningServer;

#[test]
fn python_client_lists_creates_and_watches() {
    let program = env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let is_available = Command::new(&program)
        .args(["-c", "import kubernetes"])
        .output()
        .is_ok_and(|output| output.status.success());
    let required = env::var("BELLEROPHON_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
    assert!(
        is_available || !required,
        "{program} has no module kubernetes, but BELLEROPHON_REQUIRE_PYTHON=1"
    );
    if !is_available {
        eprintln!("skipped: {program} has no module kubernetes; install it, or set PYTHON");
        return;
    }
    let server = RunningServer::start(&["--cluster", "none"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/binary/client.py");
    let output = Command::new(program)
        .current_dir(&server.directory)
        .args([script, server.kubeconfig()])
        .output()
        .expect("python starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
