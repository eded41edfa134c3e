//! Roles, bindings and the rules in them.
//! In: stored roles and bindings. Out: the rules a user has in a namespace, and whether one of them
//! allows a request.
//! Guarantees: rules only ever add; a binding to a role that does not exist grants nothing and is
//! named in the reason.

use std::{collections::HashSet, fmt, ops::ControlFlow, sync::Arc};

use bellerophon_apimachinery::field::go_quote;
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    Attributes, Decision, Lookup, Source, Target,
    user::{User, as_service_account, service_account_name},
};

/// Problems that a decision names.
const PROBLEMS_MAX: usize = 100;

/// One rule of a role, read in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule<'a>(&'a Value);

impl<'a> Rule<'a> {
    /// The rules of a role.
    pub(crate) fn of(role: &'a Object) -> impl Iterator<Item = Self> {
        role.body.get("rules").into_iter().flat_map(Self::each)
    }

    /// The rules in a list.
    pub(crate) fn each(rules: &'a Value) -> impl Iterator<Item = Self> {
        rules.as_array().into_iter().flatten().map(Self)
    }

    /// The strings in one of the rule's lists.
    pub(crate) fn list(self, key: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
    }

    /// About as many bytes as the rule takes in JSON.
    pub(crate) fn bytes(self) -> usize {
        let lists = self.0.as_object().into_iter().flat_map(|rule| rule.keys());
        let values = lists.flat_map(|key| self.list(key));
        values.map(|value| value.len() + 3).sum()
    }

    /// Whether one of the rule's lists contains `value`.
    pub(crate) fn has(self, key: &str, value: &str) -> bool {
        self.list(key).any(|v| v == value)
    }

    /// Whether one of the rule's lists contains `value` or `*`.
    pub(crate) fn has_or_all(self, key: &str, value: &str) -> bool {
        self.list(key).any(|v| v == "*" || v == value)
    }

    /// Whether one of the rule's lists is missing or empty.
    pub(crate) fn is_empty(self, key: &str) -> bool {
        self.list(key).next().is_none()
    }

    /// Whether the rule is for `resource`, which may be `pods/log`: by name, by `*`, or by `*/log`.
    pub(crate) fn covers_resource(self, resource: &str) -> bool {
        self.has_or_all("resources", resource)
            || resource.split_once('/').is_some_and(|(_, sub)| {
                self.list("resources")
                    .any(|r| r.strip_prefix("*/").is_some_and(|rest| rest == sub))
            })
    }

    /// Whether the rule is for `path`: by name, or by a prefix that ends in `*`.
    pub(crate) fn covers_path(self, path: &str) -> bool {
        self.list("nonResourceURLs").any(|url| {
            url == path || url.ends_with('*') && path.starts_with(url.trim_end_matches('*'))
        })
    }

    /// Whether the rule allows the request.
    fn allows(self, attributes: &Attributes<'_>) -> bool {
        self.has_or_all("verbs", attributes.verb)
            && match attributes.target {
                Target::Path(path) => self.covers_path(path),
                Target::Resource {
                    group,
                    resource,
                    subresource,
                    name,
                    ..
                } => {
                    self.has_or_all("apiGroups", group)
                        && if subresource.is_empty() {
                            self.covers_resource(resource)
                        } else {
                            self.covers_resource(&format!("{resource}/{subresource}"))
                        }
                        && (self.is_empty("resourceNames") || self.has("resourceNames", name))
                }
            }
    }
}

/// A role that is bound to a user, and by what. Prints as the source that a review names.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    binding: Arc<Object>,
    subject: usize,
    /// The role bound.
    pub(crate) role: Arc<Object>,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meta = &self.binding.meta;
        let (kind, slash) = if meta.namespace.is_empty() {
            ("ClusterRoleBinding", "")
        } else {
            ("RoleBinding", "/")
        };
        let binding = go_quote(&format!("{}{slash}{}", meta.name, meta.namespace));
        let role_kind = self.binding.str_at("roleRef.kind");
        let role = go_quote(self.binding.str_at("roleRef.name"));
        let subject = Subject::of(&self.binding).nth(self.subject);
        let Some(Subject {
            kind: subject_kind,
            name,
            namespace,
        }) = subject
        else {
            return Err(fmt::Error);
        };
        let who = match (subject_kind, namespace) {
            ("ServiceAccount", "") => go_quote(&format!("{name}/{}", meta.namespace)),
            ("ServiceAccount", namespace) => go_quote(&format!("{name}/{namespace}")),
            _ => go_quote(name),
        };
        write!(
            f,
            "{kind} {binding} of {role_kind} {role} to {subject_kind} {who}"
        )
    }
}

/// A user or a group, by which bindings are found. Service accounts are users.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SubjectKey {
    User(Box<str>),
    Group(Box<str>),
}

/// A subject of a binding.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    kind: &'a str,
    name: &'a str,
    namespace: &'a str,
}

