//! Custom resources.

use crate::kubectl::{Kubectl, KubectlTest, Setup, assert_in_order};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Server, custom_resources_support_all_commands),
        KubectlTest::new(Setup::Server, invalid_custom_resources_are_rejected),
        KubectlTest::new(Setup::Server, deleted_crd_removes_its_resource),
    ]
}

const NAME: &str = "bellerophonsimple.stable.simple-bellerophon.io/philonoe";

fn create_crd(kubectl: &Kubectl) {
    let crd = "customresourcedefinition.apiextensions.k8s.io/sheroes.stable.simple-bellerophon.io";
    assert_eq!(
        kubectl.run("apply -f sheroes-definition.yaml"),
        format!("{crd} created")
    );
    kubectl.run(&format!(
        "wait --for=condition=Established {crd} --timeout=60s"
    ));
}

fn custom_resources_support_all_commands(kubectl: &Kubectl) {
    create_crd(kubectl);
    assert_eq!(
        kubectl.run("apply -f shero.yaml"),
        format!("{NAME} created")
    );
    assert_eq!(
        kubectl.run("apply -f shero.yaml"),
        format!("{NAME} unchanged")
    );
    assert_eq!(kubectl.diff("diff -f shero.yaml"), "");

    let wide = kubectl.table("get sheroes -o wide");
    assert_eq!(wide[0], "NAME HORSE REPLICAS IMAGE AGE");
    assert!(
        wide[1].starts_with("philonoe pegasus 2 registry.example/pegasus:1 "),
        "{wide:?}"
    );
    assert_eq!(
        kubectl.table("get bsh -l app=stable")[0],
        "NAME HORSE REPLICAS AGE"
    );

    assert_eq!(
        kubectl.run("scale bsh philonoe --replicas=5"),
        format!("{NAME} scaled")
    );
    let patch = "patch shero philonoe --type=merge -p {\"spec\":{\"winged_horse_name\":\"arion\"}}";
    assert_eq!(kubectl.run(patch), format!("{NAME} patched"));
    assert_in_order(
        &kubectl.run("describe sheroes philonoe"),
        &[
            "Name: philonoe",
            "Namespace: default",
            "Labels: app=stable",
            "API Version: stable.simple-bellerophon.io/v444beta989",
            "Kind: BellerophonSimple",
            "Metadata:",
            "Creation Timestamp:",
            "Generation: 3",
            "Resource Version:",
            "UID:",
            "Spec:",
            "Image: registry.example/pegasus:1",
            "Replicas: 5",
            "winged_horse_name: arion",
        ],
    );
    let group_version = "stable.simple-bellerophon.io/v444beta989";
    let path = format!("/apis/{group_version}/namespaces/default/sheroes/philonoe");
    let object = kubectl.json(&format!("get --raw {path}"));
    let managed_fields = object["metadata"]["managedFields"]
        .as_array()
        .expect("managed fields");
    let mut managers = managed_fields.iter().map(|entry| &entry["manager"]);
    assert!(
        managers.any(|manager| manager == "kubectl-client-side-apply"),
        "{managed_fields:?}"
    );
    assert_eq!(
        kubectl.edit(
            "edit shero philonoe",
            "winged_horse_name: arion",
            "winged_horse_name: areion"
        ),
        format!("{NAME} edited")
    );
    assert_eq!(
        kubectl.run("apply --server-side --force-conflicts -f shero.yaml"),
        format!("{NAME} serverside-applied")
    );
    kubectl.check(&[(
        "get shero philonoe -o jsonpath={.spec.winged_horse_name}",
        "pegasus",
    )]);
}

fn invalid_custom_resources_are_rejected(kubectl: &Kubectl) {
    create_crd(kubectl);
    kubectl.run("apply -f shero.yaml");
    let error =
        kubectl.run_failing("patch shero philonoe --type=merge -p {\"spec\":{\"replicas\":-1}}");
    assert!(
        error.contains(
            "spec.replicas: Invalid value: -1: \
                 spec.replicas in body should be greater than or equal to 0"
        ),
        "{error}"
    );
    let strategic = kubectl.run_failing("patch shero philonoe -p {\"spec\":{\"replicas\":1}}");
    assert!(
        strategic.contains("accepted media types include: application/json-patch+json"),
        "{strategic}"
    );
    let text = "apiVersion: stable.simple-bellerophon.io/v444beta989\n\
                    kind: BellerophonSimple\nmetadata: {name: x}\nspec: {wings: 2}\n";
    let file = kubectl.write("unknown.yaml", text);
    let unknown = kubectl.run_failing(&format!("apply -f {file}"));
    assert!(unknown.contains("unknown field"), "{unknown}");
    assert!(unknown.contains("wings"), "{unknown}");
}

fn deleted_crd_removes_its_resource(kubectl: &Kubectl) {
    create_crd(kubectl);
    kubectl.run("apply -f shero.yaml");
    assert!(
        kubectl
            .run("delete -f sheroes-definition.yaml")
            .contains("deleted")
    );
    let error = kubectl.run_failing("get sheroes");
    assert!(
        error.contains("the server could not find the requested resource"),
        "{error}"
    );
    assert!(
        !kubectl.run("api-resources -o name").contains("sheroes"),
        "the resource is not served any more"
    );
}
