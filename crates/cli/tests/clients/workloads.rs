//! Deployments: scale, rollout and wait. Without controllers, the tests write the status.

use serde_json::json;

use crate::kubectl::{Kubectl, KubectlTest, Setup, assert_in_order};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Server, deployment_is_scaled_updated_and_described),
        KubectlTest::new(Setup::Server, rollout_status_waits_for_completion),
        KubectlTest::new(Setup::Server, rollout_undo_restores_a_revision),
        KubectlTest::new(Setup::Server, wait_ends_on_its_condition_or_timeout),
        KubectlTest::new(Setup::Cluster, full_cluster_rolls_out_back_and_deletes),
    ]
}

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/stable";

fn deployment_is_scaled_updated_and_described(kubectl: &Kubectl) {
    kubectl.check(&[
        ("apply -f deployment.yaml", "deployment.apps/stable created"),
        (
            "scale deployment stable --replicas=3",
            "deployment.apps/stable scaled",
        ),
        (
            "get deployment stable -o jsonpath={.spec.replicas}/{.metadata.generation}",
            "3/2",
        ),
        (
            "set image deployment/stable horse=registry.example/pegasus:2",
            "deployment.apps/stable image updated",
        ),
        (
            "set env deployment/stable SPEED=high",
            "deployment.apps/stable env updated",
        ),
        (
            "set resources deployment/stable --limits=cpu=200m",
            "deployment.apps/stable resource requirements updated",
        ),
    ]);
    let table = kubectl.table("get deployments -o wide");
    assert_eq!(
        table[0],
        "NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR"
    );
    assert!(table[1].starts_with("stable 0/3 0 0 "), "{table:?}");
    assert!(
        table[1].ends_with("horse registry.example/pegasus:2 app=stable"),
        "{table:?}"
    );
    assert_in_order(
        &kubectl.run("describe deployment stable"),
        &[
            "Name: stable",
            "Namespace: default",
            "Labels: app=stable",
            "Replicas: 3 desired",
            "StrategyType: RollingUpdate",
            "Containers: horse:",
            "Limits: cpu: 200m",
            "SPEED: high",
        ],
    );
    let error = kubectl.run_failing("scale deployment stable --current-replicas=9 --replicas=1");
    assert!(
        error
            .to_lowercase()
            .contains("expected replicas to be 9, was 3"),
        "{error}"
    );
    if kubectl.is_from(24) {
        let scale = kubectl.table("get deployment stable --subresource=scale");
        assert_eq!(scale[0], "NAME DESIRED AVAILABLE AGE");
        assert!(scale[1].starts_with("stable 3 0 "), "{scale:?}");
    }
}

fn rollout_status_waits_for_completion(kubectl: &Kubectl) {
    kubectl.run("apply -f deployment.yaml");
    let waiting = kubectl
        .command("rollout status deployment stable --timeout=1s")
        .output()
        .expect("kubectl starts");
    assert!(!waiting.status.success(), "the status is not written yet");
    kubectl.write_status(
        DEPLOYMENT,
        json!({
            "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1,
            "readyReplicas": 1, "availableReplicas": 1,
            "conditions": [{"type": "Available", "status": "True"}],
        }),
    );
    kubectl.check(&[
        (
            "rollout status deployment stable --timeout=60s",
            "deployment \"stable\" successfully rolled out",
        ),
        (
            "wait --for=condition=Available deployment/stable --timeout=60s",
            "deployment.apps/stable condition met",
        ),
        (
            "rollout pause deployment stable",
            "deployment.apps/stable paused",
        ),
        (
            "rollout resume deployment stable",
            "deployment.apps/stable resumed",
        ),
        (
            "rollout restart deployment stable",
            "deployment.apps/stable restarted",
        ),
    ]);
    let annotations =
        kubectl.run("get deployment stable -o jsonpath={.spec.template.metadata.annotations}");
    assert!(
        annotations.contains("kubectl.kubernetes.io/restartedAt"),
        "{annotations}"
    );
}

