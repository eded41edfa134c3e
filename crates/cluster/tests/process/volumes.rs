//! Volumes whose sources change, claims, and variables from files.

use bellerophon_process_runtime::Tier;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde_json::{Value, json};

use crate::support::*;

/// The path of a volume in both tiers, in a script.
fn path(volume: &str) -> String {
    let variable = volume.to_uppercase();
    format!("${{KUBERNETES_MOUNT_{variable}:-/v/{volume}}}")
}

fn mounts(volumes: &[&str]) -> Value {
    let mount = |name: &&str| json!({"name": name, "mountPath": format!("/v/{name}")});
    volumes.iter().map(mount).collect()
}

async fn create<K>(cluster: &ProcessCluster, object: Value) -> K
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Serialize,
{
    let object: K = serde_json::from_value(object).unwrap();
    let api: Api<K> = Api::namespaced(cluster.client.clone(), "default");
    api.create(&PostParams::default(), &object).await.unwrap()
}

async fn patch<K>(cluster: &ProcessCluster, name: &str, change: Value)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), "default");
    let change = Patch::Merge(change);
    let patched = api.patch(name, &PatchParams::default(), &change).await;
    patched.unwrap();
}

#[tokio::test]
async fn files_follow_their_sources_in_a_running_pod() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let settings = json!({"metadata": {"name": "settings"}, "data": {"color": "red"}});
        create::<ConfigMap>(&cluster, settings).await;
        let login = json!({"metadata": {"name": "login"}, "stringData": {"password": "old"}});
        create::<Secret>(&cluster, login).await;
        let [settings, login, info, all] = ["settings", "login", "info", "all"].map(path);
        let script = format!(
            "show() {{
                 for file in {settings}/color {login}/a/word {info}/app {all}/color {all}/word
                 do printf '%s ' \"$(cat $file)\"; done; echo
             }}
             show
             until grep -q blue {settings}/color && grep -q new {login}/a/word \
                 && grep -q changed {info}/app && grep -q blue {all}/color && grep -q new {all}/word
             do sleep 0.05; done
             show"
        );
        let items = |path: &str| json!([{"key": "password", "path": path}]);
        let volumes = ["settings", "login", "info", "all"];
        let app = json!({"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}});
        let spec = json!({
            "restartPolicy": "Never",
            "containers": [sh("app", &script, json!({"volumeMounts": mounts(&volumes)}))],
            "volumes": [
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "login", "secret": {"secretName": "login", "items": items("a/word")}},
                {"name": "info", "downwardAPI": {"items": [app]}},
                {"name": "all", "projected": {"sources": [
                    {"configMap": {"name": "settings"}},
                    {"secret": {"name": "login", "items": items("word")}},
                    {"configMap": {"name": "absent", "optional": true}},
                ]}},
            ],
        });
        let pod = cluster.create("reader", spec).await;
        cluster.until_logged(&pod, "app", 0, 1).await;
        patch::<ConfigMap>(&cluster, "settings", json!({"data": {"color": "blue"}})).await;
        patch::<Secret>(
            &cluster,
            "login",
            json!({"stringData": {"password": "new"}}),
        )
        .await;
        let labels = json!({"metadata": {"labels": {"app": "changed"}}});
        patch::<Pod>(&cluster, "reader", labels).await;
        cluster.until_phase("reader", "Succeeded").await;
        let lines = cluster.until_logged(&pod, "app", 0, 2).await;
        let expected = ["red old reader red old ", "blue new changed blue new "];
        assert_eq!(lines, expected, "{tier:?}");
        cluster.stop().await;
    }
}

