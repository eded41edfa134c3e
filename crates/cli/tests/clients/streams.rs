//! Logs, exec, attach, cp and port-forward of pods that are local processes.
//!
//! Every stream is tested with SPDY and with WebSocket, as far as the version of kubectl has both.
//! BELLEROPHON_FULL_STREAMS=1 sends the amounts of data that take longer than the other tests.

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    thread,
};

use crate::{
    kubectl::{Kubectl, KubectlTest, Setup},
    running::{Lines, TIMEOUT},
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    let mut tests = vec![
        KubectlTest::new(Setup::Processes, logs_honour_every_option),
        KubectlTest::new(Setup::Processes, followed_log_ends_with_its_container),
        KubectlTest::new(Setup::Processes, exec_returns_exit_code_and_both_outputs),
        KubectlTest::new(Setup::Processes, exec_returns_binary_stdin_unchanged),
        KubectlTest::new(Setup::Processes, attach_reaches_the_main_process),
        KubectlTest::new(Setup::Processes, cp_copies_in_both_directions),
        KubectlTest::new(Setup::Processes, port_forward_carries_many_connections),
        KubectlTest::new(Setup::Processes, port_forward_reports_a_closed_port),
        KubectlTest::new(Setup::Processes, streams_need_their_own_permissions),
        // Older versions use an API that was removed in 1.25.
        KubectlTest::new(
            Setup::Processes,
            debug_attaches_to_a_container_beside_its_target,
        )
        .since(23),
        KubectlTest::new(Setup::Processes, debug_does_not_wait_for_a_simulated_pod).since(23),
        KubectlTest::new(Setup::Processes, sample_of_the_readme_serves_http),
    ];
    if cfg!(target_os = "linux") {
        let resizes = KubectlTest::new(Setup::Processes, exec_terminal_has_the_size_of_the_client);
        tests.push(resizes);
    }
    tests
}

/// The protocol that kubectl uses first. Versions before 1.29 know SPDY only.
#[derive(Clone, Copy, Debug)]
struct WebSockets(bool);

const BOTH: [WebSockets; 2] = [WebSockets(true), WebSockets(false)];

impl WebSockets {
    fn apply(self, command: &mut Command) {
        for variable in [
            "KUBECTL_REMOTE_COMMAND_WEBSOCKETS",
            "KUBECTL_PORT_FORWARD_WEBSOCKETS",
        ] {
            command.env(variable, self.0.to_string());
        }
    }

    /// `kubectl LINE -- sh -c SCRIPT`.
    fn shell(self, kubectl: &Kubectl, line: &str, script: &str) -> Command {
        let mut command = self.command(kubectl, line);
        command.args(["--", "sh", "-c", script]);
        command
    }

    fn command(self, kubectl: &Kubectl, line: &str) -> Command {
        let mut command = kubectl.command(line);
        self.apply(&mut command);
        command
    }
}

/// An amount of data: that of the default run, or the full one.
fn megabytes(default: usize, full: usize) -> usize {
    let is_full = env::var("BELLEROPHON_FULL_STREAMS").is_ok_and(|value| value == "1");
    (if is_full { full } else { default }) << 20
}

/// Bytes without a period of a power of two, so that a lost block is noticed.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(len);
    bytes
}

/// Creates a pod whose containers run shell scripts, and waits until they run.
fn create_pod(kubectl: &Kubectl, name: &str, containers: &[(&str, &str)]) {
    let containers: Vec<_> = containers
        .iter()
        .map(|(name, script)| {
            serde_json::json!({
                "name": name,
                "image": "busybox",
                "command": ["sh", "-c", script],
                "stdin": true,
            })
        })
        .collect();
    create(
        kubectl,
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": containers, "terminationGracePeriodSeconds": 1},
        }),
    );
}

/// Creates a pod and waits until it is ready.
fn create(kubectl: &Kubectl, pod: serde_json::Value) {
    let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
    let file = kubectl.write("pod.json", &pod.to_string());
    kubectl.run(&format!("apply -f {file}"));
    kubectl.run(&format!(
        "wait --for=condition=Ready pod/{name} --timeout=60s"
    ));
}

/// Runs until it is stopped.
const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a command whose stdin is these bytes.
fn output_with_stdin(mut command: Command, stdin: Vec<u8>) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl starts");
    let mut pipe = child.stdin.take().expect("stdin is piped");
    let writer = thread::spawn(move || pipe.write_all(&stdin));
    let output = child.wait_with_output().expect("kubectl ends");
    writer.join().expect("no panic").expect("stdin is read");
    output
}

