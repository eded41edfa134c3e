//! `bellerophon doctor`.

use std::process::{Command, Output};

use serde_json::Value;

use crate::running::{RunningServer, command};

/// The names of all checks, in order. `veth` is checked in tier A only.
const NAMES: [&str; 8] = [
    "namespaces",
    "veth",
    "limits",
    "ports",
    "kubectl",
    "kubeconfig",
    "open files",
    "disk",
];

fn doctor(options: &[&str]) -> Output {
    doctor_with(options, &[])
}

fn doctor_with(options: &[&str], env: &[(&str, &str)]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = command(&directory);
    let command = command
        .arg("doctor")
        .args(options)
        .env_remove("BELLEROPHON_TIER");
    let command = command.envs(env.iter().copied());
    command.output().expect("the binary starts")
}

/// The checks of JSON output, by name.
fn checks(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let parse = |line| serde_json::from_str(line).expect("one JSON object per line");
    text.lines().map(parse).collect()
}

fn check<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    let found = checks.iter().find(|check| check["check"] == name);
    found.unwrap_or_else(|| panic!("no check {name} in {checks:?}"))
}

#[test]
fn every_check_is_a_line_with_its_status() {
    let text = doctor(&[]);
    let stderr = String::from_utf8_lossy(&text.stderr);
    assert_eq!(text.status.code(), Some(0), "{stderr}");
    let json = doctor(&["--output", "json"]);
    let json = checks(&json);
    let lines = String::from_utf8_lossy(&text.stdout);
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(lines.len(), json.len());
    for (line, check) in lines.iter().zip(&json) {
        let name = check["check"].as_str().expect("a name");
        let status = check["status"].as_str().expect("a status");
        assert!(NAMES.contains(&name), "{check}");
        assert!(["ok", "warn"].contains(&status), "{check}");
        assert!(line.starts_with(status), "{line}");
        assert!(line.contains(name), "{line}");
        assert!(check["message"].is_string(), "{check}");
    }
    for name in NAMES.into_iter().filter(|name| *name != "veth") {
        check(&json, name);
    }
}

#[test]
fn forced_tier_b_is_a_warning() {
    let output = doctor_with(&["--output", "json"], &[("BELLEROPHON_TIER", "B")]);
    assert_eq!(output.status.code(), Some(0));
    let checks = checks(&output);
    let namespaces = check(&checks, "namespaces");
    assert_eq!(namespaces["status"], "warn");
    let message = namespaces["message"].as_str().expect("a message");
    assert!(message.starts_with("tier B"), "{message}");
}

/// The number of user namespaces is limited per user namespace, so a test can forbid them to its
/// own child without privileges.
#[cfg(target_os = "linux")]
#[test]
fn forbidden_namespaces_name_the_sysctl() {
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" doctor --output json";
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--user", "--map-root-user", "sh", "-c", forbid])
        .arg(env!("CARGO_BIN_EXE_bellerophon"));
    let mut output = unshare.output().expect("unshare starts");
    let is_forbidden_here = output.stdout.is_empty();
    if is_forbidden_here {
        output = doctor(&["--output", "json"]);
    }
    let checks = checks(&output);
    let namespaces = check(&checks, "namespaces");
    assert_eq!(namespaces["status"], "warn", "{namespaces}");
    let message = namespaces["message"].as_str().expect("a message");
    let remedy = "`sudo sysctl -w user.max_user_namespaces=15000`";
    let is_named = message.contains(remedy);
    assert!(is_named || is_forbidden_here, "{message}");
    assert!(message.starts_with("tier B"), "{message}");
}

#[test]
fn kubeconfig_of_a_running_cluster_is_reported() {
    let server = RunningServer::start(&["--cluster", "none"]);
    let kubeconfig = server.kubeconfig();
    let output = doctor(&["--output", "json", "--kubeconfig", kubeconfig]);
    let checks = checks(&output);
    let found = check(&checks, "kubeconfig");
    assert_eq!(found["status"], "warn", "{found}");
    let message = found["message"].as_str().expect("a message");
    let url = server.ready["server"].as_str().expect("a URL");
    assert!(message.contains(url), "{message}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn failed_check_is_exit_code_1() {
    let output = doctor(&["--kubeconfig", "/dev/null/kubeconfig"]);
    assert_eq!(output.status.code(), Some(1));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout.lines().find(|line| line.starts_with("fail"));
    let line = line.expect("a failed check");
    assert!(line.contains("pass another --kubeconfig"), "{line}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.starts_with("bellerophon: checks failed: kubeconfig"),
        "{stderr}"
    );
}
