//! The Python `kubernetes` client against the binary: list, create, patch, watch.
//!
//! PYTHON is the interpreter; default: `python3`. It needs the module `kubernetes`.

use std::{env, process::Command};

use crate::{
    client::{Client, ClientTest},
    running::RunningServer,
};

fn program() -> String {
    env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

fn check_available() -> Result<(), String> {
    let program = program();
    let is_available = Command::new(&program)
        .args(["-c", "import kubernetes"])
        .output()
        .is_ok_and(|output| output.status.success());
    match is_available {
        true => Ok(()),
        false => Err(format!("{program} has no module kubernetes")),
    }
}

pub(crate) fn test() -> ClientTest {
    let require = Some("BELLEROPHON_REQUIRE_PYTHON");
    Client::new("Python".to_owned(), require, check_available()).test(
        "python::python_client_lists_creates_and_watches",
        python_client_lists_creates_and_watches,
    )
}

fn python_client_lists_creates_and_watches() {
    let server = RunningServer::start(&["--cluster", "none"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/client.py");
    let output = Command::new(program())
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