/// A process that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A running kubectl. Its output is read until it ends: a write to a closed pipe would end it.
struct RunningKubectl {
    process: Running,
    stdout: Lines,
    stderr: Lines,
}

impl RunningKubectl {
    fn start(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("kubectl starts");
        let stdout = process.stdout.take().expect("stdout is piped");
        let stderr = process.stderr.take().expect("stderr is piped");
        Self {
            process: Running(process),
            stdout: Lines::new(stdout),
            stderr: Lines::new(stderr),
        }
    }

    /// Waits until it has ended with success.
    fn wait(&mut self) {
        let ended = self.process.0.wait().expect("kubectl ends");
        assert!(ended.success(), "{ended}");
    }

    /// Writes to its stdin, which stays open.
    fn write(&mut self, bytes: &[u8]) {
        let stdin = self.process.0.stdin.as_mut().expect("stdin is piped");
        stdin.write_all(bytes).expect("stdin is read");
    }
}

fn logs_honour_every_option(kubectl: &Kubectl) {
    let app = format!("echo one; echo two; echo three; {IDLE}");
    let other = format!("echo other; {IDLE}");
    create_pod(kubectl, "app", &[("app", &app), ("other", &other)]);
    kubectl.wait_until("logs app -c app", "one\ntwo\nthree");
    kubectl.wait_until("logs app -c other", "other");
    kubectl.check(&[
        ("logs app -c app --tail=2", "two\nthree"),
        ("logs app -c app --tail=0", ""),
        ("logs app -c app --tail=-1", "one\ntwo\nthree"),
        ("logs app -c app --since=1h", "one\ntwo\nthree"),
        ("logs app -c app --since-time=2100-01-01T00:00:00Z", ""),
        ("logs app -c app --limit-bytes=5", "one\nt"),
    ]);
    // kubectl reads the containers in the order of a Go map, which is random.
    let prefixed = kubectl.run("logs app --all-containers --prefix");
    let mut lines: Vec<&str> = prefixed.lines().collect();
    lines.sort_by_key(|line| line.starts_with("[pod/app/other]"));
    assert_eq!(
        lines,
        [
            "[pod/app/app] one",
            "[pod/app/app] two",
            "[pod/app/app] three",
            "[pod/app/other] other",
        ]
    );
    let dated = kubectl.run("logs app -c app --timestamps --tail=1");
    let (time, line) = dated.split_once(' ').expect("a time");
    assert_eq!(line, "three");
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{dated}");
    let error = kubectl.run_failing("logs app -c app --previous");
    assert!(
        error.contains("previous terminated container \"app\" in pod \"app\" not found"),
        "{error}"
    );
}

fn followed_log_ends_with_its_container(kubectl: &Kubectl) {
    let signal = kubectl.server.directory.path().join("end");
    let signal = signal.display();
    let script = format!(
        "echo run; while ! [ -e {signal} ]; do sleep 0.1; done; rm {signal}; echo end; exit 3"
    );
    create_pod(kubectl, "app", &[("app", &script)]);
    let mut follower = RunningKubectl::start(&mut kubectl.command("logs app --follow"));
    follower.stdout.next_matching(|line| line == "run");
    fs::write(signal.to_string(), "").expect("a file");
    follower.stdout.next_matching(|line| line == "end");
    follower.wait();
    kubectl.wait_until(
        "get pod app -o jsonpath={.status.containerStatuses[0].restartCount}",
        "1",
    );
    kubectl.check(&[("logs app --previous", "run\nend")]);
    kubectl.wait_until("logs app", "run");
}

fn exec_returns_exit_code_and_both_outputs(kubectl: &Kubectl) {
    create_pod(kubectl, "app", &[("app", IDLE)]);
    for protocol in BOTH {
        let script = "echo out; echo err >&2; exit 7";
        let output = protocol.shell(kubectl, "exec app", script).output();
        let output = output.expect("kubectl starts");
        assert_eq!(output.status.code(), Some(7), "{protocol:?}: {output:?}");
        assert_eq!(text(&output.stdout), "out\n", "{protocol:?}");
        assert_eq!(
            text(&output.stderr),
            "err\ncommand terminated with exit code 7\n",
            "{protocol:?}"
        );
        let missing = protocol.command(kubectl, "exec app -- no-such-program");
        let missing = output_with_stdin(missing, Vec::new());
        assert!(!missing.status.success(), "{protocol:?}");
        let error = text(&missing.stderr);
        assert!(error.contains("no-such-program"), "{protocol:?}: {error}");
    }
    let error = kubectl.run_failing("exec app -c other -- true");
    assert!(
        error.contains("container other is not valid for pod app"),
        "{error}"
    );
}

