//! Operators: installation by manifests, reconciliation of the samples, and `bellerophon reboot`.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use tokio::time::Instant;

use crate::{
    kubectl::{Kubectl, KubectlTest, Setup, assert_in_order},
    running::TIMEOUT,
};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Cluster, manifests_install_operators_whose_pods_run),
        KubectlTest::new(Setup::Cluster, samples_are_reconciled_in_a_full_cluster),
        KubectlTest::new(Setup::Processes, operator_runs_in_a_pod_of_its_manifests),
        KubectlTest::new(Setup::Server, denial_of_a_webhook_is_printed),
        KubectlTest::new(Setup::Cluster, annotated_nodes_reboot_and_paused_nodes_wait),
    ]
}

/// The output of `bellerophon manifests LIST`.
fn manifests(list: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
        .args(["manifests", list])
        .output()
        .expect("the binary starts");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The operator is this binary in a pod: it finds the API server and its service account there, has
/// the permissions of the manifests only, and is ready by its probes.
fn operator_runs_in_a_pod_of_its_manifests(kubectl: &Kubectl) {
    let file = kubectl.write("manifests.yaml", &manifests("secsynch"));
    kubectl.run(&format!("apply -f {file}"));
    kubectl.run("rollout status deployment/secsynch -n bellerophon-system --timeout=60s");
    let sample = kubectl.write(
        "secsynch.yaml",
        include_str!("../../../../samples/secsynch.yaml"),
    );
    kubectl.run(&format!("apply -f {sample}"));
    let copies = "get secrets -n team-a -o jsonpath={.items[*].data.user}";
    kubectl.wait_until(copies, "YmVsbGVyb3Bob24=");
}

/// `bellerophon run` with webhooks, which has nothing else to set up.
fn denial_of_a_webhook_is_printed(kubectl: &Kubectl) {
    let file = kubectl.write("manifests.yaml", &manifests("icecream"));
    kubectl.run(&format!("apply -f {file}"));
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let run = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
        .args(["run", "icecream", "--kubeconfig"])
        .args([
            kubectl.server.kubeconfig(),
            &format!("--webhooks=https://{address}"),
        ])
        .stderr(Stdio::null())
        .spawn();
    let _operator = KillOnDrop(run.expect("the binary starts"));
    kubectl.run("create deployment taken --image=example");
    let sample = include_str!("../../../../samples/icecream.yaml");
    let taken = sample.replace("deploymentName: example-icecream", "deploymentName: taken");
    let file = kubectl.write("icecream.yaml", &taken);
    // The operator registers the webhook when it has started; until then the object is admitted.
    let start = Instant::now();
    let error = loop {
        let mut apply = kubectl.command(&format!("apply --dry-run=server -f {file}"));
        let output = apply.output().expect("kubectl starts");
        if !output.status.success() {
            break String::from_utf8_lossy(&output.stderr).into_owned();
        }
        assert!(start.elapsed() < TIMEOUT, "the webhook is not called");
    };
    assert_in_order(
        &error,
        &["admission webhook", "denied the request", "taken"],
    );
}

/// A process that does not outlive its test.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The process may have exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn manifests_install_operators_whose_pods_run(kubectl: &Kubectl) {
    let file = kubectl.write("manifests.yaml", &manifests("all,reboot-agent"));
    kubectl.run(&format!("apply -f {file}"));
    for operator in ["icecream", "secsynch", "simple", "reboot", "hero"] {
        kubectl.run(&format!(
            "rollout status deployment/{operator} -n bellerophon-system --timeout=60s"
        ));
        let account = format!("system:serviceaccount:bellerophon-system:{operator}");
        kubectl.check(&[(
            format!("auth can-i create events.events.k8s.io --as={account}").as_str(),
            "yes",
        )]);
        let line = format!("auth can-i create deployments.apps -n kube-system --as={account}");
        let can_create = kubectl.command(&line).output().expect("kubectl starts");
        assert_eq!(
            can_create.status.success(),
            ["icecream", "simple"].contains(&operator),
            "{operator}"
        );
    }
    assert_eq!(
        kubectl
            .table("get pods -n bellerophon-system --no-headers")
            .len(),
        10,
        "two replicas each"
    );
    kubectl.run("rollout status daemonset/reboot-agent -n bellerophon-nodes --timeout=60s");
    assert_eq!(
        kubectl
            .table("get pods -n bellerophon-nodes --no-headers")
            .len(),
        3,
        "one on each node"
    );
    kubectl.run(&format!("delete -f {file} --ignore-not-found --wait=false"));
}

