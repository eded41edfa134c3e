//! `bellerophon new`: the files of a project. `cargo xtask user-crate` builds and tests one.

use std::fs;

use crate::running::command;

#[test]
fn project_is_written_once_and_never_overwritten() {
    let directory = tempfile::tempdir().expect("a directory");
    let new = |arguments: &[&str]| {
        let output = command(&directory).arg("new").args(arguments).output();
        output.expect("the binary starts")
    };
    let output = new(&["hero", "--group", "team.example.com"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("in 7 files"), "{text}");
    assert!(text.contains("next: cd hero && bellerophon dev"), "{text}");
    let read = |path: &str| fs::read_to_string(directory.path().join(path)).expect("written");
    assert!(read("hero/sample.yaml").contains("team.example.com/v1alpha1"));
    assert!(read("hero/Cargo.toml").contains("crates/toolkit"));
    let again = new(&["hero"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("hero exists"));
    for (language, file) in [("--go", "main.go"), ("--python", "operator.py")] {
        let name = format!("a{language}");
        assert!(new(&[&name, language]).status.success());
        assert!(read(&format!("{name}/{file}")).contains("example.com"));
    }
}

#[test]
fn webhook_is_a_file_of_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = ["new", "gate", "--webhook", "--finalizer", "--kind", "Door"];
    let output = command(&directory).args(options).output();
    let output = output.expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("in 8 files"), "{output:?}");
    let read = |path: &str| fs::read_to_string(directory.path().join(path)).expect("written");
    assert!(read("gate/src/webhook.rs").contains("mgr.webhook::<Door>()"));
    assert!(read("gate/src/main.rs").contains("webhooks: Some(webhook::declare)"));
    assert!(read("gate/src/main.rs").contains("FinalizerEvent"));
    assert!(read("gate/tests/faults.rs").contains("start_with_webhooks"));
    assert!(read("gate/Cargo.toml").contains("features = [\"webhooks\"]"));
}

#[test]
fn webhook_of_a_go_project_is_registered_by_a_manifest() {
    let directory = tempfile::tempdir().expect("a directory");
    let group = "team.example.com";
    let options = ["new", "gate", "--go", "--webhook", "--group", group];
    let output = command(&directory).args(options).output();
    let output = output.expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("in 8 files"), "{output:?}");
    let read = |path: &str| fs::read_to_string(directory.path().join(path)).expect("written");
    for path in ["mutate", "validate"] {
        let path = format!("/{path}-team-example-com-v1alpha1-gate");
        assert!(read("gate/webhook.go").contains(&path));
        assert!(read("gate/webhook.yaml").contains(&path));
    }
    assert!(read("gate/main.go").contains("registerWebhooks(mgr)"));
}

#[test]
fn wrong_names_and_toolkits_are_usage_errors() {
    let directory = tempfile::tempdir().expect("a directory");
    for (arguments, hint) in [
        (&["Hero"][..], "lower-case"),
        (&["hero", "--kind", "hero"], "upper-case"),
        (&["hero", "--group", "example"], "DNS name"),
        (&["hero", "--toolkit", "."], "checkout"),
        (&["hero", "--finalizer", "--go"], "cannot be used with"),
        (&["hero", "--webhook", "--python"], "cannot be used with"),
    ] {
        let output = command(&directory).arg("new").args(arguments).output();
        let output = output.expect("the binary starts");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(hint), "{arguments:?}: {text}");
    }
    assert!(!directory.path().join("hero").exists());
}
