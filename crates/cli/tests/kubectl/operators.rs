//! Operators as people meet them: installed by their manifests, and at work on the samples.

use std::process::Command;

use crate::driver::{Kubectl, assert_in_order};

/// What `bellerophon manifests LIST` prints.
fn manifests(list: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
        .args(["manifests", list])
        .output()
        .expect("the binary starts");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn manifests_install_operators_whose_pods_run() {
    Kubectl::each_in_cluster(|kubectl| {
        let file = kubectl.write("manifests.yaml", &manifests("all,reboot-agent"));
        kubectl.run(&format!("apply -f {file}"));
        for operator in ["icecream", "secsynch", "simple", "reboot"] {
            kubectl.run(&format!(
                "rollout status deployment/{operator} -n bellerophon-system --timeout=60s"
            ));
            let account = format!("system:serviceaccount:bellerophon-system:{operator}");
            kubectl.check(&[(
                format!("auth can-i create events.events.k8s.io --as={account}").as_str(),
                "yes",
            )]);
            assert_eq!(
                kubectl
                    .command(&format!(
                        "auth can-i create deployments.apps -n kube-system --as={account}"
                    ))
                    .output()
                    .expect("kubectl")
                    .status
                    .success(),
                ["icecream", "simple"].contains(&operator)
            );
        }
        assert_eq!(
            kubectl
                .table("get pods -n bellerophon-system --no-headers")
                .len(),
            8,
            "two copies each"
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
    });
}

#[test]
fn samples_come_true_in_a_whole_cluster() {
    Kubectl::each_in_cluster(|kubectl| {
        kubectl.run("apply -f icecream.yaml -f secsynch.yaml -f shero.yaml -f fruit.yaml");
        kubectl.run("wait --for=condition=Ready icecream/example-icecream sheroes/philonoe secsynch/shared-login --timeout=60s");
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
        let refused =
            kubectl.refused("patch fruit melon --type=merge -p {\"spec\":{\"comment\":\"\"}}");
        assert!(
            refused.contains("a fruit of more than 1000 grams needs a comment"),
            "{refused}"
        );
        kubectl.run("delete icecream,sheroes,secsynches --all --timeout=60s");
        kubectl.run("wait --for=delete secret/shared-login -n team-a --timeout=60s");
    });
}

/// What `bellerophon reboot LINE` prints.
fn reboot(kubectl: &Kubectl, line: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellerophon"));
    let output = command
        .args(["reboot", "--kubeconfig", kubectl.server.kubeconfig()])
        .args(line.split(' '))
        .output()
        .expect("the binary starts");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8(said).expect("text"),
    )
}

#[test]
fn marked_nodes_reboot_and_come_back_as_they_were() {
    Kubectl::each_in_cluster(|kubectl| {
        let policy = r#"{"apiVersion":"reboot.bellerophon.io/v1alpha1","kind":"RebootPolicy","metadata":{"name":"all"},"spec":{"maxUnavailable":"100%","settleSeconds":0}}"#;
        kubectl.run(&format!(
            "apply -f {}",
            kubectl.write("policy.json", policy)
        ));
        assert_eq!(
            reboot(kubectl, "pause node-3"),
            (true, "node node-3 is paused\n".into())
        );
        let boots = "get nodes -o jsonpath={.items[*].status.nodeInfo.bootID}";
        let before = kubectl.run(boots);
        kubectl.run("annotate node --all reboot.bellerophon.io/reboot-needed=kernel");
        let done = |name: &str| format!("get node {name} -o jsonpath={{.metadata.annotations}}");
        for node in ["node-1", "node-2"] {
            kubectl.until(
                &format!("get node {node} -o jsonpath={{.spec.unschedulable}}"),
                "true",
            );
        }
        for node in ["node-1", "node-2"] {
            kubectl.until(
                &format!("get node {node} -o jsonpath={{.spec.unschedulable}}"),
                "",
            );
            assert!(
                kubectl.run(&done(node)).contains("result=Done"),
                "{}",
                kubectl.run(&done(node))
            );
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
            "a paused node stays: {before} {after}"
        );
        kubectl.until(
            "get rebootledgers -o jsonpath={.items[*].spec.grants[*].node}",
            "",
        );
        let (_, table) = reboot(kubectl, "status");
        assert_in_order(
            &table,
            &[
                "NODE STATE SLOT REASON FOR LAST",
                "node-1 Idle",
                "Done",
                "node-3 Waiting Paused",
            ],
        );
        assert_eq!(
            reboot(kubectl, "release node-3"),
            (false, "bellerophon: node node-3 holds no slot\n".into())
        );
        assert_eq!(
            reboot(kubectl, "request node-9"),
            (false, "bellerophon: there is no node node-9\n".into())
        );
        assert_eq!(
            reboot(kubectl, "resume node-3"),
            (true, "node node-3 may reboot again\n".into())
        );
        kubectl.until("get node node-3 -o jsonpath={.spec.unschedulable}", "true");
    });
}
