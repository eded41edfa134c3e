//! Operators as people meet them: installed by their manifests, and at work on the samples.

use std::process::Command;

use crate::driver::{Kubectl, assert_in_order};

/// What `bellerophon manifests LIST` prints, without what needs the kinds of the Prometheus operator.
fn manifests(list: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_bellerophon")).args(["manifests", list]).output().expect("the binary starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let documents: Vec<&str> = text.split("---\n").filter(|document| !document.contains("kind: ServiceMonitor")).collect();
    documents.join("---\n")
}

#[test]
fn manifests_install_operators_whose_pods_run() {
    Kubectl::each_in_cluster(|kubectl| {
        let file = kubectl.write("manifests.yaml", &manifests("all"));
        kubectl.run(&format!("apply -f {file}"));
        for operator in ["icecream", "secsynch", "simple"] {
            kubectl.run(&format!("rollout status deployment/{operator} -n bellerophon-system --timeout=60s"));
            let account = format!("system:serviceaccount:bellerophon-system:{operator}");
            kubectl.check(&[(format!("auth can-i create events.events.k8s.io --as={account}").as_str(), "yes")]);
            assert_eq!(
                kubectl
                    .command(&format!("auth can-i create deployments.apps -n kube-system --as={account}"))
                    .output()
                    .expect("kubectl")
                    .status
                    .success(),
                operator != "secsynch"
            );
        }
        assert_eq!(kubectl.table("get pods -n bellerophon-system --no-headers").len(), 6, "two copies each");
        kubectl.run(&format!("delete -f {file} --ignore-not-found --wait=false"));
    });
}

#[test]
fn samples_come_true_in_a_whole_cluster() {
    Kubectl::each_in_cluster(|kubectl| {
        kubectl.run("apply -f icecream.yaml -f secsynch.yaml -f shero.yaml -f fruit.yaml");
        kubectl.run("wait --for=condition=Ready icecream/example-icecream sheroes/philonoe secsynch/shared-login --timeout=60s");
        kubectl.check(&[
            ("get secret shared-login -n team-a -o jsonpath={.data.user}", "YmVsbGVyb3Bob24="),
            ("get fruits --field-selector spec.sweetness=true -o name", "fruit.user.k8sasdb.org/melon"),
            ("scale icecream example-icecream --replicas=3", "icecream.controller.nicoleh.io/example-icecream scaled"),
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
        let refused = kubectl.refused("patch fruit melon --type=merge -p {\"spec\":{\"comment\":\"\"}}");
        assert!(refused.contains("a fruit of more than 1000 grams needs a comment"), "{refused}");
        kubectl.run("delete icecream,sheroes,secsynches --all --timeout=60s");
        kubectl.run("wait --for=delete secret/shared-login -n team-a --timeout=60s");
    });
}