fn exec_returns_binary_stdin_unchanged(kubectl: &Kubectl) {
    create_pod(kubectl, "app", &[("app", IDLE)]);
    let sent = pattern(megabytes(10, 10), 1);
    for protocol in BOTH {
        let command = protocol.command(kubectl, "exec -i app -- cat");
        let output = output_with_stdin(command, sent.clone());
        let error = text(&output.stderr);
        assert!(output.status.success(), "{protocol:?}: {error}");
        let received = output.stdout.len();
        assert!(output.stdout == sent, "{protocol:?}: {received} bytes");
    }
}

/// Resizes the terminal of kubectl, and interrupts the command with Ctrl-C.
#[cfg(target_os = "linux")]
fn exec_terminal_has_the_size_of_the_client(kubectl: &Kubectl) {
    use rustix::process::{Pid, Signal, kill_process};

    create_pod(kubectl, "app", &[("app", IDLE)]);
    for protocol in BOTH {
        let (mut controller, terminal) = terminal::open(100, 40);
        let clone = || terminal.try_clone().expect("a descriptor");
        let script = "while sleep 0.1; do stty size; done";
        let mut command = protocol.shell(kubectl, "exec -it app", script);
        command
            .stdin(clone())
            .stdout(clone())
            .stderr(Stdio::piped());
        let mut exec = Running(command.spawn().expect("kubectl starts"));
        drop(command);
        let lines = Lines::new(controller.try_clone().expect("a descriptor"));
        lines.next_matching(|line| line.trim() == "40 100");
        terminal::resize(&controller, 120, 50);
        // kubectl has no controlling terminal here, so no other process sends the signal.
        kill_process(Pid::from_child(&exec.0), Signal::WINCH).expect("it runs");
        lines.next_matching(|line| line.trim() == "50 120");
        controller.write_all(b"\x03").expect("a terminal");
        let ended = exec.0.wait().expect("kubectl ends");
        assert_eq!(ended.code(), Some(130), "{protocol:?}");
    }
}

#[cfg(not(target_os = "linux"))]
fn exec_terminal_has_the_size_of_the_client(_: &Kubectl) {}

#[cfg(target_os = "linux")]
mod terminal {
    //! A pseudoterminal.

    use std::{fs::File, os::fd::OwnedFd};

    use rustix::{
        fs::{Mode, OFlags},
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::{Winsize, tcsetwinsize},
    };

    /// The two sides of a new terminal.
    pub(super) fn open(width: u16, height: u16) -> (File, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).expect("a terminal");
        grantpt(&controller).expect("a terminal");
        unlockpt(&controller).expect("a terminal");
        let name = ptsname(&controller, Vec::new()).expect("a terminal");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name, flags, Mode::empty()).expect("a terminal");
        let controller = File::from(controller);
        resize(&controller, width, height);
        (controller, terminal)
    }

    pub(super) fn resize(controller: &File, width: u16, height: u16) {
        let size = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(controller, size).expect("a terminal");
    }
}

fn attach_reaches_the_main_process(kubectl: &Kubectl) {
    let script = "while read -r line; do echo got $line; [ $line = quit ] && exit 0; done";
    create_pod(kubectl, "app", &[("app", script)]);
    for protocol in BOTH {
        let mut command = protocol.command(kubectl, "attach -i app");
        let mut attached = RunningKubectl::start(command.stdin(Stdio::piped()));
        attached.write(b"hello\n");
        attached.stdout.next_matching(|line| line == "got hello");
    }
    // The container outlives its clients.
    kubectl.check(&[(
        "get pod app -o jsonpath={.status.containerStatuses[0].restartCount}",
        "0",
    )]);
    let mut command = WebSockets(true).command(kubectl, "attach -i app");
    let mut attached = RunningKubectl::start(command.stdin(Stdio::piped()));
    attached.write(b"quit\n");
    attached.wait();
}

