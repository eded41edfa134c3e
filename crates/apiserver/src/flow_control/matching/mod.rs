//! Matching: which FlowSchema a request belongs to.
//! In: user, verb and target of a request, and the rules of a FlowSchema. Out: whether they match.
//! Guarantees: rules match as in kube-apiserver 1.36 (`fc/rule.go`).

use bellerophon_apimachinery::json_ext::JsonExt as _;
use serde_json::Value;

use crate::auth::{Attributes, Target, User, service_account_name};

/// Matches every name where it is the only entry of a list.
const ALL: &str = "*";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// The flow distinguisher of a FlowSchema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distinguisher {
    /// There is one flow.
    None,
    ByUser,
    ByNamespace,
}

impl Distinguisher {
    pub(super) fn read(spec: &Value) -> Self {
        match spec.field("distinguisherMethod").text("type") {
            "ByUser" => Self::ByUser,
            "ByNamespace" => Self::ByNamespace,
            _ => Self::None,
        }
    }

    /// The flow distinguisher of a request.
    pub(super) fn of<'a>(self, request: &Attributes<'a>) -> &'a str {
        match (self, request.target) {
            (Self::ByUser, _) => &request.user.name,
            (Self::ByNamespace, Target::Resource { namespace, .. }) => namespace,
            _ => "",
        }
    }
}

/// A rule: these requests of these users.
#[derive(Debug)]
pub(super) struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<NonResourceRule>,
}

impl Rule {
    pub(super) fn read(rule: &Value) -> Self {
        Self {
            subjects: rule
                .list("subjects")
                .iter()
                .filter_map(Subject::read)
                .collect(),
            resources: rule
                .list("resourceRules")
                .iter()
                .map(ResourceRule::read)
                .collect(),
            paths: rule
                .list("nonResourceRules")
                .iter()
                .map(NonResourceRule::read)
                .collect(),
        }
    }

    /// Whether one subject and one rule match.
    pub(super) fn matches(&self, request: &Attributes<'_>) -> bool {
        self.subjects
            .iter()
            .any(|subject| subject.matches(request.user))
            && match &request.target {
                Target::Resource { .. } => self.resources.iter().any(|rule| rule.matches(request)),
                Target::Path(path) => self
                    .paths
                    .iter()
                    .any(|rule| rule.matches(request.verb, path)),
            }
    }
}

#[derive(Debug)]
enum Subject {
    Everyone,
    User(String),
    Group(String),
    /// Every service account of a namespace: the prefix of their user names.
    Namespace(String),
}

impl Subject {
    fn read(subject: &Value) -> Option<Self> {
        let kind = match subject.text("kind") {
            "User" => "user",
            "Group" => "group",
            "ServiceAccount" => "serviceAccount",
            _ => return None,
        };
        let named = subject.get_set(kind)?;
        let name = named.text("name");
        let namespace = named.text("namespace");
        Some(match (kind, name) {
            ("user" | "group", ALL) => Self::Everyone,
            ("group", name) => Self::Group(name.to_owned()),
            ("serviceAccount", ALL) => {
                Self::Namespace(format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:"))
            }
            ("serviceAccount", name) => Self::User(service_account_name(namespace, name)),
            (_, name) => Self::User(name.to_owned()),
        })
    }

    fn matches(&self, user: &User) -> bool {
        match self {
            Self::Everyone => true,
            Self::User(name) => user.name == *name,
            Self::Group(name) => user.is_in(name),
            Self::Namespace(prefix) => user.name.starts_with(prefix.as_str()),
        }
    }
}

/// A list of names, or all of them.
#[derive(Debug)]
enum Names {
    All,
    These(Vec<String>),
}

impl Names {
    fn read(rule: &Value, field: &str) -> Self {
        let names: Vec<&str> = rule.texts(field).collect();
        if names == [ALL] {
            Self::All
        } else {
            Self::These(names.into_iter().map(str::to_owned).collect())
        }
    }

    fn have(&self, matches: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.iter().any(|name| matches(name)),
        }
    }
}

#[derive(Debug)]
struct ResourceRule {
    verbs: Names,
    groups: Names,
    /// `pods`, `pods/status`.
    resources: Names,
    cluster_scope: bool,
    namespaces: Names,
}

impl ResourceRule {
    fn read(rule: &Value) -> Self {
        Self {
            verbs: Names::read(rule, "verbs"),
            groups: Names::read(rule, "apiGroups"),
            resources: Names::read(rule, "resources"),
            cluster_scope: rule.is_true("clusterScope"),
            namespaces: Names::read(rule, "namespaces"),
        }
    }

    fn matches(&self, request: &Attributes<'_>) -> bool {
        let Target::Resource {
            group,
            resource,
            subresource,
            namespace,
            ..
        } = request.target
        else {
            return false;
        };
        let is_resource = |name: &str| match subresource {
            "" => name == resource,
            subresource => name
                .strip_prefix(resource)
                .and_then(|rest| rest.strip_prefix('/'))
                .is_some_and(|rest| rest == subresource),
        };
        self.verbs.have(|verb| verb == request.verb)
            && self.resources.have(is_resource)
            && self.groups.have(|name| name == group)
            && match namespace {
                "" => self.cluster_scope,
                namespace => self.namespaces.have(|name| name == namespace),
            }
    }
}

#[derive(Debug)]
struct NonResourceRule {
    verbs: Names,
    /// `*`, a path, or a prefix with all paths below it.
    paths: Vec<String>,
}

impl NonResourceRule {
    fn read(rule: &Value) -> Self {
        Self {
            verbs: Names::read(rule, "verbs"),
            paths: rule.texts("nonResourceURLs").map(str::to_owned).collect(),
        }
    }

    fn matches(&self, verb: &str, path: &str) -> bool {
        self.verbs.have(|name| name == verb) && self.paths.iter().any(|rule| covers(rule, path))
    }
}

fn covers(rule: &str, path: &str) -> bool {
    if rule == ALL || rule == path {
        return true;
    }
    let prefix = rule.strip_suffix('*').unwrap_or(rule);
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