/// As upstream, the mount of a `subPath` keeps the file that it had at the start; without mounts,
/// its path is that of the volume.
#[tokio::test]
async fn sub_path_stays_readable_when_its_source_changes() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let settings = json!({"metadata": {"name": "settings"}, "data": {"color": "red\n"}});
        create::<ConfigMap>(&cluster, settings).await;
        let file = path("settings");
        let script = format!("cat {file}; until test -e $DIR/go; do sleep 0.05; done; cat {file}");
        let mounts = json!([{"name": "settings", "mountPath": "/v/settings", "subPath": "color"}]);
        let spec = json!({
            "restartPolicy": "Never",
            "containers": [sh("app", &script, json!({"volumeMounts": mounts}))],
            "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
        });
        let pod = cluster.create("reader", spec).await;
        cluster.until_logged(&pod, "app", 0, 1).await;
        patch::<ConfigMap>(&cluster, "settings", json!({"data": {"color": "blue\n"}})).await;
        let on_node = cluster.pod_dir(&pod).join("volumes/settings/color");
        let is_changed = || std::fs::read_to_string(&on_node).is_ok_and(|text| text == "blue\n");
        cluster
            .until_true("the volume has changed", is_changed)
            .await;
        std::fs::write(cluster.dir.path().join("go"), "").unwrap();
        cluster.until_phase("reader", "Succeeded").await;
        let lines = cluster.until_logged(&pod, "app", 0, 2).await;
        let expected = match tier {
            Tier::A => ["red", "red"],
            Tier::B => ["red", "blue"],
        };
        assert_eq!(lines, expected, "{tier:?}");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn claim_keeps_its_files_between_pods() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let claim = json!({
            "metadata": {"name": "data"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        create::<PersistentVolumeClaim>(&cluster, claim).await;
        let data = path("data");
        for (name, script) in [
            ("writer", format!("echo kept > {data}/file")),
            ("reader", format!("cat {data}/file")),
        ] {
            let spec = json!({
                "restartPolicy": "Never",
                "containers": [sh("app", &script, json!({"volumeMounts": mounts(&["data"])}))],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            });
            let pod = cluster.create(name, spec).await;
            cluster.until_phase(name, "Succeeded").await;
            if name == "reader" {
                let lines = cluster.until_logged(&pod, "app", 0, 1).await;
                assert_eq!(lines, ["kept"], "{tier:?}");
            }
            cluster.delete(name, 0).await;
            cluster.until_deleted(name).await;
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn projected_token_is_that_of_the_pod_and_its_audience() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let token = json!({"path": "token", "audience": "vault", "expirationSeconds": 600});
        let script = format!("test -s {}/token", path("token"));
        let spec = json!({
            "restartPolicy": "Never",
            "containers": [sh(
                "app",
                &format!("{script} && echo there; until test -e $DIR/go; do sleep 0.05; done"),
                json!({"volumeMounts": mounts(&["token"])}),
            )],
            "volumes": [{
                "name": "token",
                "projected": {"sources": [{"serviceAccountToken": token}]},
            }],
        });
        let pod = cluster.create("client", spec).await;
        let lines = cluster.until_logged(&pod, "app", 0, 1).await;
        assert_eq!(lines, ["there"], "{tier:?}");
        let file = cluster.pod_dir(&pod).join("volumes/token/token");
        let token = std::fs::read_to_string(file).unwrap();
        let review = async |audience: &str| {
            let review = json!({"spec": {"token": token, "audiences": [audience]}});
            let review: TokenReview = serde_json::from_value(review).unwrap();
            let reviews: Api<TokenReview> = Api::all(cluster.client.clone());
            let created = reviews.create(&PostParams::default(), &review).await;
            created.unwrap().status.unwrap()
        };
        let accepted = review("vault").await;
        assert_eq!(accepted.authenticated, Some(true), "{tier:?}");
        let user = accepted.user.unwrap();
        assert_eq!(
            user.username.as_deref(),
            Some("system:serviceaccount:default:default")
        );
        let extra = user.extra.unwrap_or_default();
        let names = extra.get("authentication.kubernetes.io/pod-name").unwrap();
        assert_eq!(*names, ["client"], "{tier:?}");
        assert_ne!(review("other").await.authenticated, Some(true), "{tier:?}");
        std::fs::write(cluster.dir.path().join("go"), "").unwrap();
        cluster.until_phase("client", "Succeeded").await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn projection_without_support_is_reported() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let bundle = json!({"clusterTrustBundle": {"name": "roots", "path": "ca.pem"}});
        let spec = json!({
            "containers": [sh("app", "true", json!({"volumeMounts": mounts(&["roots"])}))],
            "volumes": [{"name": "roots", "projected": {"sources": [bundle]}}],
        });
        cluster.create("waiting", spec).await;
        let message = "do not support projections of clusterTrustBundle";
        cluster.until_event("waiting", "FailedMount", message).await;
        cluster.delete("waiting", 0).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn variable_comes_from_a_file_of_an_init_container() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        for (name, medium) in [("disk", ""), ("memory", "Memory")] {
            let file = format!("{}/env", path("shared"));
            let write = format!("printf \"# made here\\nCOLOR='dark blue'\\n\" > {file}");
            let init = sh("init", &write, json!({"volumeMounts": mounts(&["shared"])}));
            let reference = json!({"volumeName": "shared", "path": "env", "key": "COLOR"});
            let env = json!([{"name": "COLOR", "valueFrom": {"fileKeyRef": reference}}]);
            let spec = json!({
                "restartPolicy": "Never",
                "initContainers": [init],
                "containers": [sh("app", "echo \"$COLOR\"", json!({"env": env}))],
                "volumes": [{"name": "shared", "emptyDir": {"medium": medium}}],
            });
            let pod = cluster.create(name, spec).await;
            cluster.until_phase(name, "Succeeded").await;
            let lines = cluster.until_logged(&pod, "app", 0, 1).await;
            assert_eq!(lines, ["dark blue"], "{tier:?} {name}");
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn container_waits_for_a_variable_that_no_file_has() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let reference = json!({"volumeName": "shared", "path": "env", "key": "COLOR"});
        let env = json!([{"name": "COLOR", "valueFrom": {"fileKeyRef": reference}}]);
        let spec = json!({
            "containers": [sh("app", "true", json!({"env": env}))],
            "volumes": [{"name": "shared", "emptyDir": {}}],
        });
        cluster.create("waiting", spec).await;
        cluster
            .until_event("waiting", "Failed", "couldn't parse env file")
            .await;
        let pod = cluster.pods().get("waiting").await.unwrap();
        let reason = reason(&pod, "app");
        assert_eq!(
            reason.as_deref(),
            Some("CreateContainerConfigError"),
            "{tier:?}"
        );
        cluster.delete("waiting", 0).await;
        cluster.stop().await;
    }
}
