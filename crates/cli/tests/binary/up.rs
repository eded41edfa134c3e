//! `bellerophon up` as scripts use it: output, files, signals and exit codes.

use std::{
    fs,
    io::Read as _,
    net::TcpListener,
    path::Path,
    process::{Command, ExitStatus},
};

use crate::running::{Lines, RunningServer, command};
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use tempfile::TempDir;

/// A client with changed credentials.
async fn client(server: &RunningServer, change: impl FnOnce(&mut AuthInfo)) -> Client {
    let mut kubeconfig = Kubeconfig::read_from(server.kubeconfig()).expect("a kubeconfig");
    let credentials = kubeconfig.auth_infos[0].auth_info.as_mut();
    change(credentials.expect("credentials"));
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Client::try_from(config).expect("a client")
}

fn without_certificate(credentials: &mut AuthInfo) {
    credentials.client_certificate_data = None;
    credentials.client_key_data = None;
}

/// The status code of a list of namespaces.
async fn list_namespaces(client: &Client) -> u16 {
    let request = kube::core::Request::new("/api/v1/namespaces")
        .list(&kube::api::ListParams::default())
        .expect("a request");
    match client.request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(other) => panic!("no response: {other}"),
    }
}

#[cfg(unix)]
fn signal(server: &mut RunningServer, name: &str) -> ExitStatus {
    let pid = server.process.id().to_string();
    let kill = Command::new("kill")
        .args(["-s", name, &pid])
        .status()
        .expect("kill starts");
    assert!(kill.success());
    server.process.wait().expect("the process exits")
}

/// The stderr of a process that has exited.
#[cfg(unix)]
fn log(server: &mut RunningServer) -> String {
    let mut log = String::new();
    server
        .process
        .stderr
        .take()
        .expect("stderr is piped")
        .read_to_string(&mut log)
        .expect("UTF-8");
    log
}

/// The result of a process.
#[derive(Debug)]
struct Finished {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Finished {
    /// Checks for a failure with this exit code, no output, and one line on stderr.
    fn assert_fails(&self, code: i32) {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
    }

    fn assert_stderr_contains(&self, part: &str) {
        assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
    }

    fn assert_stderr_starts_with(&self, part: &str) {
        assert!(
            self.stderr.starts_with(part),
            "{part:?} does not start {self:?}"
        );
    }
}

/// Runs the binary until it exits.
fn run(directory: &TempDir, arguments: &[&str]) -> Finished {
    let output = command(directory)
        .args(arguments)
        .output()
        .expect("the binary starts");
    Finished {
        code: output.status.code().expect("an exit code"),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory)
        .expect("a directory")
        .next()
        .is_none()
}

#[tokio::test]
async fn certificate_and_token_authenticate() {
    let server = RunningServer::start(&[]);
    let both = client(&server, |_| {}).await;
    assert_eq!(list_namespaces(&both).await, 200);
    let certificate = client(&server, |credentials| credentials.token = None).await;
    assert_eq!(list_namespaces(&certificate).await, 200);
    let token = client(&server, without_certificate).await;
    assert_eq!(list_namespaces(&token).await, 200);
    let wrong_token = client(&server, |credentials| {
        without_certificate(credentials);
        credentials.token = Some("wrong".to_owned().into());
    })
    .await;
    assert_eq!(list_namespaces(&wrong_token).await, 401);
    let anonymous = client(&server, |credentials| {
        without_certificate(credentials);
        credentials.token = None;
    })
    .await;
    assert_eq!(list_namespaces(&anonymous).await, 403);
}

#[test]
fn ready_message_has_url_kubeconfig_and_startup_time() {
    let server = RunningServer::start(&[]);
    let url = server.ready["server"].as_str().expect("a URL");
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    assert!(server.ready["startup_ms"].is_u64(), "{}", server.ready);
    let dashboard = server.ready["dashboard"].as_str().expect("a URL");
    assert!(dashboard.starts_with("http://127.0.0.1:"), "{dashboard}");
    let expected = server.directory.path().join(".bellerophon/kubeconfig");
    assert_eq!(
        fs::canonicalize(server.kubeconfig()).ok(),
        fs::canonicalize(expected).ok()
    );
}

#[test]
fn text_message_ends_with_a_kubectl_command() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut process = command(&directory)
        .args(["up", "--kubeconfig", "my config"])
        .spawn()
        .expect("the binary starts");
    let line = Lines::new(process.stdout.take().expect("stdout is piped"))
        .next_matching(|line| line.contains("kubectl"));
    process.kill().expect("the process runs");
    process.wait().expect("the process exits");
    let path = directory.path().join("my config");
    assert!(path.exists());
    assert_eq!(
        line.trim(),
        format!(
            "kubectl --kubeconfig '{}' get namespaces",
            fs::canonicalize(path).expect("it exists").display()
        )
    );
}

