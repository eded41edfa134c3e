//! Logs, exec, attach and port-forward of kube-rs, over HTTPS, in pods that are local processes.
//!
//! Every test runs with namespaces, where the system offers them, and without.

use futures_util::{AsyncBufReadExt as _, SinkExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess, LogParams, PostParams, TerminalSize};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use crate::process_nodes::{OPTIONS, is_ready, wait_for_pod};
use crate::running::{RunningServer, TIMEOUT};

/// The environment of `up` for both tiers.
const TIERS: [&[(&str, &str)]; 2] = [&[], &[("BELLEROPHON_TIER", "B")]];

/// Runs until it is stopped.
const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A cluster with a pod that runs this container.
struct PodOfTier {
    pods: Api<Pod>,
    /// Killed on drop.
    _server: RunningServer,
}

impl PodOfTier {
    async fn start(env: &[(&str, &str)], container: Value) -> Self {
        let server = RunningServer::start_with(&OPTIONS, env);
        let client = server.client().await;
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let mut container = container;
        container["name"] = json!("app");
        let pod = json!({
            "metadata": {"name": "app"},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let created = pods.create(&PostParams::default(), &pod).await;
        created.expect("it is created");
        wait_for_pod(&client, is_ready).await;
        Self {
            pods,
            _server: server,
        }
    }

    /// A pod that runs a shell script.
    async fn script(env: &[(&str, &str)], script: &str) -> Self {
        let container = json!({"image": "helper/a", "args": ["-c", script], "stdin": true});
        Self::start(env, container).await
    }

    async fn exec(&self, command: &[&str], parameters: &AttachParams) -> AttachedProcess {
        let process = self.pods.exec("app", command.iter().copied(), parameters);
        process.await.expect("a process")
    }
}

async fn read_all(mut source: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, source.read_to_end(&mut bytes)).await;
    read.expect("it ends").expect("it is read");
    bytes
}

/// Reads until a text occurs.
async fn read_until(source: &mut (impl AsyncRead + Unpin), expected: &str) -> String {
    let mut text = String::new();
    let read = async {
        while !text.contains(expected) {
            let mut buffer = [0; 1024];
            let len = source.read(&mut buffer).await.expect("it is read");
            assert_ne!(len, 0, "it ended after {text:?}");
            text.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
    };
    let read = tokio::time::timeout(TIMEOUT, read).await;
    read.expect("it is printed");
    text
}

/// The status of a process that has ended.
async fn status(process: &mut AttachedProcess) -> Status {
    let status = process.take_status().expect("the status is not taken");
    let status = tokio::time::timeout(TIMEOUT, status).await;
    status.expect("it ends").expect("a status")
}

/// Bytes without a short period.
fn pattern(len: usize) -> Vec<u8> {
    let byte = |index: usize| (index ^ (index >> 8) ^ (index >> 16)) as u8;
    (0..len).map(byte).collect()
}

#[tokio::test]
async fn exec_returns_output_and_exit_code() {
    for env in TIERS {
        let pod = PodOfTier::script(env, IDLE).await;
        let parameters = AttachParams::default().stdout(true).stderr(true);
        let command = ["sh", "-c", "echo out; echo err >&2; exit 7"];
        let mut process = pod.exec(&command, &parameters).await;
        let stdout = process.stdout().expect("stdout");
        let stderr = process.stderr().expect("stderr");
        let (stdout, stderr) = tokio::join!(read_all(stdout), read_all(stderr));
        assert_eq!(stdout, b"out\n");
        assert_eq!(stderr, b"err\n");
        let status = status(&mut process).await;
        assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));
        let causes = status.details.and_then(|details| details.causes);
        let causes = causes.unwrap_or_default();
        assert_eq!(causes[0].message.as_deref(), Some("7"));
        process.join().await.expect("it is closed");
    }
}

#[tokio::test]
async fn exec_returns_stdin_unchanged() {
    for env in TIERS {
        let pod = PodOfTier::script(env, IDLE).await;
        let parameters = AttachParams::default().stdin(true).stderr(false);
        let sent = pattern(4 << 20);
        let len = sent.len().to_string();
        // kube-rs cannot close stdin, so the command reads a number of bytes.
        let mut process = pod.exec(&["head", "-c", &len], &parameters).await;
        let mut stdin = process.stdin().expect("stdin");
        let stdout = process.stdout().expect("stdout");
        let (written, received) = tokio::join!(stdin.write_all(&sent), read_all(stdout));
        written.expect("it is read");
        assert!(received == sent, "{} bytes", received.len());
        assert_eq!(
            status(&mut process).await.status.as_deref(),
            Some("Success")
        );
    }
}