impl<'a> Subject<'a> {
    /// The subjects of a binding.
    pub(crate) fn of(binding: &'a Object) -> impl Iterator<Item = Self> {
        let text =
            |subject: &'a Value, key| subject.get(key).and_then(Value::as_str).unwrap_or_default();
        binding
            .body
            .get("subjects")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(move |s| Self {
                kind: text(s, "kind"),
                name: text(s, "name"),
                namespace: text(s, "namespace"),
            })
    }

    /// The user or group that the subject is in a binding of `namespace`; `None` if it is neither.
    pub(crate) fn key(self, namespace: &str) -> Option<SubjectKey> {
        match self.kind {
            "User" => Some(SubjectKey::User(self.name.into())),
            "Group" => Some(SubjectKey::Group(self.name.into())),
            "ServiceAccount" => match (self.namespace, namespace) {
                ("", "") => None,
                ("", namespace) | (namespace, _) => {
                    let user = service_account_name(namespace, self.name);
                    Some(SubjectKey::User(user.into()))
                }
            },
            _ => None,
        }
    }

    /// Whether this is the user; a service account without a namespace is in that of the binding.
    pub(crate) fn is(self, user: &User, namespace: &str) -> bool {
        match self.kind {
            "User" => user.name == self.name,
            "Group" => user.is_in(self.name),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() {
                    namespace
                } else {
                    self.namespace
                };
                !namespace.is_empty()
                    && as_service_account(&user.name) == Some((namespace, self.name))
            }
            _ => false,
        }
    }
}

/// The roles bound to a user, and the errors of bindings that were skipped.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// Cluster-wide ones first, each kind by the name of its binding.
    pub(crate) granted: Vec<Grant>,
    /// Error messages, without repetition, at most [`PROBLEMS_MAX`].
    pub(crate) problems: Vec<String>,
}

impl Grants {
    /// Everything bound to the user in `namespace`; with an empty namespace only what is bound
    /// cluster-wide.
    pub(crate) fn of(user: &User, namespace: &str, stored: &dyn Lookup) -> Self {
        let mut grants = Self::default();
        let _all: ControlFlow<()> = visit(user, namespace, stored, |found| {
            match found {
                Ok(grant) => grants.granted.push(grant),
                Err(problem) => grants.add_problem(problem),
            }
            ControlFlow::Continue(())
        });
        grants
    }