#[cfg(unix)]
#[test]
fn kubeconfig_is_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = RunningServer::start(&["--kubeconfig", "new/kubeconfig"]);
    let mode = |path: &str| {
        fs::metadata(server.directory.path().join(path))
            .expect("it exists")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode("new"), 0o700);
    assert_eq!(mode("new/kubeconfig"), 0o600);
}

#[cfg(unix)]
#[tokio::test]
async fn signal_stops_gracefully() {
    for name in ["TERM", "INT"] {
        let mut server = RunningServer::start(&[]);
        let client = client(&server, |_| {}).await;
        let watch = kube::core::Request::new("/api/v1/namespaces")
            .watch(&kube::api::WatchParams::default(), "0")
            .expect("a request");
        let events = client
            .request_events::<kube::core::DynamicObject>(watch)
            .await
            .expect("a watch");
        assert_eq!(
            signal(&mut server, name).code(),
            Some(0),
            "{name} with an open watch"
        );
        assert_eq!(log(&mut server), "");
        drop(events);
    }
}

#[tokio::test]
async fn ready_cluster_has_the_requested_number_of_ready_nodes() {
    for (options, nodes) in [
        (&[][..], 3),
        (&["--nodes", "5"], 5),
        (&["--nodes", "0"], 0),
        (&["--cluster", "core"], 0),
        (&["--cluster", "none"], 0),
    ] {
        let server = RunningServer::start(options);
        let client = client(&server, |_| {}).await;
        let request = kube::core::Request::new("/api/v1/nodes")
            .list(&kube::api::ListParams::default())
            .expect("a request");
        let list: serde_json::Value =
            serde_json::from_str(&client.request_text(request).await.expect("a list"))
                .expect("JSON");
        let is_ready = |node: &&serde_json::Value| {
            let conditions = node["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten();
            conditions
                .into_iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        assert_eq!(
            list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(is_ready)
                .count(),
            nodes,
            "{options:?}: {list}"
        );
    }
}

#[cfg(unix)]
#[tokio::test]
async fn request_log_names_the_user_and_no_secret() {
    let mut server = RunningServer::start(&["-vv", "--cluster", "none"]);
    let kubeconfig = fs::read_to_string(server.kubeconfig()).expect("a kubeconfig");
    let secrets: Vec<&str> = ["token: ", "client-key-data: "]
        .iter()
        .filter_map(|key| kubeconfig.split_once(key)?.1.lines().next())
        .collect();
    let client = client(&server, |_| {}).await;
    assert_eq!(list_namespaces(&client).await, 200);
    signal(&mut server, "TERM");
    let log = log(&mut server);
    let line = log
        .lines()
        .find(|line| line.contains("answered"))
        .expect("the request is logged");
    for part in ["GET", "/api/v1/namespaces", "admin", "200", "duration"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(secrets.len(), 2);
    for secret in secrets {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn usage_errors_are_one_line_with_exit_code_2() {
    let directory = tempfile::tempdir().expect("a directory");
    let cases: &[(&[&str], &str)] = &[
        (
            &["up", "--cluster", "core", "--nodes", "3"],
            "--nodes needs --cluster full",
        ),
        (&["up", "--data", "d"], "unexpected argument '--data' found"),
        (
            &["up", "--cluster", "half"],
            "invalid value 'half' for '--cluster <WHAT>'",
        ),
        (
            &["up", "--output", "xml"],
            "invalid value 'xml' for '--output <FORMAT>'",
        ),
        (
            &["up", "--listen", "localhost"],
            "invalid value 'localhost' for '--listen <IP:PORT>'",
        ),
        (
            &["run", "icecream", "--workers", "0"],
            "invalid value '0' for '--workers <N>': not a number from 1 to 1000",
        ),
    ];
    for (arguments, expected) in cases {
        let finished = run(&directory, arguments);
        finished.assert_fails(2);
        finished.assert_stderr_starts_with(&format!("bellerophon: {expected}"));
        finished.assert_stderr_contains("--help");
    }
    let invalid_filter = command(&directory)
        .arg("up")
        .env("RUST_LOG", "bellerophon=loud")
        .output()
        .expect("the binary starts");
    assert_eq!(invalid_filter.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&invalid_filter.stderr);
    let expected = "bellerophon: RUST_LOG=\"bellerophon=loud\" is not";
    assert!(stderr.starts_with(expected), "{stderr}");
    let without_arguments = run(&directory, &[]);
    assert_eq!(without_arguments.code, 2);
    assert_eq!(without_arguments.stdout, "");
    without_arguments.assert_stderr_contains("Usage: bellerophon");
    assert!(is_empty(directory.path()));
}

#[test]
fn port_in_use_is_an_error_and_leaves_no_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let finished = run(&directory, &["up", "--listen", &address.to_string()]);
    drop(listener);
    finished.assert_fails(1);
    finished.assert_stderr_starts_with(&format!("bellerophon: cannot listen on {address}: "));
    finished.assert_stderr_contains("choose another");
    assert!(is_empty(directory.path()));
}

#[test]
fn unwritable_kubeconfig_is_an_error_and_leaves_no_files() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("folder")).expect("a directory");
    fs::write(directory.path().join("config"), "kind: Config\n").expect("a file");
    let cases = [
        (
            "folder",
            "will not replace folder: it is not a regular file; \
             name another file with --kubeconfig",
        ),
        (
            "config",
            "will not replace config: it was not written by bellerophon; \
             name another file with --kubeconfig",
        ),
        (
            "config/kubeconfig",
            "cannot write kubeconfig config/kubeconfig: Not a directory (os error 20); \
             name another file with --kubeconfig",
        ),
    ];
    for (path, expected) in cases {
        let finished = run(&directory, &["up", "--kubeconfig", path]);
        finished.assert_fails(1);
        finished.assert_stderr_contains(expected);
    }
    assert!(is_empty(&directory.path().join("folder")));
    assert_eq!(
        fs::read_to_string(directory.path().join("config")).expect("the file exists"),
        "kind: Config\n"
    );
}

#[test]
fn demo_prints_timelines_of_the_samples() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut process = command(&directory)
        .args(["up", "--demo", "-v", "--output", "json"])
        .spawn()
        .expect("the binary starts");
    let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
    for part in [
        r#""event":"ready""#,
        "command apply Deployment.apps default/stable",
        "command apply SecSynch.tutorial.study.dev default/shared-login",
        "event   Deployment.apps default/stable added",
        "enqueues deployment-controller for default/stable",
        "writes  deployment-controller: ReplicaSet.apps default/stable-",
        "writes  replicaset-controller: Pod default/stable-",
        "writes  default-scheduler: binding to node-",
        "writes  kubelet: Pod default/stable-",
    ] {
        let line = lines.next_matching(|line| line.contains(part));
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert!(value.is_object(), "{line}");
    }
    let known = run(&directory, &["trace", "deploy/stable"]);
    let unknown = run(&directory, &["trace", "deploy/unstable"]);
    process.kill().expect("the process runs");
    process.wait().expect("the process exits");
    assert_eq!(known.code, 0, "{known:?}");
    assert_eq!(known.stderr, "");
    for part in [
        " event   Deployment.apps default/stable added",
        " enqueues ",
        " writes ",
    ] {
        assert!(known.stdout.contains(part), "{part:?} is not in {known:?}");
    }
    assert!(!known.stdout.contains("Service"), "{known:?}");
    unknown.assert_fails(1);
    assert_eq!(
        unknown.stderr,
        "bellerophon: nothing is known of deploy/unstable in namespace default; \
         name it as kubectl does, or wait for it with --follow\n"
    );
}

#[test]
fn demo_prints_a_summary_of_each_chain() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut process = command(&directory)
        .args(["up", "--demo", "--operators", "none"])
        .spawn()
        .expect("the binary starts");
    let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
    for part in [
        "apply Deployment.apps default/stable, as kubectl apply would",
        "  deployment-controller        wrote ",
        "  replicaset-controller        wrote ",
        "  default-scheduler            bound ",
        "  kubelet                      wrote ",
        "  converged after ",
    ] {
        lines.next_matching(|line| line.starts_with(part));
    }
    process.kill().expect("the process runs");
    process.wait().expect("the process exits");
}

