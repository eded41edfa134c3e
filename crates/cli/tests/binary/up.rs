//! `bellerophon up` as scripts rely on it: the real binary, its output, its files, its signals and its exit codes.

use std::{
    fs,
    io::Read as _,
    net::TcpListener,
    path::Path,
    process::{Command, ExitStatus},
};

use crate::running::{Lines, Running, command};
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use tempfile::TempDir;

/// A client with these credentials.
async fn client(running: &Running, credentials: impl FnOnce(&mut AuthInfo)) -> Client {
    let mut kubeconfig = Kubeconfig::read_from(running.kubeconfig()).expect("a kubeconfig");
    credentials(
        kubeconfig.auth_infos[0]
            .auth_info
            .as_mut()
            .expect("credentials"),
    );
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Client::try_from(config).expect("a client")
}

fn without_certificate(credentials: &mut AuthInfo) {
    (
        credentials.client_certificate_data,
        credentials.client_key_data,
    ) = (None, None);
}

/// What a list of the namespaces is answered with.
async fn asked(client: &Client) -> u16 {
    let request = kube::core::Request::new("/api/v1/namespaces")
        .list(&kube::api::ListParams::default())
        .expect("a request");
    match client.request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(other) => panic!("no answer: {other}"),
    }
}

#[cfg(unix)]
fn signal(running: &mut Running, name: &str) -> ExitStatus {
    let pid = running.process.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .expect("kill starts")
            .success()
    );
    running.process.wait().expect("it ends")
}

/// All that a process which has ended wrote to stderr.
#[cfg(unix)]
fn log(running: &mut Running) -> String {
    let mut log = String::new();
    running
        .process
        .stderr
        .take()
        .expect("stderr is piped")
        .read_to_string(&mut log)
        .expect("text");
    log
}

/// Runs the binary to its end: exit code, stdout, stderr.
fn ended(directory: &TempDir, arguments: &[&str]) -> (i32, String, String) {
    let output = command(directory)
        .args(arguments)
        .output()
        .expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code().expect("an exit code"),
        text(output.stdout),
        text(output.stderr),
    )
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory)
        .expect("a directory")
        .next()
        .is_none()
}

#[tokio::test]
async fn ready_server_answers_those_it_knows() {
    let running = Running::start(&[]);
    assert!(
        running.ready["server"]
            .as_str()
            .is_some_and(|url| url.starts_with("https://127.0.0.1:")),
        "{}",
        running.ready
    );
    assert!(
        running.ready["startup_ms"].is_u64() && running.ready["dashboard"].is_null(),
        "{}",
        running.ready
    );
    assert_eq!(
        fs::canonicalize(running.kubeconfig()).ok(),
        fs::canonicalize(running.directory.path().join(".bellerophon/kubeconfig")).ok()
    );

    assert_eq!(
        asked(&client(&running, |_| {}).await).await,
        200,
        "with certificate and token"
    );
    assert_eq!(
        asked(&client(&running, |credentials| credentials.token = None).await).await,
        200,
        "with the certificate"
    );
    assert_eq!(
        asked(&client(&running, without_certificate).await).await,
        200,
        "with the token"
    );
    let wrong = |credentials: &mut AuthInfo| {
        without_certificate(credentials);
        credentials.token = Some("wrong".to_owned().into());
    };
    assert_eq!(
        asked(&client(&running, wrong).await).await,
        401,
        "with a wrong token"
    );
    let none = |credentials: &mut AuthInfo| {
        without_certificate(credentials);
        credentials.token = None;
    };
    assert_eq!(asked(&client(&running, none).await).await, 403, "as nobody");
}

