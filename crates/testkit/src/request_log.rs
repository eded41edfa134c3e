//! The requests of an account, as RBAC sees them: a verb on a resource.
//!
//! Input: HTTP requests and the status codes of their responses. Output: which requests were
//! forbidden, what was written, and which permissions were never used.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Request};
use k8s_openapi::api::rbac::v1::PolicyRule;

/// One request to a resource.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # use bellerophon_testkit::TestCluster;
/// # use k8s_openapi::api::core::v1::Pod;
/// # let cluster = TestCluster::api_server_only().await;
/// let account = cluster.service_account("operator", &[]).await;
/// let pods = kube::Api::<Pod>::namespaced(account.client.clone(), "default");
/// pods.get("web").await.expect_err("the account has no permissions");
/// let request = &account.requests.all()[0];
/// assert_eq!(request.to_string(), "get /pods default/web: 403");
/// assert!(!request.is_write());
/// # cluster.stop().await;
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The RBAC verb: `get`, `list`, `watch`, `create`, …
    pub verb: &'static str,
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, with its subresource if any: `deployments` or `deployments/status`.
    pub resource: String,
    /// Empty for cluster-scoped objects and for requests to all namespaces.
    pub namespace: String,
    /// Empty for requests to collections.
    pub name: String,
    /// The HTTP status code of the response; 0 before there is one.
    pub code: u16,
}

impl RecordedRequest {
    /// Whether the request may have changed an object.
    pub fn is_write(&self) -> bool {
        // Whatever is not known to be a read counts as a write.
        !matches!(self.verb, "get" | "list" | "watch")
    }

    /// Whether the request is a write that counts. Leases and Events, which every operator writes,
    /// do not.
    pub(crate) fn is_counted_write(&self) -> bool {
        self.is_write() && !matches!(self.resource.as_str(), "leases" | "events")
    }

    /// Whether the request created an object.
    pub(crate) fn is_create(&self) -> bool {
        self.code == 201 && self.is_counted_write()
    }

    /// Parses a request. Returns `None` for non-resource paths.
    pub(crate) fn parse<B>(request: &Request<B>) -> Option<Self> {
        let segments: Vec<&str> = request
            .uri()
            .path()
            .split('/')
            .filter(|segment| !segment.is_empty())
            .collect();
        let (group, rest) = match segments.as_slice() {
            ["api", _version, rest @ ..] => ("", rest),
            ["apis", group, _version, rest @ ..] => (*group, rest),
            _ => return None,
        };
        // `namespaces/a` and its subresources are the Namespace itself, not a scope.
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..]
                if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) =>
            {
                (*namespace, rest)
            }
            _ => ("", rest),
        };
        let (resource, name, subresource) = match rest {
            [resource] => (*resource, "", ""),
            [resource, name] => (*resource, *name, ""),
            [resource, name, subresource, ..] => (*resource, *name, *subresource),
            [] => return None,
        };
        // As RequestInfoFactory of apiserver: a list with `watch` is authorized as a watch.
        let is_watch = request.uri().query().is_some_and(|query| {
            query
                .split('&')
                .any(|parameter| matches!(parameter, "watch=true" | "watch=1" | "watch"))
        });
        let verb = match *request.method() {
            Method::GET if is_watch => "watch",
            Method::GET if name.is_empty() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            _ => return None,
        };
        let resource = if subresource.is_empty() {
            resource.to_owned()
        } else {
            format!("{resource}/{subresource}")
        };
        Some(Self {
            verb,
            group: group.to_owned(),
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            code: 0,
        })
    }

    /// Whether the request exercises the permission of a verb. A watch needs `list` as well: it
    /// streams the initial list if the server supports that, and lists if it does not. An apply
    /// that creates an object needs `create`.
    fn uses_verb(&self, verb: &str) -> bool {
        match verb {
            "list" => matches!(self.verb, "list" | "watch"),
            "create" => self.verb == "create" || (self.verb == "patch" && self.code == 201),
            verb => self.verb == verb,
        }
    }
}

impl fmt::Display for RecordedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verb,
            group,
            resource,
            namespace,
            name,
            code,
        } = self;
        write!(f, "{verb} {group}/{resource} {namespace}/{name}: {code}")
    }
}

/// The requests of one account, oldest first. Clones share their entries.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # use bellerophon_testkit::TestCluster;
/// # let cluster = TestCluster::api_server_only().await;
/// let account = cluster.service_account("operator", &[]).await;
/// assert!(account.requests.all().is_empty());
/// assert!(account.requests.writes().is_empty());
/// assert!(account.requests.forbidden().is_empty());
/// # cluster.stop().await;
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct RequestLog(Arc<Mutex<Vec<RecordedRequest>>>);

impl RequestLog {
    pub(crate) fn push(&self, request: RecordedRequest) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
    }

    /// All requests so far.
    pub fn all(&self) -> Vec<RecordedRequest> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// All writes so far, including refused ones. Leases and Events, which every operator writes,
    /// do not count.
    pub fn writes(&self) -> Vec<RecordedRequest> {
        let mut requests = self.all();
        requests.retain(RecordedRequest::is_counted_write);
        requests
    }

    /// Requests that were answered with 403 Forbidden.
    pub fn forbidden(&self) -> Vec<RecordedRequest> {
        let mut requests = self.all();
        requests.retain(|request| request.code == 403);
        requests
    }

    /// Permissions of these rules that no request has used, as `verb group/resource`.
    pub fn unused_permissions(&self, rules: &[PolicyRule]) -> Vec<String> {
        let requests = self.all();
        let mut unused = Vec::new();
        for rule in rules {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    for verb in &rule.verbs {
                        let is_used = requests.iter().any(|request| {
                            request.uses_verb(verb)
                                && request.group == *group
                                && request.resource == *resource
                        });
                        if !is_used {
                            unused.push(format!("{verb} {group}/{resource}"));
                        }
                    }
                }
            }
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_into_rbac_verbs_and_resources() {
        for (method, uri, expected) in [
            (
                "GET",
                "/api/v1/namespaces/a/pods?watch=true",
                "watch /pods a/: 0",
            ),
            (
                "GET",
                "/apis/apps/v1/deployments?limit=5",
                "list apps/deployments /: 0",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d/status",
                "patch apps/deployments/status a/d: 0",
            ),
            (
                "POST",
                "/api/v1/namespaces/a/pods/p/eviction",
                "create /pods/eviction a/p: 0",
            ),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                "update /namespaces/finalize /a: 0",
            ),
            ("GET", "/api/v1/namespaces/a", "get /namespaces /a: 0"),
            ("DELETE", "/api/v1/nodes", "deletecollection /nodes /: 0"),
        ] {
            let request = Request::builder()
                .method(method)
                .uri(uri)
                .body(())
                .expect("a request");
            let parsed = RecordedRequest::parse(&request).map(|request| request.to_string());
            assert_eq!(parsed.as_deref(), Some(expected));
        }
    }

    #[test]
    fn non_resource_paths_are_not_recorded() {
        let request = Request::builder()
            .uri("/version")
            .body(())
            .expect("a request");
        assert_eq!(RecordedRequest::parse(&request), None);
    }
}
