//! A Go program with client-go's typed and dynamic clients, informers and leader election against
//! the binary.
//!
//! It needs Go, and the modules in the cache or from a proxy.

use std::{
    path::Path,
    process::{Command, Output},
};

use crate::{
    client::{Client, ClientTest},
    running::RunningServer,
};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/clientgo");

fn go(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new("go")
        .current_dir(SOURCES)
        .args(arguments)
        .output()
}

/// Checks that Go and all modules of the program are available.
fn check_available() -> Result<(), String> {
    match go(&["mod", "download"]) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "modules cannot be downloaded: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("go cannot be started: {error}")),
    }
}

pub(crate) fn test() -> ClientTest {
    let require = Some("BELLEROPHON_REQUIRE_GO");
    Client::new("client-go".to_owned(), require, check_available()).test(
        "go::go_clients_work_as_with_kube_apiserver",
        go_clients_work_as_with_kube_apiserver,
    )
}

fn go_clients_work_as_with_kube_apiserver() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clientgo");
    let built =
        go(&["build", "-o", program.to_str().expect("a UTF-8 path"), "."]).expect("go starts");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let server = RunningServer::start(&["--cluster", "none"]);
    let output = Command::new(program)
        .args(["--kubeconfig", server.kubeconfig()])
        .output()
        .expect("the program starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(stdout.lines().count() > 20, "{stdout}");
    let is_passed = |line: &str| line.starts_with("kept: ");
    assert!(stdout.lines().all(is_passed), "{stdout}");
}