fn cp_copies_in_both_directions(kubectl: &Kubectl) {
    create_pod(kubectl, "app", &[("app", IDLE)]);
    let sent = pattern(megabytes(10, 50), 2);
    let directory = kubectl.server.directory.path();
    fs::write(directory.join("sent"), &sent).expect("a file");
    for protocol in BOTH {
        let path = |name: &str| directory.join(name).display().to_string();
        for (from, to) in [
            (path("sent"), format!("app:{}", path("copied"))),
            (format!("app:{}", path("copied")), path("received")),
        ] {
            let copied = protocol
                .command(kubectl, &format!("cp {from} {to}"))
                .output();
            let copied = copied.expect("kubectl starts");
            let error = text(&copied.stderr);
            assert!(copied.status.success(), "{protocol:?}: {error}");
        }
        let received = fs::read(path("received")).expect("a file");
        let len = received.len();
        assert!(received == sent, "{protocol:?}: {len} bytes");
        for name in ["copied", "received"] {
            fs::remove_file(path(name)).expect("a file");
        }
    }
}

/// Creates a pod with an HTTP server.
fn create_server(kubectl: &Kubectl) {
    create(
        kubectl,
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web"},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "web",
                    "image": "bellerophon/web",
                    "args": ["hello"],
                    "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1},
                }],
            },
        }),
    );
}

/// Starts a port-forward and returns its local port.
fn port_forward(command: &mut Command) -> (RunningKubectl, u16) {
    let forward = RunningKubectl::start(command);
    let line = forward
        .stdout
        .next_matching(|line| line.starts_with("Forwarding from 127.0.0.1:"));
    let port = line.split([':', ' ']).find_map(|word| word.parse().ok());
    (forward, port.expect("a port"))
}

/// Sends a request and returns the body of the response, which ends with the connection.
fn request(port: u16, head: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let len = body.len();
    let head = format!("{head} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n");
    let head = format!("{head}Content-Length: {len}\r\n\r\n");
    thread::scope(|scope| {
        let sent = scope.spawn(move || {
            stream.write_all(head.as_bytes())?;
            stream.write_all(body)
        });
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line != "HTTP/1.1 200 OK\r\n" {
            return Err(io::Error::other(format!("status {line:?}")));
        }
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let mut received = Vec::new();
        reader.read_to_end(&mut received)?;
        sent.join().expect("no panic")?;
        Ok(received)
    })
}

fn port_forward_carries_many_connections(kubectl: &Kubectl) {
    const CONNECTIONS: u64 = 100;
    create_server(kubectl);
    let len = megabytes(10, 100) / CONNECTIONS as usize;
    for protocol in BOTH {
        let mut command = protocol.command(kubectl, "port-forward pod/web :8080");
        let (forward, port) = port_forward(&mut command);
        let failures: Vec<String> = thread::scope(|scope| {
            let connection = |seed| {
                move || {
                    let sent = pattern(len, seed);
                    match request(port, "POST /echo", &sent) {
                        Err(error) => Some(format!("{seed}: {error}")),
                        Ok(received) if received != sent => {
                            Some(format!("{seed}: {} bytes differ", received.len()))
                        }
                        Ok(_) => None,
                    }
                }
            };
            let connections: Vec<_> = (0..CONNECTIONS)
                .map(|seed| scope.spawn(connection(seed)))
                .collect();
            let ended = connections.into_iter().map(|connection| connection.join());
            ended.filter_map(|ended| ended.expect("no panic")).collect()
        });
        let RunningKubectl {
            process, stderr, ..
        } = forward;
        drop(process);
        let errors: Vec<String> = stderr.0.iter().collect();
        assert!(
            failures.is_empty(),
            "{protocol:?}: {failures:?}: {errors:?}"
        );
    }
}

fn port_forward_reports_a_closed_port(kubectl: &Kubectl) {
    create_server(kubectl);
    for protocol in BOTH {
        let mut command = protocol.command(kubectl, "port-forward pod/web :81");
        let (forward, port) = port_forward(&mut command);
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let errors = &forward.stderr;
        let error = errors.next_matching(|line| line.contains("forwarding"));
        assert!(
            error.contains("failed to connect to localhost:81 inside namespace"),
            "{protocol:?}: {error}"
        );
        assert!(error.contains("connect: connection refused"), "{error}");
        // The client sees the end of its connection.
        let read = stream.read(&mut [0]);
        assert!(matches!(read, Ok(0) | Err(_)), "{protocol:?}: {read:?}");
    }
}

