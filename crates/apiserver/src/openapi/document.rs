//! The document of one group and version: its paths and the schemas they need.

use serde_json::{Map, Value, json};

use super::{
    custom,
    operations::{Names, Paths, References},
    schemas::Schemas,
};
use crate::{
    discovery::Version,
    pages::version::{MAJOR, MINOR},
    registry::Resource,
};

/// Writes the document.
pub(super) fn write(path: &str, group: &str, version: &Version) -> Vec<u8> {
    let prefix = format!("/{path}");
    let names = Names::of(group, &version.name);
    let mut schemas = Schemas::default();
    let mut paths = Map::new();
    paths.insert(format!("{prefix}/"), names.resources(schemas.of_meta("APIResourceList")));
    for resource in &version.resources {
        let references = references(&mut schemas, resource);
        let parts: Vec<Option<Value>> = resource.parts.iter().map(|part| of_part(&mut schemas, resource, part, &references)).collect();
        Paths { prefix: &prefix, names: &names, resource, references: &references }.add(&parts, &mut paths);
    }
    let custom = version.resources.iter().all(|r| r.items_name_kind());
    let document = json!({
        "openapi": "3.0.0",
        "info": if custom {
            json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"})
        } else {
            json!({"title": "Kubernetes", "version": format!("{MAJOR}.{MINOR}")})
        },
        "paths": paths,
        "components": {
            "schemas": schemas.finish(),
            "securitySchemes": {"BearerToken": {"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}},
        },
    });
    serde_json::to_vec(&document).expect("a document has string keys")
}

fn references(schemas: &mut Schemas, resource: &Resource) -> References {
    let (object, list) = if resource.items_name_kind() {
        let (object, list) = custom::add(schemas, resource);
        (Some(object), Some(list))
    } else {
        let mut of = |kind: &str| schemas.of_kind(&resource.group, &resource.version, kind);
        (of(&resource.kind), of(&resource.list_kind))
    };
    References {
        object,
        list,
        status: schemas.of_meta("Status"),
        delete_options: schemas.of_meta("DeleteOptions"),
        patch: schemas.add("io.k8s.apimachinery.pkg.apis.meta.v1.Patch", json!({"type": "object"})),
    }
}

fn of_part(schemas: &mut Schemas, resource: &Resource, part: &crate::registry::Part, references: &References) -> Option<Value> {
    if part.kind == resource.kind && part.version.is_empty() {
        return references.object.clone();
    }
    let (group, version) =
        if part.version.is_empty() { (resource.group.as_str(), resource.version.as_str()) } else { (part.group, part.version) };
    schemas.of_kind(group, version, &part.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{discovery::groups, registry::Catalog};

    #[test]
    fn operations_are_named_as_in_the_real_server() {
        let groups = groups(&Catalog::default());
        let apps = groups.iter().find(|g| g.name == "apps").expect("it is built in");
        let document: Value = serde_json::from_slice(&write("apis/apps/v1", "apps", &apps.versions[0])).expect("it is JSON");
        let at = |path: &str, method: &str| document["paths"][format!("/apis/apps/v1/{path}")][method].clone();
        for (path, method, id, action) in [
            ("deployments", "get", "listAppsV1DeploymentForAllNamespaces", "list"),
            ("namespaces/{namespace}/deployments", "get", "listAppsV1NamespacedDeployment", "list"),
            ("namespaces/{namespace}/deployments", "post", "createAppsV1NamespacedDeployment", "post"),
            ("namespaces/{namespace}/deployments", "delete", "deleteAppsV1CollectionNamespacedDeployment", "deletecollection"),
            ("namespaces/{namespace}/deployments/{name}", "put", "replaceAppsV1NamespacedDeployment", "put"),
            ("namespaces/{namespace}/deployments/{name}", "delete", "deleteAppsV1NamespacedDeployment", "delete"),
            ("namespaces/{namespace}/deployments/{name}/scale", "get", "readAppsV1NamespacedDeploymentScale", "get"),
            ("watch/deployments", "get", "watchAppsV1DeploymentListForAllNamespaces", "watchlist"),
            ("watch/namespaces/{namespace}/deployments", "get", "watchAppsV1NamespacedDeploymentList", "watchlist"),
            ("watch/namespaces/{namespace}/deployments/{name}", "get", "watchAppsV1NamespacedDeployment", "watch"),
        ] {
            let operation = at(path, method);
            assert_eq!((&operation["operationId"], &operation["x-kubernetes-action"]), (&Value::from(id), &Value::from(action)), "{path}");
        }
        let scale = at("namespaces/{namespace}/deployments/{name}/scale", "get");
        assert_eq!(scale["x-kubernetes-group-version-kind"], json!({"group": "autoscaling", "kind": "Scale", "version": "v1"}));
        assert_eq!(at("namespaces/{namespace}/deployments/{name}", "post"), Value::Null);
    }
}