#[tokio::test]
async fn exec_resizes_the_terminal() {
    for env in TIERS {
        let pod = PodOfTier::script(env, IDLE).await;
        let command = ["sh", "-c", "while sleep 0.1; do stty size; done"];
        let mut process = pod.exec(&command, &AttachParams::interactive_tty()).await;
        let mut sizes = process.terminal_size().expect("a terminal");
        let mut stdin = process.stdin().expect("stdin");
        let mut stdout = process.stdout().expect("stdout");
        for (width, height) in [(100, 40), (120, 50)] {
            let sent = sizes.send(TerminalSize { width, height }).await;
            sent.expect("it is sent");
            read_until(&mut stdout, &format!("{height} {width}")).await;
        }
        // Ctrl-C.
        stdin.write_all(b"\x03").await.expect("it is read");
        let status = status(&mut process).await;
        let causes = status.details.and_then(|details| details.causes);
        let causes = causes.unwrap_or_default();
        assert_eq!(causes[0].message.as_deref(), Some("130"));
    }
}

#[tokio::test]
async fn attach_reaches_the_main_process() {
    let script = "while read -r line; do echo got $line; [ $line = quit ] && exit 0; done";
    for env in TIERS {
        let pod = PodOfTier::script(env, script).await;
        let parameters = AttachParams::default().stdin(true).stderr(false);
        let attach = async || {
            let process = pod.pods.attach("app", &parameters).await;
            process.expect("a process")
        };
        let mut process = attach().await;
        let mut stdin = process.stdin().expect("stdin");
        let mut stdout = process.stdout().expect("stdout");
        stdin.write_all(b"hello\n").await.expect("it is read");
        read_until(&mut stdout, "got hello\n").await;
        process.abort();
        // The container outlives its client.
        let mut process = attach().await;
        let mut stdin = process.stdin().expect("stdin");
        let stdout = process.stdout().expect("stdout");
        stdin.write_all(b"quit\n").await.expect("it is read");
        assert_eq!(read_all(stdout).await, b"got quit\n");
    }
}

#[tokio::test]
async fn logs_are_read_and_followed() {
    for env in TIERS {
        let script = "echo one; echo two; read -r line; echo $line; sleep 600";
        let pod = PodOfTier::script(env, script).await;
        let follow = LogParams {
            follow: true,
            tail_lines: Some(1),
            ..LogParams::default()
        };
        // Both lines are written, but the container does not wait for its log.
        let all = LogParams {
            follow: true,
            ..LogParams::default()
        };
        let lines = pod.pods.log_stream("app", &all).await.expect("a log");
        let mut lines = lines.lines();
        for expected in ["one", "two"] {
            let line = tokio::time::timeout(TIMEOUT, lines.try_next()).await;
            let line = line.expect("a line").expect("no error");
            assert_eq!(line.as_deref(), Some(expected));
        }
        let tail = pod.pods.log_stream("app", &follow).await.expect("a log");
        let mut tail = tail.lines();
        let parameters = AttachParams::default()
            .stdin(true)
            .stdout(false)
            .stderr(false);
        let attached = pod.pods.attach("app", &parameters).await;
        let mut attached = attached.expect("a process");
        let mut stdin = attached.stdin().expect("stdin");
        stdin.write_all(b"three\n").await.expect("it is read");
        for expected in ["two", "three"] {
            let line = tokio::time::timeout(TIMEOUT, tail.try_next()).await;
            let line = line.expect("a line").expect("no error");
            assert_eq!(line.as_deref(), Some(expected));
        }
    }
}

#[tokio::test]
async fn port_forward_reaches_the_program() {
    for env in TIERS {
        let container = json!({
            "image": "bellerophon/web",
            "args": ["hello"],
            "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1},
        });
        let pod = PodOfTier::start(env, container).await;
        let sent = pattern(1 << 20);
        let forwarder = pod.pods.portforward("app", &[8080, 81]).await;
        let mut forwarder = forwarder.expect("a port-forward");
        let stream = forwarder.take_stream(8080).expect("a stream");
        let (mut reader, mut writer) = tokio::io::split(stream);
        let head = format!(
            "POST /echo HTTP/1.1\r\nHost: web\r\nContent-Length: {}\r\n\r\n",
            sent.len()
        );
        let write = async {
            writer.write_all(head.as_bytes()).await.expect("it is read");
            writer.write_all(&sent).await.expect("it is read");
        };
        let read = async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(reader.read_u8().await.expect("a header"));
            }
            let mut received = vec![0; sent.len()];
            reader.read_exact(&mut received).await.expect("a body");
            (String::from_utf8_lossy(&head).into_owned(), received)
        };
        let ((), (head, received)) = tokio::join!(write, read);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(received == sent);
        let error = forwarder.take_error(81).expect("an error");
        let error = tokio::time::timeout(TIMEOUT, error).await;
        let error = error.expect("an error").expect("a text");
        assert!(error.contains("connect: connection refused"), "{error}");
    }
}
