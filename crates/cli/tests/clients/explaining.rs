//! Discovery and OpenAPI: api-resources, api-versions and explain.

use crate::kubectl::{Kubectl, KubectlTest, Setup, assert_in_order};

/// The tests of this file.
pub(crate) fn tests() -> Vec<KubectlTest> {
    vec![
        KubectlTest::new(Setup::Server, discovery_lists_resources_and_versions),
        KubectlTest::new(Setup::Server, explain_documents_built_in_resources),
        KubectlTest::new(Setup::Server, explain_documents_custom_resources),
    ]
}

fn discovery_lists_resources_and_versions(kubectl: &Kubectl) {
    let resources = kubectl.table("api-resources");
    let expected = [
        "configmaps cm v1 true ConfigMap",
        "nodes no v1 false Node",
        "deployments deploy apps/v1 true Deployment",
        "customresourcedefinitions crd,crds apiextensions.k8s.io/v1 false \
             CustomResourceDefinition",
    ];
    for row in expected {
        assert!(
            resources.iter().any(|found| found == row),
            "{row} is not in {resources:#?}"
        );
    }
    let versions = kubectl.run("api-versions");
    for version in ["v1", "apps/v1", "batch/v1"] {
        assert!(versions.lines().any(|line| line == version), "{versions}");
    }
    assert_eq!(
        kubectl.json("version -o json")["serverVersion"]["minor"],
        "36"
    );
    kubectl.check(&[("get --raw /readyz", "ok")]);
    assert_eq!(
        kubectl.json("get --raw /api/v1/namespaces/default")["metadata"]["name"],
        "default"
    );
    assert!(
        kubectl
            .run_failing("get --raw /nosuch")
            .contains("the server could not find the requested resource")
    );
    assert!(
        kubectl
            .run_failing("get nosuch")
            .contains("the server doesn't have a resource type \"nosuch\"")
    );
}

fn explain_documents_built_in_resources(kubectl: &Kubectl) {
    let pod = kubectl.run("explain pod.spec.containers.imagePullPolicy");
    assert_in_order(
        &pod,
        &[
            "imagePullPolicy",
            "<string>",
            "Image pull policy. One of Always, Never, IfNotPresent.",
            "\"IfNotPresent\"",
        ],
    );
    let deployment = kubectl.run("explain deployment");
    assert_in_order(
        &deployment,
        &[
            "KIND: Deployment",
            "VERSION:",
            "DESCRIPTION:",
            "Deployment enables declarative updates",
            "FIELDS:",
            "spec",
        ],
    );
    let recursive = kubectl.run("explain deployment --recursive");
    for field in [
        "maxUnavailable",
        "topologySpreadConstraints",
        "seccompProfile",
        "windowsOptions",
    ] {
        assert!(recursive.contains(field), "{field}");
    }
    let autoscaler =
        kubectl.run("explain hpa.spec.metrics --api-version=autoscaling/v2 --recursive");
    assert_in_order(&autoscaler, &["containerResource", "averageUtilization"]);
    assert!(
        kubectl
            .run_failing("explain pod.nosuch")
            .contains("field \"nosuch\" does not exist")
    );
    if kubectl.is_from(30) {
        // Newer versions list enum values.
        assert_in_order(
            &kubectl.run("explain service.spec.type"),
            &[
                "ENUM:",
                "ClusterIP",
                "ExternalName",
                "LoadBalancer",
                "NodePort",
            ],
        );
    }
}

fn explain_documents_custom_resources(kubectl: &Kubectl) {
    let crd = "customresourcedefinition.apiextensions.k8s.io/sheroes.stable.simple-bellerophon.io";
    assert_eq!(
        kubectl.run("apply -f sheroes-definition.yaml"),
        format!("{crd} created")
    );
    let shero = kubectl.run("explain sheroes");
    assert_in_order(
        &shero,
        &[
            "KIND: BellerophonSimple",
            "VERSION:",
            "apiVersion",
            "metadata",
            "spec",
        ],
    );
    let recursive = kubectl.run("explain sheroes.spec --recursive");
    assert_in_order(&recursive, &["replicas", "<integer>", "winged_horse_name"]);
    kubectl.run("delete -f sheroes-definition.yaml");
    kubectl.run_failing("explain sheroes");
}
