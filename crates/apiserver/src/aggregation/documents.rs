//! Discovery and OpenAPI documents of other servers.
//! In: their aggregated discovery, or that of one version. Out: an `APIVersionDiscovery`.

use std::sync::Arc;

use bellerophon_apimachinery::json_ext::JsonExt as _;
use serde_json::{Map, Value, json};

use super::{Aggregator, swagger};
use crate::{
    api::Api,
    connect::Connector,
    registry::{RemoteSwagger, RemoteVersion},
};

/// The aggregated discovery document.
const ACCEPT_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// The discovery and OpenAPI documents of one version.
#[derive(Debug, Default)]
pub(super) struct Documents {
    pub(super) discovery: Option<Value>,
    pub(super) openapi_url: Option<String>,
    pub(super) swagger: Option<Arc<RemoteSwagger>>,
}

impl Aggregator {
    /// Requests the documents of a server; those it does not have are left out.
    pub(super) async fn documents(
        &self,
        api: &Api,
        connector: &Connector,
        remote: &RemoteVersion,
    ) -> Documents {
        let get = async |path: &str, accept| {
            let response = self.get(api, connector, remote, path, accept).await.ok()?;
            serde_json::from_slice::<Value>(response.body()).ok()
        };
        let all = get("/apis", ACCEPT_AGGREGATED).await;
        let mut discovery = all.and_then(|all| aggregated(&all, remote));
        if discovery.is_none() {
            let list = get(&remote.root(), "application/json").await;
            discovery = list.map(|list| converted(&list, remote));
        }
        let index = get("/openapi/v3", "application/json").await;
        let root = remote.root();
        let openapi_url = index.and_then(|index| {
            let document = index.field("paths").get_set(root.trim_start_matches('/'))?;
            let url = document.text("serverRelativeURL");
            (!url.is_empty()).then(|| url.to_owned())
        });
        let swagger = get("/openapi/v2", "application/json").await;
        let swagger = swagger.and_then(|document| swagger::filtered(document, &root));
        Documents {
            discovery,
            openapi_url,
            swagger: swagger.map(Arc::new),
        }
    }
}

/// The version in an aggregated discovery document.
fn aggregated(all: &Value, remote: &RemoteVersion) -> Option<Value> {
    if all.text("kind") != "APIGroupDiscoveryList" {
        return None;
    }
    let mut groups = all.list("items").iter();
    let group = groups.find(|group| group.field("metadata").text("name") == remote.group)?;
    let mut versions = group.list("versions").iter();
    let found = versions.find(|version| version.text("version") == remote.version);
    found.cloned()
}

/// An `APIResourceList` as an `APIVersionDiscovery`. Mirrors `ConvertGroupVersionIntoToDiscovery`.
fn converted(list: &Value, remote: &RemoteVersion) -> Value {
    let mut resources: Vec<Value> = Vec::new();
    let listed = list.list("resources").iter();
    for entry in listed
        .clone()
        .filter(|entry| !entry.text("name").contains('/'))
    {
        let mut resource = Map::new();
        resource.insert("resource".into(), entry.field("name").clone());
        resource.insert("responseKind".into(), response_kind(entry, remote));
        let scope = if entry.is_true("namespaced") {
            "Namespaced"
        } else {
            "Cluster"
        };
        resource.insert("scope".into(), scope.into());
        resource.insert("singularResource".into(), entry.text("singularName").into());
        for field in ["verbs", "shortNames", "categories"] {
            if let Some(value) = entry.get_set(field) {
                resource.insert(field.into(), value.clone());
            }
        }
        let prefix = format!("{}/", entry.text("name"));
        let subresources: Vec<Value> = listed
            .clone()
            .filter_map(|sub| {
                let name = sub.text("name").strip_prefix(&prefix)?;
                let response_kind = response_kind(sub, remote);
                let verbs = sub.field("verbs");
                Some(json!({"subresource": name, "responseKind": response_kind, "verbs": verbs}))
            })
            .collect();
        if !subresources.is_empty() {
            resource.insert("subresources".into(), subresources.into());
        }
        resources.push(resource.into());
    }
    json!({"version": remote.version, "resources": resources})
}

fn response_kind(entry: &Value, remote: &RemoteVersion) -> Value {
    let or_own = |field: &str, own: &str| match entry.text(field) {
        "" => own.to_owned(),
        other => other.to_owned(),
    };
    json!({
        "group": or_own("group", &remote.group),
        "version": or_own("version", &remote.version),
        "kind": entry.text("kind"),
    })
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;

    use super::*;

    fn remote() -> RemoteVersion {
        let api_service = object(json!({
            "metadata": {"name": "v1.x.io"},
            "spec": {"group": "x.io", "version": "v1", "service": {"name": "s", "namespace": "n", "port": 443}},
        }));
        RemoteVersion::of(&api_service).expect("it has a Service")
    }

    #[test]
    fn version_is_found_in_aggregated_discovery() {
        let version = json!({"version": "v1", "resources": [{"resource": "things"}]});
        let all = json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": "y.io"}, "versions": [{"version": "v1"}]},
            {"metadata": {"name": "x.io"}, "versions": [{"version": "v2"}, version]},
        ]});
        assert_eq!(aggregated(&all, &remote()), Some(version));
        assert_eq!(
            aggregated(&json!({"kind": "APIGroupList"}), &remote()),
            None
        );
    }

    #[test]
    fn list_of_resources_is_converted() {
        let list = json!({"resources": [
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get"], "shortNames": ["th"]},
            {"name": "things/scale", "singularName": "", "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get"]},
        ]});
        let expected = json!({"version": "v1", "resources": [{
            "resource": "things", "responseKind": {"group": "x.io", "version": "v1", "kind": "Thing"},
            "scope": "Namespaced", "singularResource": "thing", "verbs": ["get"], "shortNames": ["th"],
            "subresources": [{
                "subresource": "scale", "verbs": ["get"],
                "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
            }],
        }]});
        assert_eq!(converted(&list, &remote()), expected);
    }
}
