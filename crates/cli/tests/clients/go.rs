//! Go programs against the binary: client-go's typed and dynamic clients, informers and leader
//! election; and controller-runtime's package envtest.
//!
//! It needs Go, and the modules in the cache or from a proxy.

use std::{
    path::Path,
    process::{Command, Output},
};

use crate::{
    client::{Client, ClientTest},
    running::{RunningServer, command},
};

const CLIENT_GO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/clientgo");
const ENVTEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/envtest");

fn go(sources: &str, arguments: &[&str]) -> std::io::Result<Output> {
    Command::new("go")
        .current_dir(sources)
        .args(arguments)
        .output()
}

/// Checks that Go and all modules of a program are available.
fn check_available(sources: &str) -> Result<(), String> {
    match go(sources, &["mod", "download"]) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "modules cannot be downloaded: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("go cannot be started: {error}")),
    }
}

pub(crate) fn tests() -> Vec<ClientTest> {
    let client = |name: &str, sources: &str| {
        let require = Some("BELLEROPHON_REQUIRE_GO");
        Client::new(name.to_owned(), require, check_available(sources))
    };
    vec![
        client("client-go", CLIENT_GO).test(
            "go::go_clients_work_as_with_kube_apiserver",
            go_clients_work_as_with_kube_apiserver,
        ),
        client("controller-runtime", ENVTEST).test(
            "go::envtest_runs_the_test_binaries_unchanged",
            envtest_runs_the_test_binaries_unchanged,
        ),
        client("controller-runtime", ENVTEST).test(
            "go::webhooks_of_controller_runtime_are_called",
            webhooks_of_controller_runtime_are_called,
        ),
    ]
}

fn envtest_runs_the_test_binaries_unchanged() {
    let directory = tempfile::tempdir().expect("a directory");
    let assets = |profile: &str| {
        let output = command(&directory)
            .args([
                "envtest",
                "--print",
                "path",
                "--bin-dir",
                ".",
                "--profile",
                profile,
            ])
            .output()
            .expect("the binary starts");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    go_test(
        "Test",
        &[
            ("KUBEBUILDER_ASSETS", &assets("none")),
            ("BELLEROPHON_CORE_ASSETS", &assets("core")),
        ],
    );
}

/// The same webhooks, with `bellerophon up` as an existing cluster.
fn webhooks_of_controller_runtime_are_called() {
    let server = RunningServer::start(&[]);
    go_test(
        "TestWebhooksOfAManagerAreCalled",
        &[
            ("USE_EXISTING_CLUSTER", "true"),
            ("KUBECONFIG", server.kubeconfig()),
        ],
    );
}

/// Runs the tests of the package whose names begin so; at least one has to run.
fn go_test(names: &str, env: &[(&str, &str)]) {
    let output = Command::new("go")
        .current_dir(ENVTEST)
        .args(["test", "-count=1", "-vet=off", "-v", "-run"])
        .args([&format!("^{names}"), "./..."])
        .envs(env.iter().copied())
        .output()
        .expect("go starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains(&format!("--- PASS: {names}")),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn go_clients_work_as_with_kube_apiserver() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clientgo");
    let built = go(
        CLIENT_GO,
        &["build", "-o", program.to_str().expect("a UTF-8 path"), "."],
    )
    .expect("go starts");
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
