//! `bellerophon store`: a member, its keys, a backup and its restore.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Output},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{Lines, command};

/// A member of a store without TLS on loopback, killed on drop.
struct Member {
    process: Child,
    endpoint: String,
    peer: String,
}

impl Member {
    fn start(directory: &TempDir, data: &Path) -> Self {
        let mut process = command(directory)
            .args(["store", "serve", "--output", "json", "--data"])
            .arg(data)
            .args(["--client-listen", "127.0.0.1:0"])
            .args(["--peer-listen", "127.0.0.1:0"])
            .args(["--health-listen", "127.0.0.1:0"])
            .spawn()
            .expect("the binary starts");
        let lines = Lines::new(process.stdout.take().expect("stdout is piped"));
        let line = lines.next_matching(|line| line.contains(r#""serving""#));
        let serving: Value = serde_json::from_str(&line).expect("JSON");
        let text = |name: &str| serving[name].as_str().expect("an address").to_owned();
        Self {
            process,
            endpoint: format!("http://{}", text("clientAddress")),
            peer: text("peerAddress"),
        }
    }

    /// SIGTERM, and the exit code.
    fn terminate(&mut self) -> Option<i32> {
        let pid = Pid::from_raw(self.process.id().cast_signed()).expect("a process id");
        kill_process(pid, Signal::TERM).expect("the member runs");
        self.process.wait().expect("the member ends").code()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Commands {
    directory: TempDir,
}

impl Commands {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn output(&self, member: Option<&Member>, arguments: &[&str]) -> Output {
        let mut command = command(&self.directory);
        command.arg("store").args(arguments);
        if let Some(member) = member {
            command.args(["--endpoints", &member.endpoint, "--timeout", "20"]);
        }
        command.output().expect("the binary starts")
    }

    /// The output of a command that succeeds.
    fn run(&self, member: Option<&Member>, arguments: &[&str]) -> String {
        let output = self.output(member, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, member: Option<&Member>, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--output", "json"]].concat();
        serde_json::from_str(&self.run(member, &arguments)).expect("JSON")
    }

    /// The exit code and the message of a command that fails.
    fn fail(&self, member: Option<&Member>, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.output(member, arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    }

    fn initialized(&self, data: &str) -> Member {
        let member = Member::start(&self.directory, &self.path(data));
        let arguments = ["member", "initialize", "--cluster-id", "c1", "--address"];
        self.run(Some(&member), &[&arguments[..], &[&member.peer]].concat());
        member
    }
}

#[test]
fn keys_are_written_listed_and_deleted() {
    let commands = Commands::new();
    let mut member = commands.initialized("data");
    let m = Some(&member);
    assert_eq!(commands.run(m, &["put", "a/1", "one"]), "revision 1\n");
    assert_eq!(commands.run(m, &["put", "a/2", "two"]), "revision 2\n");
    assert_eq!(commands.run(m, &["get", "a/1"]), "one");
    let item = commands.json(m, &["get", "a/2"]);
    assert_eq!(item["modRevision"], 2);
    assert_eq!(item["value"], "dHdv");
    let listed = commands.run(m, &["list", "a/"]);
    let keys: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split('\t').next())
        .collect();
    assert_eq!(keys, ["a/1", "a/2"]);
    assert_eq!(commands.run(m, &["delete", "a/1"]), "revision 3\n");
    let (code, message) = commands.fail(m, &["get", "a/1"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        message,
        "bellerophon: key a/1 does not exist; `bellerophon store list` prints the keys\n"
    );
    let (code, message) = commands.fail(m, &["put", "a/2", "x", "--if-revision", "0"]);
    assert_eq!(code, Some(1));
    assert!(
        message.starts_with("bellerophon: cannot write key a/2: "),
        "{message}"
    );
    let status = commands.json(m, &["status"]);
    assert_eq!(status["status"]["role"], "Leader");
    assert_eq!(status["status"]["revision"], 3);
    assert_eq!(member.terminate(), Some(0));
}

#[test]
fn backup_is_restored_as_a_new_cluster() {
    let commands = Commands::new();
    let member = commands.initialized("data");
    commands.run(Some(&member), &["put", "a", "one"]);
    let file = commands.path("backup");
    let result = commands.path("result");
    let file = file.to_str().expect("text");
    let result_text = result.to_str().expect("text");
    let backup = ["backup", "--output", file, "--result", result_text];
    let printed: Value = serde_json::from_str(&commands.run(Some(&member), &backup)).expect("JSON");
    let written: Value =
        serde_json::from_slice(&fs::read(&result).expect("the result")).expect("JSON");
    assert_eq!(printed, written);
    assert_eq!(printed["revision"], 1);
    let verified = commands.json(None, &["snapshot", "verify", file]);
    assert_eq!(verified["checksum"], printed["checksum"]);
    drop(member);

    let data = commands.path("restored");
    let data = data.to_str().expect("text");
    let restore = [
        "restore",
        "--data",
        data,
        "--file",
        file,
        "--cluster-id",
        "c2",
    ];
    let restore = [
        &restore[..],
        &["--address", "127.0.0.1:1", "--min-revision", "41"],
    ]
    .concat();
    let restored = commands.json(None, &restore);
    assert_eq!(restored["revision"], 42);
    let member = Member::start(&commands.directory, Path::new(data));
    assert_eq!(commands.run(Some(&member), &["get", "a"]), "one");
    assert_eq!(
        commands.run(Some(&member), &["put", "a", "two"]),
        "revision 43\n"
    );
    let status = commands.json(Some(&member), &["status"]);
    assert_eq!(status["status"]["clusterId"], "c2");
    let (code, message) = commands.fail(Some(&member), &["watch", "--from", "1"]);
    assert_eq!(code, Some(1));
    assert!(message.contains("compacted"), "{message}");
}

#[test]
fn damaged_backup_is_refused_and_leaves_nothing() {
    let commands = Commands::new();
    let member = commands.initialized("data");
    commands.run(Some(&member), &["put", "a", "one"]);
    let file = commands.path("backup");
    let text = file.to_str().expect("text");
    commands.run(Some(&member), &["backup", "--output", text]);
    let mut bytes = fs::read(&file).expect("the backup");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("a damaged backup");
    let (code, message) = commands.fail(None, &["snapshot", "verify", text]);
    assert_eq!(code, Some(1));
    assert!(message.starts_with("bellerophon: snapshot "), "{message}");
    let data = commands.path("restored");
    let restore = [
        "restore",
        "--data",
        data.to_str().expect("text"),
        "--file",
        text,
    ];
    let restore = [
        &restore[..],
        &["--cluster-id", "c2", "--address", "127.0.0.1:1"],
    ]
    .concat();
    let (code, _) = commands.fail(None, &restore);
    assert_eq!(code, Some(1));
    assert!(!data.exists());
}

#[test]
fn failed_backup_leaves_its_reason_and_no_file() {
    let commands = Commands::new();
    let file = commands.path("backup");
    let result = commands.path("result");
    let arguments = [
        "backup",
        "--output",
        file.to_str().expect("text"),
        "--result",
        result.to_str().expect("text"),
        // Nothing listens there.
        "--endpoints",
        "http://127.0.0.1:1",
        "--timeout",
        "1",
    ];
    let (code, message) = commands.fail(None, &arguments);
    assert_eq!(code, Some(1));
    assert!(message.contains("http://127.0.0.1:1"), "{message}");
    let written: Value =
        serde_json::from_slice(&fs::read(&result).expect("the result")).expect("JSON");
    assert!(written["error"].is_string(), "{written}");
    assert!(!file.exists());
    let (code, message) = commands.fail(None, &["get", "a", "--endpoints", "https://a:1"]);
    assert_eq!(code, Some(2), "{message}");
}

#[test]
fn member_without_tls_serves_loopback_only() {
    let commands = Commands::new();
    let data = commands.path("data");
    let arguments = ["serve", "--data", data.to_str().expect("text")];
    let arguments = [&arguments[..], &["--client-listen", "0.0.0.0:0"]].concat();
    let (code, message) = commands.fail(None, &arguments);
    assert_eq!(code, Some(1));
    assert_eq!(
        message,
        "bellerophon: 0.0.0.0:0 is not a loopback address, and TLS is missing; configure it, or \
         set --insecure\n"
    );
}
