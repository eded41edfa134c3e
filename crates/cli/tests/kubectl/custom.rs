//! Resources that are defined: they behave like any other.

use crate::driver::{Kubectl, assert_in_order};

const NAME: &str = "bellerophonsimple.stable.simple-bellerophon.io/philonoe";

fn define(kubectl: &Kubectl) {
    let definition =
        "customresourcedefinition.apiextensions.k8s.io/sheroes.stable.simple-bellerophon.io";
    assert_eq!(
        kubectl.run("apply -f sheroes-definition.yaml"),
        format!("{definition} created")
    );
    kubectl.run(&format!(
        "wait --for=condition=Established {definition} --timeout=60s"
    ));
}

#[test]
fn custom_resource_behaves_like_any_other() {
    Kubectl::each(|kubectl| {
        define(kubectl);
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
        let patch =
            "patch shero philonoe --type=merge -p {\"spec\":{\"winged_horse_name\":\"arion\"}}";
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
        let object = kubectl.json("get --raw /apis/stable.simple-bellerophon.io/v444beta989/namespaces/default/sheroes/philonoe");
        let owners = object["metadata"]["managedFields"]
            .as_array()
            .expect("fields have owners");
        assert!(
            owners
                .iter()
                .any(|owner| owner["manager"] == "kubectl-client-side-apply"),
            "{owners:?}"
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
    });
}

#[test]
fn mistakes_in_custom_resources_are_refused() {
    Kubectl::each(|kubectl| {
        define(kubectl);
        kubectl.run("apply -f shero.yaml");
        let refused =
            kubectl.refused("patch shero philonoe --type=merge -p {\"spec\":{\"replicas\":-1}}");
        assert!(
            refused.contains("spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0"),
            "{refused}"
        );
        let strategic = kubectl.refused("patch shero philonoe -p {\"spec\":{\"replicas\":1}}");
        assert!(
            strategic.contains("accepted media types include: application/json-patch+json"),
            "{strategic}"
        );
        let text = "apiVersion: stable.simple-bellerophon.io/v444beta989\nkind: BellerophonSimple\nmetadata: {name: x}\nspec: {wings: 2}\n";
        let unknown = kubectl.refused(&format!("apply -f {}", kubectl.write("unknown.yaml", text)));
        assert!(
            unknown.contains("unknown field") && unknown.contains("wings"),
            "{unknown}"
        );
    });
}

#[test]
fn kind_goes_with_its_definition() {
    Kubectl::each(|kubectl| {
        define(kubectl);
        kubectl.run("apply -f shero.yaml");
        assert!(
            kubectl
                .run("delete -f sheroes-definition.yaml")
                .contains("deleted")
        );
        let refused = kubectl.refused("get sheroes");
        assert!(
            refused.contains("the server could not find the requested resource"),
            "{refused}"
        );
        assert!(
            !kubectl.run("api-resources -o name").contains("sheroes"),
            "the kind is gone with its definition"
        );
    });
}
