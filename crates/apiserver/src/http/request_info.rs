//! Verb and target of a request. Mirrors `RequestInfo` of `apiserver/pkg/endpoints/request`.
//! In: method, path and query. Out: the verb and target that rules are about.
//! Guarantees: a list or watch of one name counts as about that name; a namespace counts as being
//! in itself.

use bellerophon_apimachinery::names;
use bellerophon_storage::FieldSelector;
use http::Method;

use super::{query::Query, route::ResourcePath};

/// Subresources whose requests are passed on to kubelets, pods and Services.
pub(crate) const CONNECT_SUBRESOURCES: [&str; 5] =
    ["attach", "exec", "log", "portforward", "proxy"];

/// Verb and target of a request, without its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestInfo {
    pub(crate) verb: String,
    /// The path of a request that is about no resource; otherwise empty.
    pub(crate) path: String,
    pub(crate) resource: ResourcePath,
}

impl RequestInfo {
    /// The attributes of a request to a resource.
    pub(crate) fn of_resource(method: &Method, path: &ResourcePath, query: &Query) -> Self {
        let mut resource = path.clone();
        let collection = resource.name.is_empty();
        let verb = match method.as_str() {
            "GET" | "HEAD" if path.watch || collection && query.flag("watch") => "watch",
            "GET" | "HEAD" if collection => "list",
            "GET" | "HEAD" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if collection => "deletecollection",
            "DELETE" => "delete",
            _ => "",
        };
        if collection && matches!(verb, "list" | "watch") {
            resource.name = selected_name(query).unwrap_or_default();
        }
        if resource.group.is_empty() && resource.resource == "namespaces" {
            resource.namespace.clone_from(&path.name);
        }
        Self {
            verb: verb.to_owned(),
            path: String::new(),
            resource,
        }
    }

    /// The attributes of a request to any other path.
    pub(crate) fn of_path(method: &Method, path: &str) -> Self {
        Self {
            verb: method.as_str().to_ascii_lowercase(),
            path: path.to_owned(),
            resource: ResourcePath::default(),
        }
    }

    /// Whether the request is about a resource.
    pub(crate) fn is_resource(&self) -> bool {
        self.path.is_empty()
    }

    /// Whether the request is about one of these subresources.
    pub(crate) fn is_subresource(&self, names: &[&str]) -> bool {
        names.contains(&self.resource.subresource.as_str())
    }

    /// Whether the request may take as long as it likes: a watch, or a connection.
    pub(crate) fn is_long_running(&self) -> bool {
        self.verb == "watch" || self.is_subresource(&CONNECT_SUBRESOURCES)
    }

    /// The namespace and the name that the request is about; empty where it is about all.
    pub(crate) fn scope(&self) -> (&str, &str) {
        (&self.resource.namespace, &self.resource.name)
    }

    /// Verb, path, namespace, name, API version, resource and subresource, each possibly empty.
    pub(crate) fn columns(&self) -> [String; 7] {
        let ResourcePath {
            group,
            version,
            namespace,
            resource,
            name,
            subresource,
            ..
        } = &self.resource;
        let api_version = match group.as_str() {
            "" => version.clone(),
            group => format!("{group}/{version}"),
        };
        let path = match self.path.as_str() {
            "" => self.resource.to_path(),
            path => path.to_owned(),
        };
        [
            self.verb.clone(),
            path,
            namespace.clone(),
            name.clone(),
            api_version,
            resource.clone(),
            subresource.clone(),
        ]
    }
}

/// The one name that a field selector matches.
fn selected_name(query: &Query) -> Option<String> {
    let selector = FieldSelector::parse(query.get("fieldSelector")?).ok()?;
    selector
        .required("metadata.name")
        .filter(|name| names::path_segment(name).is_empty())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::route::Route;

    #[test]
    fn request_info_has_verb_and_target() {
        for (method, url, want) in [
            ("GET", "/api/v1/namespaces/a/pods", "list pods// @a"),
            (
                "GET",
                "/api/v1/namespaces/a/pods?watch=1",
                "watch pods// @a",
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods/b?watch=1",
                "get pods//b @a",
            ),
            (
                "GET",
                "/api/v1/watch/namespaces/a/pods/b",
                "watch pods//b @a",
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx",
                "list pods//x @a",
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name!%3Dx",
                "list pods// @a",
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx%2Fy",
                "list pods// @a",
            ),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx",
                "deletecollection pods// @a",
            ),
            (
                "POST",
                "/api/v1/namespaces/a/pods/b/eviction",
                "create pods/eviction/b @a",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d",
                "patch deployments//d @a",
            ),
            ("GET", "/api/v1/namespaces", "list namespaces// @"),
            ("DELETE", "/api/v1/namespaces/a", "delete namespaces//a @a"),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                "update namespaces/finalize/a @a",
            ),
            ("HEAD", "/api/v1/nodes/n", "get nodes//n @"),
            ("GET", "/healthz/ping", "get /healthz/ping"),
            ("OPTIONS", "/version", "options /version"),
        ] {
            let (path, query) = url.split_once('?').unwrap_or((url, ""));
            let method: Method = method.parse().expect("a method");
            let request_info = match Route::parse(path) {
                Route::Resource(resource) => {
                    let query = Query::parse(query).expect("a good query");
                    RequestInfo::of_resource(&method, &resource, &query)
                }
                _ => RequestInfo::of_path(&method, path),
            };
            let RequestInfo {
                verb,
                path,
                resource: target,
            } = request_info;
            let info = if path.is_empty() {
                let ResourcePath {
                    resource,
                    subresource,
                    name,
                    namespace,
                    ..
                } = target;
                format!("{verb} {resource}/{subresource}/{name} @{namespace}")
            } else {
                format!("{verb} {path}")
            };
            assert_eq!(info, want, "{method} {url}");
        }
    }
}
