//! The Python `kubernetes` client against the real binary: list, create, patch, watch.
//! Without the client in `python3` (or in the interpreter that PYTHON names) the test says so and passes; with BELLEROPHON_REQUIRE_PYTHON=1 it
//! fails.

use std::{env, process::Command};

use crate::running::Running;

#[test]
fn python_client_lists_creates_and_watches() {
    let program = env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&program)
        .args(["-c", "import kubernetes"])
        .output()
        .is_ok_and(|output| output.status.success());
    let required = env::var("BELLEROPHON_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
    assert!(
        found || !required,
        "{program} has no module kubernetes, and BELLEROPHON_REQUIRE_PYTHON=1 asks for it"
    );
    if !found {
        eprintln!(
            "skipped: {program} has no module kubernetes; install it or name an interpreter that has it in PYTHON"
        );
        return;
    }
    let server = Running::start(&["--cluster", "none"]);
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
