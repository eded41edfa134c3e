//! Declared objects: apply by the client and by the server, diff, and validation, which is on unless somebody turns it off.

use crate::driver::{Kubectl, assert_in_order};

#[test]
fn what_is_declared_is_applied_and_compared() {
    Kubectl::each(|kubectl| {
        assert!(
            kubectl
                .diff("diff -f deployment.yaml")
                .contains("+kind: Deployment"),
            "all of it is new"
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
        assert!(
            difference.contains("-  replicas: 7") && difference.contains("+  replicas: 1"),
            "{difference}"
        );
        kubectl.check(&[
            (
                "apply -f deployment.yaml",
                "deployment.apps/stable configured",
            ),
            ("get deployment stable -o jsonpath={.spec.replicas}", "1"),
        ]);
    });
}

#[test]
fn field_that_is_no_longer_declared_goes() {
    Kubectl::each(|kubectl| {
        let declare = |data: &str| {
            let text =
                format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {data}\n");
            kubectl.write("c.yaml", &text)
        };
        for flags in ["", "--server-side "] {
            kubectl.run(&format!("apply {flags}-f {}", declare("{a: a, b: b}")));
            kubectl.run(&format!("apply {flags}-f {}", declare("{a: a}")));
            kubectl.check(&[("get configmap c -o jsonpath={.data}", r#"{"a":"a"}"#)]);
            kubectl.run("delete configmap c");
        }
    });
}

#[test]
fn appliers_own_what_they_declare() {
    Kubectl::each(|kubectl| {
        let file = |replicas: u32| {
            let text = format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{a: b}}}}\n  \
                 template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: c, image: i}}]}}}}\n"
            );
            kubectl.write(&format!("web-{replicas}.yaml"), &text)
        };
        let (two, three) = (file(2), file(3));
        kubectl.check(&[(
            &format!("apply --server-side -f {two}"),
            "deployment.apps/web serverside-applied",
        )]);
        let conflict = kubectl.refused(&format!(
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
        let owners = object["metadata"]["managedFields"]
            .as_array()
            .expect("fields have owners");
        let owner = |name: &str| {
            owners
                .iter()
                .find(|owner| owner["manager"] == name)
                .expect("it applied")
        };
        assert!(
            owner("other")["fieldsV1"]["f:spec"]
                .get("f:replicas")
                .is_some()
        );
        assert!(
            owner("kubectl")["fieldsV1"]["f:spec"]
                .get("f:replicas")
                .is_none(),
            "{owners:?}"
        );
    });
}

#[test]
fn server_side_apply_takes_over_from_the_client_side_one() {
    Kubectl::each_from(26, |kubectl| {
        kubectl.check(&[
            ("apply -f settings.yaml", "configmap/settings created"),
            (
                "apply --server-side -f settings.yaml",
                "configmap/settings serverside-applied",
            ),
        ]);
        let object = kubectl.json("get --raw /api/v1/namespaces/default/configmaps/settings");
        let owners: Vec<&str> = object["metadata"]["managedFields"]
            .as_array()
            .expect("owners")
            .iter()
            .filter_map(|o| o["manager"].as_str())
            .collect();
        assert!(
            owners.contains(&"kubectl") && !owners.contains(&"kubectl-client-side-apply"),
            "{owners:?}"
        );
    });
}

#[test]
fn mistakes_are_found_before_anything_is_written() {
    Kubectl::each(|kubectl| {
        let unknown = kubectl.write(
            "unknown.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndat: {a: b}\n",
        );
        let wrong = kubectl.write("wrong.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: eighty}]}\n");
        for verb in ["create", "apply", "replace --force"] {
            let refused = kubectl.refused(&format!("{verb} -f {unknown}"));
            assert!(
                refused.contains("unknown field \"dat\""),
                "{verb}: {refused}"
            );
        }
        let refused = kubectl.refused(&format!("apply -f {wrong}"));
        // kubectl 1.20 reads the schema itself; newer ones leave it to the server.
        let wanted = if kubectl.is_from(27) {
            "cannot unmarshal string into Go struct field"
        } else {
            "got \"string\", expected \"integer\""
        };
        assert!(refused.contains(wanted), "{refused}");
        assert_eq!(kubectl.run("get configmap bad --ignore-not-found"), "");
        kubectl.check(&[(
            &format!("apply --validate=false -f {unknown}"),
            "configmap/bad created",
        )]);
    });
}