fn samples_are_reconciled_in_a_full_cluster(kubectl: &Kubectl) {
    kubectl.run("apply -f icecream.yaml -f secsynch.yaml -f shero.yaml -f fruit.yaml");
    kubectl.run(
        "wait --for=condition=Ready icecream/example-icecream sheroes/philonoe \
             secsynch/shared-login --timeout=60s",
    );
    kubectl.check(&[
        (
            "get secret shared-login -n team-a -o jsonpath={.data.user}",
            "YmVsbGVyb3Bob24=",
        ),
        (
            "get fruits --field-selector spec.sweetness=true -o name",
            "fruit.user.k8sasdb.org/melon",
        ),
        (
            "scale icecream example-icecream --replicas=3",
            "icecream.controller.nicoleh.io/example-icecream scaled",
        ),
        (
            "wait --for=condition=Ready icecream/example-icecream --timeout=60s",
            "icecream.controller.nicoleh.io/example-icecream condition met",
        ),
    ]);
    assert_in_order(
        &kubectl.run("describe icecream example-icecream"),
        &[
            "Name: example-icecream",
            "Kind: Icecream",
            "Deployment Name: example-icecream",
            "Nodes:",
            "Synced",
            "Icecream synced successfully",
        ],
    );
    let error =
        kubectl.run_failing("patch fruit melon --type=merge -p {\"spec\":{\"comment\":\"\"}}");
    assert!(
        error.contains("a fruit of more than 1000 grams needs a comment"),
        "{error}"
    );
    kubectl.run("delete icecream,sheroes,secsynches --all --timeout=60s");
    kubectl.run("wait --for=delete secret/shared-login -n team-a --timeout=60s");
}

/// Runs `bellerophon reboot LINE`. Returns its output, or its error output if it fails.
fn reboot(kubectl: &Kubectl, line: &str) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellerophon"));
    let output = command
        .args(["reboot", "--kubeconfig", kubectl.server.kubeconfig()])
        .args(line.split(' '))
        .output()
        .expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

fn annotated_nodes_reboot_and_paused_nodes_wait(kubectl: &Kubectl) {
    let policy = serde_json::json!({
        "apiVersion": "reboot.bellerophon.io/v1alpha1", "kind": "RebootPolicy",
        "metadata": {"name": "all"},
        "spec": {"maxUnavailable": "100%", "settleSeconds": 0},
    });
    let file = kubectl.write("policy.json", &policy.to_string());
    kubectl.run(&format!("apply -f {file}"));
    let paused = reboot(kubectl, "pause node-3");
    assert_eq!(paused, Ok("node node-3 is paused\n".into()));
    let boots = "get nodes -o jsonpath={.items[*].status.nodeInfo.bootID}";
    let before = kubectl.run(boots);
    kubectl.run("annotate node --all reboot.bellerophon.io/reboot-needed=kernel");
    let annotations = |name: &str| {
        kubectl.run(&format!(
            "get node {name} -o jsonpath={{.metadata.annotations}}"
        ))
    };
    for node in ["node-1", "node-2"] {
        kubectl.wait_until(
            &format!("get node {node} -o jsonpath={{.spec.unschedulable}}"),
            "true",
        );
    }
    for node in ["node-1", "node-2"] {
        kubectl.wait_until(
            &format!("get node {node} -o jsonpath={{.spec.unschedulable}}"),
            "",
        );
        let annotations = annotations(node);
        assert!(annotations.contains("result=Done"), "{annotations}");
    }
    let after = kubectl.run(boots);
    let changed: Vec<bool> = before
        .split(' ')
        .zip(after.split(' '))
        .map(|(before, after)| before != after)
        .collect();
    assert_eq!(
        changed,
        [true, true, false],
        "the paused node has not rebooted: {before} {after}"
    );
    kubectl.wait_until(
        "get rebootledgers -o jsonpath={.items[*].spec.grants[*].node}",
        "",
    );
    let table = reboot(kubectl, "status").expect("a table");
    assert_in_order(
        &table,
        &[
            "NODE STATE SLOT REASON FOR LAST",
            "node-1 Idle",
            "Done",
            "node-3 Waiting Paused",
        ],
    );
    let not_held = reboot(kubectl, "release node-3");
    assert_eq!(
        not_held,
        Err("bellerophon: node node-3 holds no slot\n".into())
    );
    let unknown = reboot(kubectl, "request node-9");
    assert_eq!(unknown, Err("bellerophon: node node-9 not found\n".into()));
    let resumed = reboot(kubectl, "resume node-3");
    assert_eq!(resumed, Ok("node node-3 may reboot again\n".into()));
    kubectl.wait_until("get node node-3 -o jsonpath={.spec.unschedulable}", "true");
}
