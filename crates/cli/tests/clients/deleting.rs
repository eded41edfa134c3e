//! Deletion and its cascades. Without controllers, no garbage collector runs: the tests show what
//! the API server does.

use crate::kubectl::{Kubectl, KubectlTest, Setup};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Server, objects_are_deleted_by_name_file_and_label),
        KubectlTest::new(Setup::Server, each_cascade_sets_its_finalizer),
    ]
}

const FINALIZERS: &str = "get deployment stable -o jsonpath={.metadata.finalizers[*]}";

/// Orphans dependents; before kubectl 1.20 the flag was a boolean.
const ORPHAN: &str = "delete deployment stable --cascade=orphan --wait=false";

fn objects_are_deleted_by_name_file_and_label(kubectl: &Kubectl) {
    kubectl.run("apply -f settings.yaml");
    assert!(
        kubectl
            .run("delete -f settings.yaml")
            .starts_with(r#"configmap "settings" deleted"#)
    );
    for name in ["a", "b", "c"] {
        kubectl.run(&format!("create configmap {name}"));
    }
    kubectl.run("label configmap a b delete=yes");
    assert_eq!(
        kubectl
            .run("delete configmap -l delete=yes")
            .lines()
            .count(),
        2
    );
    kubectl.check(&[
        ("get configmap -o name", "configmap/c"),
        ("delete configmap nosuch --ignore-not-found", ""),
    ]);
    assert!(
        kubectl
            .run("delete configmap --all --now")
            .starts_with(r#"configmap "c" deleted"#)
    );
    assert!(
        kubectl
            .run_failing("delete configmap c")
            .contains(r#"configmaps "c" not found"#)
    );
}

fn each_cascade_sets_its_finalizer(kubectl: &Kubectl) {
    for (line, finalizers) in [
        ("delete deployment stable --cascade=background", None),
        (
            "delete deployment stable --cascade=foreground --wait=false",
            Some("foregroundDeletion"),
        ),
        (ORPHAN, Some("orphan")),
    ] {
        kubectl.run("apply -f deployment.yaml");
        assert!(
            kubectl
                .run(line)
                .starts_with(r#"deployment.apps "stable" deleted"#),
            "{line}"
        );
        match finalizers {
            None => assert!(
                kubectl
                    .run_failing("get deployment stable")
                    .contains("not found"),
                "{line}"
            ),
            Some(finalizers) => {
                kubectl.check(&[(FINALIZERS, finalizers)]);
                assert_ne!(
                    kubectl.run("get deployment stable -o jsonpath={.metadata.deletionTimestamp}"),
                    ""
                );
                // The garbage collector removes the finalizer.
                let patch = "{\"metadata\":{\"finalizers\":null}}";
                kubectl.run(&format!("patch deployment stable --type=merge -p {patch}"));
                assert!(
                    kubectl
                        .run_failing("get deployment stable")
                        .contains("not found"),
                    "{line}"
                );
            }
        }
    }
}
