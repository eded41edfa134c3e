//! `kubectl bellerophon`, and the kustomize base in kubectl.

use std::{env, fs, process::Command};

use tokio::time::Instant;

use crate::kubectl::{Kubectl, KubectlTest, Setup, assert_in_order};
use crate::running::TIMEOUT;

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Server, kustomize_base_is_rendered_and_applied),
        KubectlTest::new(Setup::Cluster, plugin_shows_operators_and_causes),
        KubectlTest::new(Setup::Server, plugin_explains_what_a_bare_server_lacks),
    ]
}

fn kustomize_base_is_rendered_and_applied(kubectl: &Kubectl) {
    let base = kubectl.server.directory.path().join("base");
    let output = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
        .args([
            "manifests",
            "all,reboot-agent",
            "--format",
            "kustomize",
            "--out",
        ])
        .arg(&base)
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{output:?}");
    let rendered = kubectl.run(&format!("kustomize {}", base.display()));
    let mut kinds: Vec<&str> = rendered
        .lines()
        .filter_map(|line| line.strip_prefix("kind: "))
        .collect();
    kinds.sort_unstable();
    let printed = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
        .args(["manifests", "all,reboot-agent"])
        .output()
        .expect("the binary starts");
    let printed = String::from_utf8(printed.stdout).expect("UTF-8");
    let mut expected: Vec<&str> = printed
        .lines()
        .filter_map(|line| line.strip_prefix("kind: "))
        .collect();
    expected.sort_unstable();
    assert_eq!(kinds, expected);
    let overlay = kubectl.server.directory.path().join("overlay");
    fs::create_dir_all(&overlay).expect("created");
    let kustomization = "resources: [../base]\nimages:\n- name: bellerophon\n  newName: \
                         registry.example/bellerophon\n  newTag: v1\n";
    fs::write(overlay.join("kustomization.yaml"), kustomization).expect("written");
    // Server-side: a client-side apply stores CRDs in an annotation, which has a size limit.
    kubectl.run(&format!("apply --server-side -k {}", overlay.display()));
    kubectl.check(&[
        (
            "get deployment icecream -n bellerophon-system -o \
             jsonpath={.spec.template.spec.containers[0].image}",
            "registry.example/bellerophon:v1",
        ),
        (
            "get crd icecreams.controller.nicoleh.io -o jsonpath={.spec.names.kind}",
            "Icecream",
        ),
    ]);
}

/// Runs `kubectl bellerophon LINE`. Returns its output, or its error output if it fails.
fn plugin(kubectl: &Kubectl, line: &str) -> Result<String, String> {
    let directory = kubectl.server.directory.path().join("plugins");
    let link = directory.join("kubectl-bellerophon");
    if !link.exists() {
        fs::create_dir_all(&directory).expect("created");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bellerophon"), &link).expect("linked");
    }
    let mut paths = vec![directory];
    paths.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let output = kubectl
        .program()
        .env("PATH", env::join_paths(paths).expect("a PATH"))
        .env("KUBECONFIG", kubectl.server.kubeconfig())
        .arg("bellerophon")
        .args(line.split(' '))
        .output()
        .expect("kubectl starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    }
}

fn plugin_shows_operators_and_causes(kubectl: &Kubectl) {
    kubectl.run("apply -f icecream.yaml");
    kubectl.run("wait --for=condition=Ready icecream/example-icecream --timeout=60s");
    let status = plugin(kubectl, "status").expect("a status");
    assert_in_order(
        &status,
        &["OPERATOR", "icecream - - Icecream 1 1", "reboot-agent"],
    );

    let why = plugin(kubectl, "why deployment/example-icecream --last 20").expect("an answer");
    assert_in_order(
        &why,
        &[
            "Deployment.apps default/example-icecream at",
            "written by controller icecream, which reconciled default/example-icecream",
            "because of (added)",
            "Icecream.controller.nicoleh.io default/example-icecream at",
            "by kubectl",
        ],
    );
    let trace = plugin(kubectl, "trace icecream/example-icecream").expect("a timeline");
    assert!(trace.contains("enqueues icecream"), "{trace}");
    let queue = plugin(kubectl, "queue").expect("a table");
    assert_in_order(&queue, &["CONTROLLER", "deployment", "icecream", "CACHE"]);
    let reboots = plugin(kubectl, "reboot status").expect("a table");
    assert_in_order(&reboots, &["NODE", "STATE", "Idle"]);

    // An object that is not ready is named with its reason. The Deployment exists and has no owner.
    kubectl.run("create deployment taken --image=web");
    let file = kubectl.write(
        "taken.yaml",
        &include_str!("../../../../samples/icecream.yaml").replace("example-icecream", "taken"),
    );
    kubectl.run(&format!("apply -f {file}"));
    let start = Instant::now();
    loop {
        let status = plugin(kubectl, "status").expect("a status");
        if status.contains("Icecream default/taken: ErrResourceExists") {
            break;
        }
        assert!(start.elapsed() < TIMEOUT, "{status}");
    }
    let error = plugin(kubectl, "why deployment/missing").expect_err("no such object");
    assert!(error.contains("no write of deployment/missing"), "{error}");
    let error = plugin(kubectl, "wy").expect_err("a usage error");
    assert!(error.contains("kubectl bellerophon --help"), "{error}");
}

fn plugin_explains_what_a_bare_server_lacks(kubectl: &Kubectl) {
    let status = plugin(kubectl, "status").expect("a status");
    assert_in_order(&status, &["icecream", "Icecream not installed"]);
}