fn streams_need_their_own_permissions(kubectl: &Kubectl) {
    create_pod(kubectl, "app", &[("app", &format!("echo one; {IDLE}"))]);
    kubectl.run("create role reader --verb=get,list,watch --resource=pods");
    kubectl.run("create rolebinding reader --role=reader --user=rider");
    let cases = [
        ("logs app", "get", "pods/log"),
        ("exec app -- true", "create", "pods/exec"),
        ("attach app", "create", "pods/attach"),
        ("cp app:/etc/hostname hostname", "create", "pods/exec"),
        ("port-forward app :80", "create", "pods/portforward"),
    ];
    for protocol in BOTH {
        for (line, verb, resource) in cases {
            let line = format!("--as=rider {line}");
            let output = protocol.command(kubectl, &line).output();
            let output = output.expect("kubectl starts");
            let error = text(&output.stderr);
            assert!(!output.status.success(), "{protocol:?} {line}");
            let expected = format!("User \"rider\" cannot {verb} resource \"{resource}\"");
            assert!(error.contains(&expected), "{protocol:?} {line}: {error}");
        }
    }
    // A GET request, as of WebSocket clients, needs the verb create as well.
    kubectl.run("create role getter --verb=get --resource=pods/exec");
    kubectl.run("create rolebinding getter --role=getter --user=rider");
    let path = "/api/v1/namespaces/default/pods/app/exec?command=true&stdout=true";
    let error = kubectl.run_failing(&format!("get --raw {path} --as=rider"));
    assert!(error.contains("orbidden"), "{error}");
    kubectl.run("create role executor --verb=create --resource=pods/exec");
    kubectl.run("create rolebinding executor --role=executor --user=rider");
    for protocol in BOTH {
        let output = protocol
            .shell(kubectl, "exec --as=rider app", "echo ok")
            .output();
        let output = output.expect("kubectl starts");
        assert_eq!(text(&output.stdout), "ok\n", "{protocol:?}: {output:?}");
    }
}

fn debug_attaches_to_a_container_beside_its_target(kubectl: &Kubectl) {
    create_pod(kubectl, "app", &[("app", IDLE)]);
    let reason = "{.status.conditions[?(@.type==\"PodIsolation\")].reason}";
    let tier = kubectl.run(&format!("get node node-1 -o jsonpath={reason}"));
    for protocol in BOTH {
        let name = if protocol.0 { "first" } else { "second" };
        let line = format!("debug -i app --image=busybox --container={name} --target=app");
        let script = "read line; echo got $line; tr '\\0' ' ' < /proc/1/cmdline";
        let command = protocol.shell(kubectl, &line, script);
        let output = output_with_stdin(command, b"hello\n".to_vec());
        let stdout = text(&output.stdout);
        assert!(stdout.contains("got hello\n"), "{output:?}");
        if tier == "TierA" {
            assert!(stdout.contains("trap"), "{output:?}");
        }
        let state = format!(
            "{{.status.ephemeralContainerStatuses[?(@.name==\"{name}\")].state.terminated.reason}}"
        );
        kubectl.check(&[(&format!("get pod app -o jsonpath={state}"), "Completed")]);
    }
}

fn debug_does_not_wait_for_a_simulated_pod(kubectl: &Kubectl) {
    create(
        kubectl,
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "app"},
            "spec": {
                "runtimeClassName": "simulated",
                "containers": [{"name": "app", "image": "nginx"}],
            },
        }),
    );
    let error = kubectl.run_failing("debug app --image=busybox --stdin -- true");
    assert!(error.contains("is terminated"), "{error}");
    let message = "{.status.ephemeralContainerStatuses[0].state.terminated.message}";
    kubectl.check(&[(
        &format!("get pod app -o jsonpath={message}"),
        "simulated pods run no ephemeral containers; start the cluster with `bellerophon up --runtime process`",
    )]);
}

fn sample_of_the_readme_serves_http(kubectl: &Kubectl) {
    kubectl.run("apply -f web.yaml");
    kubectl.run("rollout status deployment web --timeout=60s");
    let mut command = kubectl.command("port-forward service/web :80");
    let (_forward, port) = port_forward(&mut command);
    let body = text(&request(port, "GET /", b"").expect("a response"));
    let pod = body.lines().find_map(|line| line.strip_prefix("pod: web-"));
    let pod = pod.unwrap_or_else(|| panic!("a pod in {body}"));
    assert!(body.starts_with("Hello from a pod!\n"), "{body}");
    assert!(body.contains("\nnode: node-"), "{body}");
    let log = kubectl.run(&format!("logs web-{pod}"));
    assert!(log.starts_with("listening on "), "{log}");
    assert!(log.contains("GET / from "), "{log}");
}
