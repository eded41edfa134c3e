//! Requests, as rights see them: a verb on a resource.
//! In: HTTP requests and the codes of their answers. Out: what was refused, what was written, which rights were used.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Request};
use k8s_openapi::api::rbac::v1::PolicyRule;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// As rights name it: `get`, `list`, `watch`, `create`, …
    pub verb: &'static str,
    /// Empty for the core group.
    pub group: String,
    /// `deployments`, or `deployments/status`.
    pub resource: String,
    /// Empty for cluster-scoped objects and for all namespaces at once.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// The code of the answer; 0 as long as there is none.
    pub code: u16,
}

impl Seen {
    /// Whether it may have changed something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    /// Whether it is a write of the operator's own: leases and events, which every operator writes, do not count.
    pub(crate) fn counts(&self) -> bool {
        self.is_write() && !matches!(self.resource.as_str(), "leases" | "events")
    }

    /// Whether it made an object.
    pub(crate) fn created(&self) -> bool {
        self.code == 201 && self.counts()
    }

    /// Reads a request; `None` for paths that lead to no resource.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        let parts: Vec<&str> = request
            .uri()
            .path()
            .split('/')
            .filter(|part| !part.is_empty())
            .collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..]
                if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) =>
            {
                (*namespace, rest)
            }
            _ => ("", rest),
        };
        let (resource, name, part) = match rest {
            [resource] => (*resource, "", ""),
            [resource, name] => (*resource, *name, ""),
            [resource, name, part, ..] => (*resource, *name, *part),
            [] => return None,
        };
        let watches = request.uri().query().is_some_and(|query| {
            query
                .split('&')
                .any(|q| matches!(q, "watch=true" | "watch=1" | "watch"))
        });
        let verb = match *request.method() {
            Method::GET if watches => "watch",
            Method::GET if name.is_empty() => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            _ => return None,
        };
        let resource = if part.is_empty() {
            resource.to_owned()
        } else {
            format!("{resource}/{part}")
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
}

impl fmt::Display for Seen {
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

/// The requests of one client, in order. Clones are the same record.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Vec<Seen>>>);

impl Record {
    pub(crate) fn note(&self, seen: Seen) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seen);
    }

    /// All requests so far.
    pub fn all(&self) -> Vec<Seen> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Writes so far, refused ones too. Leases and events, which every operator writes, do not count.
    pub fn writes(&self) -> Vec<Seen> {
        self.all().into_iter().filter(Seen::counts).collect()
    }

    /// Requests that the client had no right to make.
    pub fn forbidden(&self) -> Vec<Seen> {
        self.all()
            .into_iter()
            .filter(|seen| seen.code == 403)
            .collect()
    }

    /// Rights that were never used, as `verb group/resource`. A watch needs the right to list as well: it streams the list
    /// where the server can do that, and lists where it cannot; an apply that makes a new object needs the right to create.
    pub fn unused(&self, rules: &[PolicyRule]) -> Vec<String> {
        let all = self.all();
        let mut unused = Vec::new();
        for rule in rules {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    for verb in &rule.verbs {
                        let is_use = |seen: &Seen| match verb.as_str() {
                            "list" => matches!(seen.verb, "list" | "watch"),
                            "create" => {
                                seen.verb == "create" || (seen.verb == "patch" && seen.code == 201)
                            }
                            verb => seen.verb == verb,
                        };
                        let used = all.iter().any(|seen| {
                            is_use(seen) && seen.group == *group && seen.resource == *resource
                        });
                        if !used {
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
    fn requests_read_as_rights() {
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
            assert_eq!(
                Seen::of(&request).map(|seen| seen.to_string()).as_deref(),
                Some(expected)
            );
        }
        let request = Request::builder()
            .uri("/version")
            .body(())
            .expect("a request");
        assert_eq!(Seen::of(&request), None);
    }
}
