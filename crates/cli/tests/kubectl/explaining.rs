//! What there is, and what it means.

use crate::driver::{Kubectl, assert_in_order};

#[test]
fn server_says_what_it_serves() {
    Kubectl::each(|kubectl| {
        let resources = kubectl.table("api-resources");
        let wanted = [
            "configmaps cm v1 true ConfigMap",
            "nodes no v1 false Node",
            "deployments deploy apps/v1 true Deployment",
            "customresourcedefinitions crd,crds apiextensions.k8s.io/v1 false CustomResourceDefinition",
        ];
        for row in wanted {
            assert!(
                resources.iter().any(|found| found == row),
                "{row} is not in {resources:#?}"
            );
        }
        let versions = kubectl.run("api-versions");
        assert!(
            ["v1", "apps/v1", "batch/v1"]
                .iter()
                .all(|wanted| versions.lines().any(|line| line == *wanted)),
            "{versions}"
        );
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
                .refused("get --raw /nosuch")
                .contains("the server could not find the requested resource")
        );
        assert!(
            kubectl
                .refused("get nosuch")
                .contains("the server doesn't have a resource type \"nosuch\"")
        );
    });
}

#[test]
fn built_in_kinds_are_explained() {
    Kubectl::each(|kubectl| {
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
                .refused("explain pod.nosuch")
                .contains("field \"nosuch\" does not exist")
        );
        if kubectl.is_from(30) {
            // Newer ones list the values by themselves.
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
    });
}

#[test]
fn custom_kinds_are_explained_from_the_moment_they_are_served() {
    Kubectl::each(|kubectl| {
        let definition =
            "customresourcedefinition.apiextensions.k8s.io/sheroes.stable.simple-bellerophon.io";
        assert_eq!(
            kubectl.run("apply -f sheroes-definition.yaml"),
            format!("{definition} created")
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
        kubectl.refused("explain sheroes");
    });
}
