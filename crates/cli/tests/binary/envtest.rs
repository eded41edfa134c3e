//! The programs of `bellerophon envtest`, without Go. With Go, `tests/clients` runs them by
//! controller-runtime.

use std::{
    fs,
    io::Read as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
};

use tempfile::TempDir;

use crate::{
    running::{Lines, TIMEOUT, command},
    waiting::await_condition,
};

/// A directory of test binaries that is removed with this value.
struct Assets {
    root: TempDir,
    path: PathBuf,
}

impl Assets {
    fn create(options: &[&str]) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let output = command(&root)
            .args(["envtest", "--print", "path", "--bin-dir", "."])
            .args(options)
            .output()
            .expect("the binary starts");
        assert!(output.status.success(), "{output:?}");
        let path = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(!path.ends_with('\n'), "{path:?}");
        Self {
            root,
            path: path.into(),
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.path.join(program));
        command.current_dir(&self.root).env_remove("RUST_LOG");
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let output = self.command(program).args(arguments).output();
        output.expect("the program starts")
    }
}

/// A process that is killed with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// The first line of the response of an HTTP server without TLS.
fn status_line(port: u16, path: &str) -> Option<String> {
    use std::io::Write as _;
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.lines().next().map(str::to_owned)
}

#[test]
fn directory_is_printed_as_path_and_for_the_shell() {
    let assets = Assets::create(&[]);
    let text = |options: &[&str]| {
        let output = command(&assets.root)
            .args(["envtest", "--bin-dir", "."])
            .args(options)
            .output()
            .expect("the binary starts");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let path = assets.path.display();
    assert_eq!(
        text(&["--print", "env"]),
        format!("export KUBEBUILDER_ASSETS='{path}'\n")
    );
    assert!(text(&[]).contains("ENVTEST_USE_ENV=1"));
    let core = Assets::create(&["--profile", "core"]);
    assert!(core.path.parent().is_some_and(|p| p.ends_with("core/k8s")));
}

#[test]
fn help_exits_with_success_and_names_no_insecure_port() {
    let assets = Assets::create(&[]);
    for program in ["kube-apiserver", "etcd"] {
        let output = assets.run(program, &["--help"]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("--insecure-port"), "{text}");
    }
    let version = assets.run("kube-apiserver", &["--version"]);
    assert_eq!(version.stdout, b"Kubernetes v1.36.4\n");
}

#[test]
fn etcd_is_healthy_on_every_client_url_and_takes_flags_in_all_forms() {
    let assets = Assets::create(&[]);
    let ports = [free_port(), free_port()];
    let urls = ports
        .map(|port| format!("http://127.0.0.1:{port}"))
        .join(",");
    let mut etcd = assets.command("etcd");
    etcd.args([
        "-data-dir",
        "d",
        "--wal-dir=w",
        "",
        "--no-such-flag",
        "--listen-client-urls",
    ]);
    let _etcd = Running(
        etcd.arg(urls)
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    for port in ports {
        await_condition("etcd is healthy", || {
            status_line(port, "/health").is_some_and(|line| line.contains("200"))
        });
        assert!(status_line(port, "/nosuch").is_some_and(|line| line.contains("404")));
    }
}

#[test]
fn taken_address_ends_the_programs() {
    let assets = Assets::create(&[]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let url = format!("http://127.0.0.1:{port}");
    for (program, flags) in [
        ("kube-apiserver", ["--secure-port", port.as_str()]),
        ("etcd", ["--listen-client-urls", url.as_str()]),
    ] {
        let output = assets.run(program, &flags);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("cannot listen on 127.0.0.1"), "{text}");
    }
}

#[test]
fn unknown_flags_are_warnings() {
    let assets = Assets::create(&[]);
    let mut server = assets.command("kube-apiserver");
    server.args([
        "--secure-port=0",
        "--no-such-flag",
        "x",
        "--egress-selector-config-file=f",
    ]);
    let mut server = Running(server.stderr(Stdio::piped()).spawn().expect("it starts"));
    let lines = Lines::new(server.0.stderr.take().expect("stderr is piped"));
    lines.next_matching(|line| line.contains("unknown flag --no-such-flag=x; ignored"));
    lines.next_matching(|line| line.contains("--egress-selector-config-file=f is not supported"));
}

/// The programs used to run until the machine was restarted if a test was killed.
#[test]
fn programs_end_with_the_process_that_started_them() {
    let assets = Assets::create(&[]);
    let path = assets.path.display();
    let ports = [free_port(), free_port()];
    let [etcd, server] = ports;
    let script = format!(
        "{path}/etcd --listen-client-urls http://127.0.0.1:{etcd} & {path}/kube-apiserver \
         --secure-port={server} & wait"
    );
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &script]).stdout(Stdio::piped());
    let mut shell = Running(shell.stderr(Stdio::null()).spawn().expect("sh starts"));
    let mut stdout = shell.0.stdout.take().expect("stdout is piped");
    for port in ports {
        await_condition("the programs listen", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }
    drop(shell);
    // Both have the other end of the pipe: it is closed when both ended.
    let (ended, wait) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut rest = Vec::new();
        ended.send(stdout.read_to_end(&mut rest))
    });
    let read = wait.recv_timeout(TIMEOUT);
    assert!(read.is_ok_and(|read| read.is_ok()), "the programs run on");
}

#[test]
fn kubectl_leaves_other_commands_to_the_one_of_the_path() {
    let assets = Assets::create(&[]);
    let bin = assets.root.path().join("bin");
    fs::create_dir(&bin).expect("created");
    let program = bin.join("kubectl");
    fs::write(&program, "#!/bin/sh\necho real \"$@\"\n").expect("written");
    make_executable(&program);
    let with_path = |path: &str, arguments: &[&str]| {
        let mut kubectl = assets.command("kubectl");
        let output = kubectl.args(arguments).env("PATH", path).output();
        output.expect("it starts")
    };
    // The directory itself comes first: its kubectl must not run itself.
    let path = format!("{}:{}:/usr/bin:/bin", assets.path.display(), bin.display());
    let output = with_path(&path, &["get", "pods", "-A"]);
    assert_eq!(output.stdout, b"real get pods -A\n", "{output:?}");
    let output = with_path(&assets.path.display().to_string(), &["get", "pods"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("install kubectl"), "{text}");
}

#[cfg(unix)]
fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("allowed");
}