#[test]
fn person_is_told_the_line_to_copy() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut process = command(&directory)
        .args(["up", "--kubeconfig", "my config"])
        .spawn()
        .expect("the binary starts");
    let line = Lines::of(process.stdout.take().expect("stdout is piped"))
        .next_where(|line| line.contains("kubectl"));
    process.kill().expect("it runs");
    process.wait().expect("it ends");
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
fn kubeconfig_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let running = Running::start(&["--kubeconfig", "new/kubeconfig"]);
    let mode = |path: &str| {
        fs::metadata(running.directory.path().join(path))
            .expect("it exists")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!((mode("new"), mode("new/kubeconfig")), (0o700, 0o600));
}

#[cfg(unix)]
#[tokio::test]
async fn signal_ends_it_in_order() {
    for name in ["TERM", "INT"] {
        let mut running = Running::start(&[]);
        let client = client(&running, |_| {}).await;
        let watch = kube::core::Request::new("/api/v1/namespaces")
            .watch(&kube::api::WatchParams::default(), "0")
            .expect("a request");
        let events = client
            .request_events::<kube::core::DynamicObject>(watch)
            .await
            .expect("a watch");
        assert_eq!(
            signal(&mut running, name).code(),
            Some(0),
            "{name} with a watch open"
        );
        assert_eq!(log(&mut running), "", "nothing had to be cut");
        drop(events);
    }
}

#[tokio::test]
async fn ready_cluster_has_as_many_ready_nodes_as_asked() {
    for (more, nodes) in [
        (&[][..], 3),
        (&["--nodes", "5"], 5),
        (&["--nodes", "0"], 0),
        (&["--cluster", "core"], 0),
        (&["--cluster", "none"], 0),
    ] {
        let running = Running::start(more);
        let client = client(&running, |_| {}).await;
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
            "{more:?}: {list}"
        );
    }
}

#[cfg(unix)]
#[tokio::test]
async fn request_log_names_the_user_and_no_secret() {
    let mut running = Running::start(&["-vv", "--cluster", "none"]);
    let kubeconfig = fs::read_to_string(running.kubeconfig()).expect("a kubeconfig");
    let secrets: Vec<&str> = ["token: ", "client-key-data: "]
        .iter()
        .filter_map(|key| kubeconfig.split_once(key)?.1.lines().next())
        .collect();
    assert_eq!(asked(&client(&running, |_| {}).await).await, 200);
    signal(&mut running, "TERM");
    let log = log(&mut running);
    let line = log
        .lines()
        .find(|line| line.contains("answered"))
        .expect("the request is logged");
    for part in ["GET", "/api/v1/namespaces", "admin", "200", "duration"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(
        secrets
            .iter()
            .map(|secret| log.contains(secret))
            .collect::<Vec<_>>(),
        [false, false]
    );
}

#[test]
fn misuse_ends_with_code_2_and_one_line() {
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
    for (arguments, wanted) in cases {
        let (code, out, err) = ended(&directory, arguments);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (2, "", 1),
            "{arguments:?}: {err}"
        );
        assert!(
            err.starts_with(&format!("bellerophon: {wanted}")) && err.contains("--help"),
            "{arguments:?}: {err}"
        );
    }
    let filters = command(&directory)
        .arg("up")
        .env("RUST_LOG", "bellerophon=loud")
        .output()
        .expect("the binary starts");
    let err = String::from_utf8_lossy(&filters.stderr);
    assert!(
        filters.status.code() == Some(2)
            && err.starts_with("bellerophon: RUST_LOG=\"bellerophon=loud\" is not"),
        "{err}"
    );
    let (code, out, err) = ended(&directory, &[]);
    assert!(
        code == 2 && out.is_empty() && err.contains("Usage: bellerophon"),
        "{code}: {err}"
    );
    assert!(is_empty(directory.path()));
}

#[test]
fn taken_port_is_told_and_nothing_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let taken = TcpListener::bind("127.0.0.1:0")
        .expect("a free port")
        .local_addr()
        .expect("an address");
    let holder = TcpListener::bind(taken).expect("still free");
    let (code, out, err) = ended(&directory, &["up", "--listen", &taken.to_string()]);
    drop(holder);
    assert_eq!(
        (code, out.as_str(), err.lines().count()),
        (1, "", 1),
        "{err}"
    );
    assert!(
        err.starts_with(&format!("bellerophon: cannot listen on {taken}: "))
            && err.contains("choose another"),
        "{err}"
    );
    assert!(is_empty(directory.path()));
}

