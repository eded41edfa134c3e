//! A Go program with client-go's typed and dynamic clients, informers and leader election against the real binary.
//! Without Go, or where its modules cannot be had, the test says so and passes; with BELLEROPHON_REQUIRE_GO=1 it fails.

use std::{
    env,
    path::Path,
    process::{Command, Output},
};

use crate::running::Running;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/clientgo");

fn go(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new("go")
        .current_dir(SOURCES)
        .args(arguments)
        .output()
}

/// Whether Go is there and has every module of the program, or why not.
fn ready() -> Result<(), String> {
    match go(&["mod", "download"]) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "modules cannot be had: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("go cannot be started: {error}")),
    }
}

#[test]
fn go_clients_find_every_promise_kept() {
    if let Err(why) = ready() {
        let required = env::var("BELLEROPHON_REQUIRE_GO").is_ok_and(|value| value == "1");
        assert!(!required, "{why}, and BELLEROPHON_REQUIRE_GO=1 asks for it");
        eprintln!("skipped: {why}");
        return;
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clientgo");
    let built = go(&[
        "build",
        "-o",
        program.to_str().expect("a path in text"),
        ".",
    ])
    .expect("go was started before");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let server = Running::start(&["--cluster", "none"]);
    let output = Command::new(program)
        .args(["--kubeconfig", server.kubeconfig()])
        .output()
        .expect("the program starts");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        told.lines().count() > 20 && told.lines().all(|line| line.starts_with("kept: ")),
        "{told}"
    );
}
