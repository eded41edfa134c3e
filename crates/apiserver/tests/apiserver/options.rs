//! Settings that kube-apiserver takes as flags, and a start with the objects of another server.

use bellerophon_apiserver::{ApiServer, AuthorizationMode, ServerOptions};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        core::v1::{ConfigMap, Pod, ResourceQuota},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams, WatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn heroes(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("example.com", "v1", "Hero");
    let resource = ApiResource::from_gvk_with_plural(&kind, "heroes");
    Api::namespaced_with(client, "default", &resource)
}

#[tokio::test]
async fn server_starts_with_the_objects_of_another() -> Result<(), Box<dyn std::error::Error>> {
    let params = PostParams::default();
    let first = ApiServer::builder().start().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(first.client());
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true,
                         "schema": {"openAPIV3Schema": schema}});
    let definition = object(json!({
        "metadata": {"name": "heroes.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "versions": [version],
                 "names": {"kind": "Hero", "plural": "heroes"}},
    }));
    definitions.create(&params, &definition).await?;
    let hero = object(json!({"apiVersion": "example.com/v1", "kind": "Hero",
                             "metadata": {"name": "perseus"}, "spec": {"strength": 7}}));
    let hero = heroes(first.client()).create(&params, &hero).await?;
    let snapshot = first.snapshot();
    first.shutdown().await;

    let second = ApiServer::builder().restore(snapshot).start().await?;
    let restored = heroes(second.client()).get("perseus").await?;
    assert_eq!(restored.metadata.uid, hero.metadata.uid);
    assert_eq!(restored.data["spec"]["strength"], 7);
    let version = |object: &DynamicObject| -> u64 {
        let version = object.metadata.resource_version.as_ref().expect("stored");
        version.parse().expect("a number")
    };
    assert!(version(&restored) > version(&hero));
    let old = hero.metadata.resource_version.expect("stored");
    let watch = heroes(second.client());
    let watch = watch.watch(&WatchParams::default(), &old).await?;
    let first_event = futures_util::StreamExt::next(&mut std::pin::pin!(watch)).await;
    let expired = format!("{first_event:?}");
    assert!(
        expired.contains("410"),
        "a watch from before expired: {expired}"
    );
    second.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn snapshot_that_is_none_is_refused() {
    let started = ApiServer::builder().restore(b"junk".to_vec()).start().await;
    let error = started.expect_err("refused").to_string();
    assert!(error.contains("the snapshot is not valid"), "{error}");
}

#[tokio::test]
async fn plugins_that_are_disabled_do_not_run() -> Result<(), Box<dyn std::error::Error>> {
    let pod: Pod = object(json!({"metadata": {"name": "p"},
                                 "spec": {"containers": [{"name": "c", "image": "i"}]}}));
    // Without controllers there is no service account `default`.
    for (disabled, is_created) in [(vec![], false), (vec!["ServiceAccount".to_owned()], true)] {
        let options = ServerOptions {
            disabled_admission_plugins: disabled,
            ..ServerOptions::default()
        };
        let server = ApiServer::builder().options(options).start().await?;
        let pods: Api<Pod> = Api::namespaced(server.client(), "default");
        let created = pods.create(&PostParams::default(), &pod).await;
        assert_eq!(created.is_ok(), is_created, "{created:?}");
        server.shutdown().await;
    }
    Ok(())
}

#[tokio::test]
async fn configured_admission_that_is_disabled_does_not_run()
-> Result<(), Box<dyn std::error::Error>> {
    let params = PostParams::default();
    let quota: ResourceQuota = object(json!({
        "metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "0"}},
    }));
    let enforced: Value =
        json!({"status": {"hard": {"configmaps": "0"}, "used": {"configmaps": "0"}}});
    let policy: ValidatingAdmissionPolicy = object(json!({
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                "operations": ["CREATE"],
            }]},
            "validations": [{"expression": "false"}],
        },
    }));
    let binding: ValidatingAdmissionPolicyBinding = object(json!({
        "metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]},
    }));
    let map: ConfigMap = object(json!({"metadata": {"name": "m"}}));
    let plugins = ["ResourceQuota", "ValidatingAdmissionPolicy"];
    for (disabled, is_created) in [
        (&plugins[..0], false),
        (&plugins[..1], false),
        (&plugins[1..], false),
        (&plugins[..], true),
    ] {
        let options = ServerOptions {
            disabled_admission_plugins: disabled.iter().map(ToString::to_string).collect(),
            ..ServerOptions::default()
        };
        let server = ApiServer::builder().options(options).start().await?;
        let quotas: Api<ResourceQuota> = Api::namespaced(server.client(), "default");
        quotas.create(&params, &quota).await?;
        let patch = Patch::Merge(&enforced);
        quotas
            .patch_status("q", &PatchParams::default(), &patch)
            .await?;
        Api::all(server.client()).create(&params, &policy).await?;
        Api::all(server.client()).create(&params, &binding).await?;
        let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
        let created = maps.create(&params, &map).await;
        assert_eq!(created.is_ok(), is_created, "{disabled:?}: {created:?}");
        server.shutdown().await;
    }
    Ok(())
}

#[tokio::test]
async fn everything_is_allowed_without_rbac() -> Result<(), Box<dyn std::error::Error>> {
    for (authorization, is_allowed) in [
        (AuthorizationMode::Rbac, false),
        (AuthorizationMode::AlwaysAllow, true),
    ] {
        let options = ServerOptions {
            authorization,
            ..ServerOptions::default()
        };
        let server = ApiServer::builder().options(options).start().await?;
        let unprivileged = Client::new(server.service().as_user("unprivileged", []), "default");
        let maps: Api<ConfigMap> = Api::namespaced(unprivileged, "default");
        let listed = maps.list(&Default::default()).await;
        assert_eq!(listed.is_ok(), is_allowed, "{listed:?}");
        server.shutdown().await;
    }
    Ok(())
}
