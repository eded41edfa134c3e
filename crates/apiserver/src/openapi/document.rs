//! The documents of version 3: one for each group and version, and one for each page.

use serde_json::{Value, json};

use super::{
    custom,
    endpoints::Endpoint,
    entries::{Encoding, Entries},
    form::Form,
    paths::{Names, Paths, References},
    schemas::Schemas,
};
use crate::{
    discovery::Version,
    registry::{Resource, Subresource},
    version::{MAJOR, MINOR},
};

/// The document of a group's version, which is served below `root`: `apis/apps/v1`.
pub(super) fn of_version(root: &str, group: &str, version: &Version) -> Vec<u8> {
    let names = Names::of(group, &version.name);
    let custom = version.resources.iter().all(|r| r.is_custom());
    let mut schemas = if custom {
        Schemas::new(Form::V3, Encoding::Json)
    } else {
        Schemas::within(group, &version.name)
    };
    let mut paths = Entries::paths(Encoding::Json);
    if !custom {
        Endpoint::of_version(root, &names).add(&mut schemas, &mut paths);
    }
    for resource in &version.resources {
        add_resource(&mut schemas, &names, resource, &mut paths);
    }
    let head = if custom {
        Head {
            info: custom_info(),
            security: None,
        }
    } else {
        Head::default()
    };
    head.write(&paths, &schemas.finish())
}

/// The document of one non-resource path.
pub(super) fn of_endpoint(endpoint: &Endpoint) -> Vec<u8> {
    let mut schemas = Schemas::within("", "v1");
    let mut paths = Entries::paths(Encoding::Json);
    endpoint.add(&mut schemas, &mut paths);
    Head::default().write(&paths, &schemas.finish())
}

/// The `info` section of both versions.
pub(super) fn info() -> Value {
    json!({"title": "Kubernetes", "version": format!("{MAJOR}.{MINOR}")})
}

fn custom_info() -> Value {
    json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"})
}

/// The security definition of bearer tokens.
pub(super) fn bearer_token() -> Value {
    json!({"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"})
}

/// The sections of a document besides paths and schemas.
struct Head {
    info: Value,
    /// The security definitions.
    security: Option<Value>,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            info: info(),
            security: Some(json!({"BearerToken": bearer_token()})),
        }
    }
}

impl Head {
    fn write(&self, paths: &Entries, schemas: &Entries) -> Vec<u8> {
        let paths = paths.joined();
        let schemas = schemas.joined();
        let schemas = if schemas.is_empty() {
            schemas
        } else {
            [b"\"schemas\":{", &*schemas, b"}"].concat()
        };
        let security = self
            .security
            .as_ref()
            .map(|security| format!("\"securitySchemes\":{security}"))
            .unwrap_or_default();
        let components: Vec<&[u8]> = [schemas.as_slice(), security.as_bytes()]
            .into_iter()
            .filter(|subresource| !subresource.is_empty())
            .collect();
        let head = format!(
            "{{\"openapi\":\"3.0.0\",\"info\":{},\"paths\":{{",
            self.info
        );
        [
            head.as_bytes(),
            &paths,
            b"},\"components\":{",
            &components.join(&b','),
            b"}}",
        ]
        .concat()
    }
}

/// Adds the paths of a resource, and the schemas they need.
pub(super) fn add_resource(
    schemas: &mut Schemas,
    names: &Names,
    resource: &Resource,
    paths: &mut Entries,
) {
    let references = references(schemas, resource);
    Paths {
        form: schemas.form,
        names,
        resource,
        references: &references,
    }
    .add(paths);
}

fn references(schemas: &mut Schemas, resource: &Resource) -> References {
    let Resource {
        group,
        version,
        kind,
        list_kind,
        ..
    } = resource;
    let (object, list) = if resource.is_custom() {
        custom::add(schemas, resource)
    } else {
        let object = schemas
            .of_kind(group, version, kind)
            .expect("every built-in kind has a type");
        // Kinds that are answered and not stored have no lists.
        let list = schemas
            .of_kind(group, version, list_kind)
            .unwrap_or_else(|| json!({}));
        (object, list)
    };
    let can = |verb: &str| resource.verbs.contains(&verb);
    let patched = can("patch")
        || resource
            .subresources
            .iter()
            .any(|subresource| subresource.verbs.contains(&"patch"));
    let mut of_meta = |needed: bool, kind: &str| {
        if needed {
            schemas.of_meta(kind)
        } else {
            json!({})
        }
    };
    References {
        status: of_meta(can("delete"), "Status"),
        delete_options: of_meta(can("delete"), "DeleteOptions"),
        watch_event: of_meta(can("watch") && !resource.is_custom(), "WatchEvent"),
        patch: if patched {
            schemas.of_patch()
        } else {
            json!({})
        },
        subresources: resource
            .subresources
            .iter()
            .map(|subresource| of_subresource(schemas, resource, subresource, &object))
            .collect(),
        object,
        list,
    }
}