#[test]
fn unwritable_kubeconfig_is_told_and_nothing_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("folder")).expect("made");
    fs::write(directory.path().join("config"), "kind: Config\n").expect("written");
    let cases = [
        (
            "folder",
            "will not replace folder: it is not a regular file; name another file with --kubeconfig",
        ),
        (
            "config",
            "will not replace config: it was not written by bellerophon; name another file with --kubeconfig",
        ),
        (
            "config/kubeconfig",
            "cannot write kubeconfig config/kubeconfig: Not a directory (os error 20); name another file with --kubeconfig",
        ),
    ];
    for (path, wanted) in cases {
        let (code, out, err) = ended(&directory, &["up", "--kubeconfig", path]);
        assert_eq!(
            (code, out.as_str(), err.lines().count()),
            (1, "", 1),
            "{path}: {err}"
        );
        assert!(err.contains(wanted), "{path}: {err}");
    }
    assert!(is_empty(&directory.path().join("folder")));
    assert_eq!(
        fs::read_to_string(directory.path().join("config")).expect("still there"),
        "kind: Config\n"
    );
}

#[test]
fn demo_tells_who_woke_whom_and_what_they_wrote() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut process = command(&directory)
        .args(["up", "--demo", "--output", "json"])
        .spawn()
        .expect("the binary starts");
    let lines = Lines::of(process.stdout.take().expect("stdout is piped"));
    for part in [
        r#""event":"ready""#,
        "command apply Deployment.apps default/stable",
        "command apply SecSynch.tutorial.study.dev default/shared-login",
        "event   Deployment.apps default/stable added",
        "wakes   deployment-controller for default/stable",
        "writes  deployment-controller: ReplicaSet.apps default/stable-",
        "writes  replicaset-controller: Pod default/stable-",
        "writes  default-scheduler: binding to node-",
        "writes  kubelet: Pod default/stable-",
    ] {
        let line = lines.next_where(|line| line.contains(part));
        assert!(
            serde_json::from_str::<serde_json::Value>(&line).is_ok_and(|line| line.is_object()),
            "{line}"
        );
    }
    let (code, out, err) = ended(&directory, &["trace", "deploy/stable"]);
    let unknown = ended(&directory, &["trace", "deploy/unstable"]);
    process.kill().expect("it runs");
    process.wait().expect("it ends");
    assert_eq!((code, err.as_str()), (0, ""));
    let words = [
        " event   Deployment.apps default/stable added",
        " wakes ",
        " writes ",
    ];
    assert!(
        words.iter().all(|part| out.contains(part)) && !out.contains("Service"),
        "{out}"
    );
    let nothing = "bellerophon: nothing is known of deploy/unstable in namespace default; name it as kubectl does, or wait for it with --follow\n";
    assert_eq!(unknown, (1, String::new(), nothing.to_owned()));
}

#[test]
fn trace_of_what_tells_no_story_is_refused() {
    let bare = Running::start(&["--cluster", "none"]);
    let (code, out, err) = ended(&bare.directory, &["trace", "deploy/web"]);
    assert_eq!(
        (code, out.as_str(), err.lines().count()),
        (1, "", 1),
        "{err}"
    );
    assert!(
        err.starts_with("bellerophon: cannot trace deploy/web: ") && err.contains("bellerophon up"),
        "{err}"
    );
    let nowhere = tempfile::tempdir().expect("a directory");
    let (code, _, err) = ended(&nowhere, &["trace", "deploy/web"]);
    assert_eq!((code, err.lines().count()), (1, 1), "{err}");
    assert!(
        err.contains("cannot use kubeconfig .bellerophon/kubeconfig")
            && err.contains("--kubeconfig"),
        "{err}"
    );
}