fn rollout_undo_restores_a_revision(kubectl: &Kubectl) {
    kubectl.run("apply -f deployment.yaml");
    let uid = kubectl.run("get deployment stable -o jsonpath={.metadata.uid}");
    for revision in ["1", "2"] {
        let labels = json!({"app": "stable", "pod-template-hash": format!("h{revision}")});
        let image = format!("registry.example/pegasus:{revision}");
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "name": "stable", "uid": uid, "controller": true,
        });
        let replica_set = json!({
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": format!("stable-h{revision}"),
                "labels": labels,
                "annotations": {
                    "deployment.kubernetes.io/revision": revision,
                    "kubernetes.io/change-cause": format!("cause {revision}"),
                },
                "ownerReferences": [owner],
            },
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "horse", "image": image}]},
                },
            },
        });
        let file = kubectl.write(&format!("set-{revision}.json"), &replica_set.to_string());
        kubectl.run(&format!("create -f {file}"));
    }
    kubectl.run("set image deployment/stable horse=registry.example/pegasus:2");
    kubectl.run("annotate deployment stable deployment.kubernetes.io/revision=2");
    assert_in_order(
        &kubectl.run("rollout history deployment stable"),
        &["REVISION CHANGE-CAUSE", "1 cause 1", "2 cause 2"],
    );
    assert_in_order(
        &kubectl.run("rollout history deployment stable --revision=1"),
        &["revision #1", "registry.example/pegasus:1"],
    );
    kubectl.check(&[
        (
            "rollout undo deployment stable",
            "deployment.apps/stable rolled back",
        ),
        (
            "get deployment stable -o jsonpath={.spec.template.spec.containers[0].image}",
            "registry.example/pegasus:1",
        ),
    ]);
    let error = kubectl.run_failing("rollout undo deployment stable --to-revision=9");
    assert!(
        error.contains("unable to find specified revision 9"),
        "{error}"
    );
}

fn wait_ends_on_its_condition_or_timeout(kubectl: &Kubectl) {
    kubectl.run("apply -f deployment.yaml");
    let error =
        kubectl.run_failing("wait --for=condition=Available deployment/stable --timeout=1s");
    assert!(
        error.contains("timed out waiting for the condition"),
        "{error}"
    );
    let waiting = kubectl
        .command("wait --for=delete deployment/stable --timeout=60s")
        .spawn()
        .expect("kubectl starts");
    kubectl.run("delete deployment stable --wait=false");
    let finished = waiting.wait_with_output().expect("kubectl exits");
    assert!(finished.status.success(), "{finished:?}");
    if kubectl.is_from(27) {
        kubectl.check(&[
            ("apply -f deployment.yaml", "deployment.apps/stable created"),
            (
                "wait --for=jsonpath={.spec.replicas}=1 deployment/stable --timeout=60s",
                "deployment.apps/stable condition met",
            ),
        ]);
    }
}

fn full_cluster_rolls_out_back_and_deletes(kubectl: &Kubectl) {
    let check_rollout = |image: &str| {
        let status = kubectl.run("rollout status deployment stable --timeout=60s");
        assert!(
            status.ends_with("deployment \"stable\" successfully rolled out"),
            "{status}"
        );
        kubectl.check(&[(
            "get deployment stable -o jsonpath={.spec.template.spec.containers[0].image}",
            image,
        )]);
    };
    kubectl.run("apply -f deployment.yaml");
    check_rollout("registry.example/pegasus:1");
    kubectl.run("scale deployment stable --replicas=3");
    kubectl.run("set image deployment/stable horse=registry.example/pegasus:2");
    check_rollout("registry.example/pegasus:2");
    kubectl.run("wait --for=condition=Ready pod -l app=stable --timeout=60s");
    assert!(kubectl.table("get deployment stable")[1].starts_with("stable 3/3 3 3 "));
    assert_in_order(
        &kubectl.run("rollout history deployment stable"),
        &["REVISION CHANGE-CAUSE", "1", "2"],
    );
    kubectl.check(&[(
        "rollout undo deployment stable",
        "deployment.apps/stable rolled back",
    )]);
    check_rollout("registry.example/pegasus:1");
    kubectl.check(&[(
        "rollout restart deployment stable",
        "deployment.apps/stable restarted",
    )]);
    check_rollout("registry.example/pegasus:1");
    kubectl.run("delete deployment stable --cascade=foreground --timeout=60s");
    kubectl.check(&[("get replicasets,pods -l app=stable -o name", "")]);
}
