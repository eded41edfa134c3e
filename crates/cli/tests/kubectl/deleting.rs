//! Objects that go, and what happens to what they own. Nobody collects garbage here: what is seen is what the server itself does.

use crate::driver::Kubectl;

const FINALIZERS: &str = "get deployment stable -o jsonpath={.metadata.finalizers[*]}";

/// The flag that leaves dependents alone; before 1.20 it was a boolean.
const ORPHAN: &str = "delete deployment stable --cascade=orphan --wait=false";

#[test]
fn object_is_deleted_by_name_by_file_and_by_label() {
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
        kubectl.run("label configmap a b gone=yes");
        assert_eq!(
            kubectl.run("delete configmap -l gone=yes").lines().count(),
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
                .refused("delete configmap c")
                .contains(r#"configmaps "c" not found"#)
        );
    });
}

#[test]
fn every_cascade_does_what_it_says() {
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
                        .refused("get deployment stable")
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
                    // What the garbage collector does once the dependents are seen to.
                    kubectl.run("patch deployment stable --type=merge -p {\"metadata\":{\"finalizers\":null}}");
                    assert!(
                        kubectl
                            .refused("get deployment stable")
                            .contains("not found"),
                        "{line}"
                    );
                }
            }
        }
    });
}
