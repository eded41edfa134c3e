//! Deletion and its cascades. Without controllers, no garbage collector runs: the tests show what
//! the API server does.

use crate::driver::Kubectl;

const FINALIZERS: &str = "get deployment stable -o jsonpath={.metadata.finalizers[*]}";

/// Orphans dependents; before kubectl 1.20 the flag was a boolean.
const ORPHAN: &str = "delete deployment stable --cascade=orphan --wait=false";

#[test]
fn objects_are_deleted_by_name_file_and_label() {
    Kubectl::each(|kubectl| {
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
    });
}

#[test]
fn each_cascade_sets_its_finalizer() {
    Kubectl::each(|kubectl| {
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
                        kubectl
                            .run("get deployment stable -o jsonpath={.metadata.deletionTimestamp}"),
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
    });
}