/// Controllers, nodes and operators used to act as the administrator.
#[tokio::test]
async fn controllers_and_operators_act_within_their_permissions() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut process = command(&directory)
        .args(["up", "--demo", "-v", "--output", "json"])
        .spawn()
        .expect("the binary starts");
    let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
    let ready = lines.next_matching(|line| line.contains(r#""event":"ready""#));
    let mut missing = vec![
        "writes  deployment-controller: ReplicaSet.apps default/stable-",
        "writes  kubelet: Pod default/stable-",
        "writes  icecream: Deployment.apps default/",
        "writes  simple: Deployment.apps default/",
        "writes  secsynch: Secret team-a/",
    ];
    while !missing.is_empty() {
        let line = lines.next_matching(|line| missing.iter().any(|part| line.contains(part)));
        missing.retain(|part| !line.contains(part));
    }
    let server = RunningServer {
        process,
        directory,
        ready: serde_json::from_str(&ready).expect("JSON"),
    };
    let client = client(&server, |_| {}).await;
    let request = http::Request::get("/metrics").body(Vec::new());
    let metrics = client.request_text(request.expect("a request")).await;
    let metrics = metrics.expect("metrics");
    let requests = metrics
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"));
    let forbidden: Vec<&str> = requests
        .clone()
        .filter(|line| line.contains(r#"code="403""#))
        .collect();
    assert_ne!(requests.count(), 0);
    assert_eq!(forbidden, [""; 0]);
}

#[test]
fn trace_needs_a_cluster_with_controllers() {
    let server = RunningServer::start(&["--cluster", "none"]);
    let refused = run(&server.directory, &["trace", "deploy/web"]);
    refused.assert_fails(1);
    refused.assert_stderr_starts_with("bellerophon: cannot trace deploy/web: ");
    refused.assert_stderr_contains("bellerophon up");
    let empty = tempfile::tempdir().expect("a directory");
    let refused = run(&empty, &["trace", "deploy/web"]);
    refused.assert_fails(1);
    refused.assert_stderr_contains("cannot use kubeconfig .bellerophon/kubeconfig");
    refused.assert_stderr_contains("--kubeconfig");
}

#[cfg(unix)]
#[tokio::test]
async fn audit_log_has_the_requests_of_its_policy() {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n\
                  - level: Metadata\n  resources: [{resources: [namespaces]}]\n\
                  - level: None\n";
    fs::write(path("policy.yaml"), policy).expect("a file");
    let mut server = RunningServer::start(&[
        "--cluster",
        "none",
        "--audit-log-path",
        &path("audit.log"),
        "--audit-policy-file",
        &path("policy.yaml"),
    ]);
    let client = client(&server, |_| ()).await;
    assert_eq!(list_namespaces(&client).await, 200);
    assert!(signal(&mut server, "TERM").success());
    let log = fs::read_to_string(path("audit.log")).expect("a log");
    let lists: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|event: &serde_json::Value| {
            event["verb"] == "list" && event["stage"] == "ResponseComplete"
        })
        .collect();
    let [list] = lists.as_slice() else {
        panic!("not one list: {log}");
    };
    assert_eq!(list["objectRef"]["resource"], "namespaces");
    assert_eq!(list["responseStatus"]["code"], 200);
    let mode = fs::metadata(path("audit.log"))
        .expect("a log")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
}

#[test]
fn audit_log_without_a_policy_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = command(&directory)
        .args(["up", "--audit-log-path", "audit.log"])
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("--audit-policy-file"), "{message}");
}