/// The schema of a subresource; `log` and the connect subresources have no object.
fn of_subresource(
    schemas: &mut Schemas,
    resource: &Resource,
    subresource: &Subresource,
    object: &Value,
) -> Option<Value> {
    match subresource.name {
        "log" => None,
        _ if subresource.kind == resource.kind && subresource.version.is_empty() => {
            Some(object.clone())
        }
        _ if subresource.version.is_empty() => {
            schemas.of_kind(&resource.group, &resource.version, &subresource.kind)
        }
        _ => schemas.of_kind(subresource.group, subresource.version, &subresource.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{discovery::groups, registry::Catalog};

    fn document(group: &str, root: &str) -> Value {
        let groups = groups(&Catalog::default());
        let group = groups
            .iter()
            .find(|g| g.name == group)
            .expect("it is built in");
        serde_json::from_slice(&of_version(root, &group.name, &group.versions[0]))
            .expect("it is JSON")
    }

    #[test]
    fn operations_are_named_as_in_the_real_server() {
        let apps = document("apps", "apis/apps/v1");
        let at = |path: &str, method: &str| {
            apps["paths"][format!("/apis/apps/v1/{path}")][method].clone()
        };
        for (path, method, id, action) in [
            (
                "deployments",
                "get",
                "listAppsV1DeploymentForAllNamespaces",
                "list",
            ),
            (
                "namespaces/{namespace}/deployments",
                "get",
                "listAppsV1NamespacedDeployment",
                "list",
            ),
            (
                "namespaces/{namespace}/deployments",
                "post",
                "createAppsV1NamespacedDeployment",
                "post",
            ),
            (
                "namespaces/{namespace}/deployments",
                "delete",
                "deleteAppsV1CollectionNamespacedDeployment",
                "deletecollection",
            ),
            (
                "namespaces/{namespace}/deployments/{name}",
                "put",
                "replaceAppsV1NamespacedDeployment",
                "put",
            ),
            (
                "namespaces/{namespace}/deployments/{name}",
                "delete",
                "deleteAppsV1NamespacedDeployment",
                "delete",
            ),
            (
                "namespaces/{namespace}/deployments/{name}/scale",
                "get",
                "readAppsV1NamespacedDeploymentScale",
                "get",
            ),
            (
                "watch/deployments",
                "get",
                "watchAppsV1DeploymentListForAllNamespaces",
                "watchlist",
            ),
            (
                "watch/namespaces/{namespace}/deployments",
                "get",
                "watchAppsV1NamespacedDeploymentList",
                "watchlist",
            ),
            (
                "watch/namespaces/{namespace}/deployments/{name}",
                "get",
                "watchAppsV1NamespacedDeployment",
                "watch",
            ),
        ] {
            let operation = at(path, method);
            assert_eq!(&operation["operationId"], &Value::from(id), "{path}");
            assert_eq!(
                &operation["x-kubernetes-action"],
                &Value::from(action),
                "{path}"
            );
        }
        let scale = at("namespaces/{namespace}/deployments/{name}/scale", "get");
        assert_eq!(
            scale["x-kubernetes-group-version-kind"],
            json!({"group": "autoscaling", "kind": "Scale", "version": "v1"})
        );
        assert_eq!(
            at("namespaces/{namespace}/deployments/{name}", "post"),
            Value::Null
        );
    }

    #[test]
    fn subresources_without_objects_are_text() {
        let core = document("", "api/v1");
        let pod = "/api/v1/namespaces/{namespace}/pods/{name}";
        for (path, method, id) in [
            ("log", "get", "readCoreV1NamespacedPodLog"),
            ("exec", "post", "connectCoreV1PostNamespacedPodExec"),
            ("proxy", "options", "connectCoreV1OptionsNamespacedPodProxy"),
            (
                "proxy/{path}",
                "get",
                "connectCoreV1GetNamespacedPodProxyWithPath",
            ),
        ] {
            let operation = &core["paths"][format!("{pod}/{path}")][method];
            assert_eq!(operation["operationId"], id);
            let content = operation["responses"]["200"]["content"]
                .as_object()
                .expect("an answer");
            assert!(
                content
                    .values()
                    .all(|media| media["schema"] == json!({"type": "string"})),
                "{path}: {content:?}"
            );
        }
    }

    #[test]
    fn every_path_of_every_document_can_be_followed() {
        for group in groups(&Catalog::default()) {
            for version in &group.versions {
                let text =
                    String::from_utf8(of_version("root", &group.name, version)).expect("text");
                let document: Value = serde_json::from_str(&text).expect("it is JSON");
                for reference in text.split("#/components/schemas/").skip(1) {
                    let name = reference.split('"').next().expect("there is a first part");
                    assert!(
                        document["components"]["schemas"][name].is_object(),
                        "{} refers to {name}",
                        group.name
                    );
                }
            }
        }
    }
}
