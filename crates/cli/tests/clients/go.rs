//! Go programs against the binary: client-go's typed and dynamic clients, informers and leader
//! election; controller-runtime's package envtest; and a project of `bellerophon new --go`.
//!
//! It needs Go, and the modules in the cache or from a proxy.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    client::{self, ClientTest},
    running::{Lines, RunningServer, command},
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
        client::Client::new(name.to_owned(), require, check_available(sources))
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
        client("controller-runtime", ENVTEST).test(
            "go::project_with_webhooks_passes_its_test_and_is_called_by_dev",
            project_with_webhooks_passes_its_test_and_is_called_by_dev,
        ),
    ]
}

/// `bellerophon new --go --webhook`, its test, and `bellerophon dev`.
fn project_with_webhooks_passes_its_test_and_is_called_by_dev() {
    let directory = tempfile::tempdir().expect("a directory");
    let new = ["new", "gate", "--go", "--webhook"];
    let created = command(&directory).args(new).output();
    assert!(created.expect("the binary starts").status.success());
    let project = directory.path().join("gate");
    let path = project.to_str().expect("a UTF-8 path");
    let run = |arguments: &[&str]| {
        let output = go(path, arguments).expect("go starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "go {arguments:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    };
    run(&["mod", "tidy"]);
    assert_eq!(run(&["fmt", "."]), "", "files are formatted");
    run(&["vet", "."]);
    let assets = assets(&directory, "none");
    go_test(path, "Test", &[("KUBEBUILDER_ASSETS", &assets)]);

    // A sample without the field that the webhook sets.
    let sample = project.join("sample.yaml");
    let text = fs::read_to_string(&sample).expect("readable");
    let without_message = text.replace("spec:\n  message: hello\n", "");
    assert_ne!(without_message, text);
    fs::write(&sample, without_message).expect("written");
    let mut dev = command(&directory);
    let dev = dev.args(["dev", "--nodes", "1"]).current_dir(&project);
    let mut dev = Interrupted(
        dev.stderr(Stdio::null())
            .spawn()
            .expect("the binary starts"),
    );
    let lines = Lines::new(dev.0.stdout.take().expect("stdout is piped"));
    lines.next_matching(|line| line.contains("webhooks are called at https://127.0.0.1:"));
    lines.next_matching(|line| line.contains("applied 4 objects"));
    let kubeconfig = project.join(".bellerophon/kubeconfig");
    assert_eq!(stored_message(&kubeconfig), "hello");
    let removed = text.replace("message: hello", "message: ''");
    fs::write(&sample, removed).expect("written");
    lines.next_matching(|line| line.contains("delete the Gate instead"));
}

/// A `bellerophon dev` that is interrupted with this value, so that its operator ends.
struct Interrupted(Child);

impl Drop for Interrupted {
    fn drop(&mut self) {
        let id = self.0.id().to_string();
        // The process may have exited already.
        drop(Command::new("kill").args(["-s", "INT", &id]).status());
        drop(self.0.wait());
    }
}

/// The message of the sample, read by the administrator.
fn stored_message(kubeconfig: &Path) -> String {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let client = Client::try_from(config.expect("a context")).expect("a client");
        let path = "/apis/example.com/v1alpha1/namespaces/default/gates/sample";
        let request = http::Request::get(path).body(Vec::new());
        let sample: Value = client
            .request(request.expect("a request"))
            .await
            .expect("the sample exists");
        sample["spec"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    })
}

fn envtest_runs_the_test_binaries_unchanged() {
    let directory = tempfile::tempdir().expect("a directory");
    go_test(
        ENVTEST,
        "Test",
        &[
            ("KUBEBUILDER_ASSETS", &assets(&directory, "none")),
            ("BELLEROPHON_CORE_ASSETS", &assets(&directory, "core")),
        ],
    );
}

/// The directory of the test binaries of a profile, below another directory.
fn assets(directory: &TempDir, profile: &str) -> String {
    let options = ["--print", "path", "--bin-dir", ".", "--profile", profile];
    let output = command(directory).arg("envtest").args(options).output();
    String::from_utf8(output.expect("the binary starts").stdout).expect("UTF-8")
}

/// The same webhooks, with `bellerophon up` as an existing cluster.
fn webhooks_of_controller_runtime_are_called() {
    let server = RunningServer::start(&[]);
    go_test(
        ENVTEST,
        "TestWebhooksOfAManagerAreCalled",
        &[
            ("USE_EXISTING_CLUSTER", "true"),
            ("KUBECONFIG", server.kubeconfig()),
        ],
    );
}

/// Runs the tests of a package whose names begin so; at least one has to run.
fn go_test(sources: &str, names: &str, env: &[(&str, &str)]) {
    let output = Command::new("go")
        .current_dir(sources)
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
