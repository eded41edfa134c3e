//! Client-side and server-side apply, diff, and validation.

use crate::kubectl::{Kubectl, KubectlTest, Setup, assert_in_order};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Server, apply_and_diff_report_changes),
        KubectlTest::new(
            Setup::Server,
            field_removed_from_the_configuration_is_deleted,
        ),
        KubectlTest::new(Setup::Server, server_side_apply_tracks_field_managers),
        KubectlTest::new(Setup::Server, server_side_apply_migrates_client_side_apply).since(26),
        KubectlTest::new(
            Setup::Server,
            validation_rejects_unknown_fields_and_wrong_types,
        ),
    ]
}

fn apply_and_diff_report_changes(kubectl: &Kubectl) {
    assert!(
        kubectl
            .diff("diff -f deployment.yaml")
            .contains("+kind: Deployment"),
        "the object is new"
    );
    kubectl.check(&[
        (
            "apply --dry-run=server -f deployment.yaml",
            "deployment.apps/stable created (server dry run)",
        ),
        ("apply -f deployment.yaml", "deployment.apps/stable created"),
        (
            "apply -f deployment.yaml",
            "deployment.apps/stable unchanged",
        ),
    ]);
    assert_eq!(kubectl.diff("diff -f deployment.yaml"), "");
    kubectl.run("scale deployment stable --replicas=7");
    let difference = kubectl.diff("diff -f deployment.yaml");
    assert!(difference.contains("-  replicas: 7"), "{difference}");
    assert!(difference.contains("+  replicas: 1"), "{difference}");
    kubectl.check(&[
        (
            "apply -f deployment.yaml",
            "deployment.apps/stable configured",
        ),
        ("get deployment stable -o jsonpath={.spec.replicas}", "1"),
    ]);
}

fn field_removed_from_the_configuration_is_deleted(kubectl: &Kubectl) {
    let configuration = |data: &str| {
        let text =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {data}\n");
        kubectl.write("c.yaml", &text)
    };
    for flags in ["", "--server-side "] {
        kubectl.run(&format!(
            "apply {flags}-f {}",
            configuration("{a: a, b: b}")
        ));
        kubectl.run(&format!("apply {flags}-f {}", configuration("{a: a}")));
        kubectl.check(&[("get configmap c -o jsonpath={.data}", r#"{"a":"a"}"#)]);
        kubectl.run("delete configmap c");
    }
}

fn server_side_apply_tracks_field_managers(kubectl: &Kubectl) {
    let file = |replicas: u32| {
        let object = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        });
        kubectl.write(&format!("web-{replicas}.json"), &object.to_string())
    };
    let two = file(2);
    let three = file(3);
    kubectl.check(&[(
        &format!("apply --server-side -f {two}"),
        "deployment.apps/web serverside-applied",
    )]);
    let conflict = kubectl.run_failing(&format!(
        "apply --server-side --field-manager=other -f {three}"
    ));
    assert_in_order(
        &conflict,
        &[
            "Apply failed with 1 conflict: conflict with \"kubectl\"",
            ".spec.replicas",
        ],
    );
    let difference = kubectl.diff(&format!("diff --server-side --force-conflicts -f {three}"));
    assert!(difference.contains("+  replicas: 3"), "{difference}");
    kubectl.run(&format!(
        "apply --server-side --field-manager=other --force-conflicts -f {three}"
    ));
    let object = kubectl.json("get --raw /apis/apps/v1/namespaces/default/deployments/web");
    let managed_fields = object["metadata"]["managedFields"]
        .as_array()
        .expect("managed fields");
    let has_replicas = |manager: &str| {
        let mut entries = managed_fields.iter();
        let entry = entries.find(|entry| entry["manager"] == manager);
        let entry = entry.expect("the manager has applied");
        entry["fieldsV1"]["f:spec"].get("f:replicas").is_some()
    };
    assert!(has_replicas("other"), "{managed_fields:?}");
    assert!(!has_replicas("kubectl"), "{managed_fields:?}");
}

fn server_side_apply_migrates_client_side_apply(kubectl: &Kubectl) {
    kubectl.check(&[
        ("apply -f settings.yaml", "configmap/settings created"),
        (
            "apply --server-side -f settings.yaml",
            "configmap/settings serverside-applied",
        ),
    ]);
    let object = kubectl.json("get --raw /api/v1/namespaces/default/configmaps/settings");
    let managers: Vec<&str> = object["metadata"]["managedFields"]
        .as_array()
        .expect("managed fields")
        .iter()
        .filter_map(|entry| entry["manager"].as_str())
        .collect();
    assert!(managers.contains(&"kubectl"), "{managers:?}");
    assert!(
        !managers.contains(&"kubectl-client-side-apply"),
        "{managers:?}"
    );
}

fn validation_rejects_unknown_fields_and_wrong_types(kubectl: &Kubectl) {
    let unknown = kubectl.write(
        "unknown.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndat: {a: b}\n",
    );
    let wrong_type = kubectl.write(
        "wrong.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\n\
             spec: {ports: [{port: eighty}]}\n",
    );
    for verb in ["create", "apply", "replace --force"] {
        let error = kubectl.run_failing(&format!("{verb} -f {unknown}"));
        assert!(error.contains("unknown field \"dat\""), "{verb}: {error}");
    }
    let error = kubectl.run_failing(&format!("apply -f {wrong_type}"));
    // Older versions validate on the client, newer ones on the server.
    let expected = if kubectl.is_from(27) {
        "cannot unmarshal string into Go struct field"
    } else {
        "got \"string\", expected \"integer\""
    };
    assert!(error.contains(expected), "{error}");
    assert_eq!(kubectl.run("get configmap bad --ignore-not-found"), "");
    kubectl.check(&[(
        &format!("apply --validate=false -f {unknown}"),
        "configmap/bad created",
    )]);
}