    /// Every rule of every role.
    pub(crate) fn rules(&self) -> impl Iterator<Item = Rule<'_>> {
        self.granted.iter().flat_map(|g| Rule::of(&g.role))
    }

    /// The same, for a role that is bound several times only once.
    pub(crate) fn distinct_rules(&self) -> impl Iterator<Item = Rule<'_>> {
        let mut seen = HashSet::new();
        self.granted
            .iter()
            .filter(move |grant| seen.insert((&grant.role.meta.namespace, &grant.role.meta.name)))
            .flat_map(|grant| Rule::of(&grant.role))
    }

    /// The problems as one text; empty when there are none.
    pub(crate) fn problem(&self) -> String {
        match self.problems.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        }
    }

    fn add_problem(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_MAX && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// Visits the roles that are bound to the user, cluster-wide ones first, until a visit breaks. A
/// role that does not exist is visited as an error message.
fn visit<B>(
    user: &User,
    namespace: &str,
    stored: &dyn Lookup,
    mut visit: impl FnMut(Result<Grant, String>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let everywhere = [""].into_iter();
    let namespaces = everywhere.chain((!namespace.is_empty()).then_some(namespace));
    for namespace in namespaces {
        for binding in stored.bindings_of(user, namespace) {
            let Some(subject) = Subject::of(&binding).position(|s| s.is(user, namespace)) else {
                continue;
            };
            let role = referred_role(&binding, namespace, stored);
            visit(role.map(|role| Grant {
                binding,
                subject,
                role,
            }))?;
        }
    }
    ControlFlow::Continue(())
}

/// The role of a binding.
///
/// # Errors
/// A message for a role that does not exist.
pub(crate) fn referred_role(
    binding: &Object,
    namespace: &str,
    stored: &dyn Lookup,
) -> Result<Arc<Object>, String> {
    let name = binding.str_at("roleRef.name");
    let (found, singular) = match binding.str_at("roleRef.kind") {
        "Role" => (stored.get(Source::Role, namespace, name), "role"),
        "ClusterRole" => (stored.get(Source::ClusterRole, "", name), "clusterrole"),
        other => {
            return Err(format!(
                "unsupported role reference kind: {}",
                go_quote(other)
            ));
        }
    };
    found.ok_or_else(|| {
        format!(
            "{singular}.rbac.authorization.k8s.io {} not found",
            go_quote(name)
        )
    })
}

/// Decides by the rules of the roles bound to the user.
pub(crate) fn decide(attributes: &Attributes<'_>, stored: &dyn Lookup) -> Decision {
    let namespace = match attributes.target {
        Target::Resource { namespace, .. } => namespace,
        Target::Path(_) => "",
    };
    let mut refused = Grants::default();
    let visited = visit(attributes.user, namespace, stored, |found| match found {
        Ok(grant) if Rule::of(&grant.role).any(|rule| rule.allows(attributes)) => {
            ControlFlow::Break(grant)
        }
        Ok(_) => ControlFlow::Continue(()),
        Err(problem) => {
            refused.add_problem(problem);
            ControlFlow::Continue(())
        }
    });
    match visited {
        ControlFlow::Break(grant) => Decision::Allow(format!("RBAC: allowed by {grant}")),
        ControlFlow::Continue(()) if refused.problems.is_empty() => {
            Decision::NoOpinion(String::new())
        }
        ControlFlow::Continue(()) => Decision::NoOpinion(format!("RBAC: {}", refused.problem())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::{authorize, fake_lookup::FakeLookup};

    /// `verb group/resource/subresource name@namespace`, or `verb /path`.
    fn decide(user: &User, request_info: &str, stored: &FakeLookup) -> Decision {
        let mut words = request_info.split(' ');
        let verb = words.next().expect("a verb");
        let what = words.next().expect("a target");
        let (name, namespace) = words
            .next()
            .unwrap_or("@")
            .split_once('@')
            .expect("name@namespace");
        let target = if what.starts_with('/') {
            Target::Path(what)
        } else {
            let mut parts = what.split('/');
            let mut next = || parts.next().unwrap_or_default();
            Target::Resource {
                group: next().trim_matches('-'),
                resource: next(),
                subresource: next(),
                namespace,
                name,
            }
        };
        authorize(&Attributes { user, verb, target }, stored)
    }

    fn ann() -> User {
        User {
            name: "ann".into(),
            groups: vec!["devs".into()],
            ..User::default()
        }
    }

    #[test]
    fn rules_allow_what_they_name_and_nothing_else() {
        let stored = FakeLookup::default()
            .bound(
                "r",
                "User ann",
                json!([
                    {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps", "*/log"]},
                    {"verbs": ["delete"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["only"]},
                    {"verbs": ["*"], "apiGroups": ["apps"], "resources": ["*"]},
                ]),
            )
            .bound_everywhere("paths", "Group devs", json!([{"verbs": ["get"], "nonResourceURLs": ["/livez/ping", "/custom/*"]}]));
        for (request_info, allowed) in [
            ("get -/configmaps a@ns", true),
            ("get -/configmaps a@other", false),
            ("get -/configmaps", false),
            ("list -/configmaps @ns", true),
            ("update -/configmaps a@ns", false),
            ("delete -/configmaps only@ns", true),
            ("delete -/configmaps other@ns", false),
            ("get -/pods/log p@ns", true),
            ("get -/pods p@ns", false),
            ("get -/configmaps/status a@ns", false),
            ("create apps/deployments/scale d@ns", true),
            ("create batch/jobs j@ns", false),
            ("get /livez/ping", true),
            ("put /livez/ping", false),
            ("get /custom/x/y", true),
            ("get /custom", false),
        ] {
            assert_eq!(
                decide(&ann(), request_info, &stored).is_allowed(),
                allowed,
                "{request_info}"
            );
        }
    }

    #[test]
    fn reason_names_binding_role_and_subject() {
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        let stored = FakeLookup::default()
            .bound("r", "User ann", rules.clone())
            .bound("s", "ServiceAccount default", rules.clone());
        let reason_for = |user: &User| match decide(user, "get -/pods p@ns", &stored) {
            Decision::Allow(reason) | Decision::NoOpinion(reason) => reason,
        };
        assert_eq!(
            reason_for(&ann()),
            r#"RBAC: allowed by RoleBinding "r/ns" of Role "r" to User "ann""#
        );
        let account = User::service_account("ns", "default", "");
        assert_eq!(
            reason_for(&account),
            r#"RBAC: allowed by RoleBinding "s/ns" of Role "s" to ServiceAccount "default/ns""#
        );
        let stored = FakeLookup::default().bound_everywhere("c", "Group devs", rules);
        assert_eq!(
            decide(&ann(), "get -/pods", &stored),
            Decision::Allow(
                r#"RBAC: allowed by ClusterRoleBinding "c" of ClusterRole "c" to Group "devs""#
                    .into()
            )
        );
    }

    #[test]
    fn binding_to_missing_role_is_named_in_refusal() {
        let mut stored = FakeLookup::default()
            .bound("r", "User ann", json!([]))
            .bound("q", "User ann", json!([]));
        stored.remove(Source::Role, "ns", "r");
        let missing = r#"role.rbac.authorization.k8s.io "r" not found"#;
        assert_eq!(
            decide(&ann(), "get -/pods @ns", &stored),
            Decision::NoOpinion(format!("RBAC: {missing}"))
        );
        stored.remove(Source::Role, "ns", "q");
        let both = format!(r#"RBAC: [role.rbac.authorization.k8s.io "q" not found, {missing}]"#);
        assert_eq!(
            decide(&ann(), "get -/pods @ns", &stored),
            Decision::NoOpinion(both)
        );
    }
}
