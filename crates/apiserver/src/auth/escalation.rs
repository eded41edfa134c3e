//! Nobody grants more than they hold.
//! In: a role or binding on its way into storage, and who writes it. Out: nothing, or the refusal with what is missing.
//! Holds: whoever may `escalate` the role or `bind` the referred role, and `system:masters`, are not asked for more.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Attributes, Lookup, Source, Target, authorize,
    rbac::{Grants, Rule, referred_role},
    user::{MASTERS, User},
};
use crate::{error::ApiError, field::go_quote, object::Object};

/// Refuses a role or binding through which `user` would grant what they do not hold.
///
/// `source` is the kind written, one of the four of RBAC; `old` is the stored object when it is an update.
///
/// # Errors
/// `Forbidden` with every permission that is missing; `NotFound` when a binding refers to a role that does not exist.
pub(crate) fn confirm_no_escalation(
    user: &User,
    source: Source,
    new: &Object,
    old: Option<&Object>,
    stored: &dyn Lookup,
) -> Result<(), ApiError> {
    if user.is_in(MASTERS) || old.is_some_and(|old| only_ownership_changes(new, old)) {
        return Ok(());
    }
    let writer = Writer {
        user,
        source,
        new,
        stored,
    };
    match source {
        Source::Role | Source::ClusterRole => writer.confirm_role(old),
        Source::RoleBinding | Source::ClusterRoleBinding => writer.confirm_binding(),
        Source::ServiceAccount | Source::Secret | Source::Pod | Source::Node => Ok(()),
    }
}

struct Writer<'a> {
    user: &'a User,
    source: Source,
    new: &'a Object,
    stored: &'a dyn Lookup,
}

impl Writer<'_> {
    fn confirm_role(&self, old: Option<&Object>) -> Result<(), ApiError> {
        if self.may("escalate", self.source, &self.new.meta.name) {
            return Ok(());
        }
        self.confirm_holds(Rule::of(self.new).flat_map(atoms).collect())?;
        let aggregates = |role: &Object| {
            role.at("aggregationRule.clusterRoleSelectors")
                .and_then(|s| s.as_array())
                .is_some_and(|list| !list.is_empty())
        };
        if self.source == Source::ClusterRole
            && (aggregates(self.new) || old.is_some_and(aggregates))
        {
            let everything = vec![
                Atom::Resource {
                    group: "*",
                    resource: "*",
                    name: None,
                    verb: "*",
                },
                Atom::Path {
                    url: "*",
                    verb: "*",
                },
            ];
            self.confirm_holds(everything).map_err(|_| {
                self.forbidden("must have cluster-admin privileges to use the aggregationRule")
            })?;
        }
        Ok(())
    }

    fn confirm_binding(&self) -> Result<(), ApiError> {
        let name = self.new.str_at("roleRef.name");
        let role = match self.new.str_at("roleRef.kind") {
            "Role" => Source::Role,
            _ => Source::ClusterRole,
        };
        if self.may("bind", role, name) {
            return Ok(());
        }
        // Kubernetes names the kind that is written, not the one that is missing.
        let missing = || ApiError::NotFound {
            resource: self.source.group_resource(),
            name: name.to_owned(),
        };
        let role = referred_role(self.new, &self.new.meta.namespace, self.stored)
            .map_err(|_| missing())?;
        self.confirm_holds(Rule::of(&role).flat_map(atoms).collect())
    }

    fn may(&self, verb: &str, source: Source, name: &str) -> bool {
        let namespace = self.new.meta.namespace.as_str();
        let target = Target::Resource {
            group: source.group(),
            resource: source.resource(),
            subresource: "",
            namespace,
            name,
        };
        authorize(
            &Attributes {
                user: self.user,
                verb,
                target,
            },
            self.stored,
        )
        .is_allowed()
    }

    fn confirm_holds(&self, wanted: Vec<Atom<'_>>) -> Result<(), ApiError> {
        let held = Grants::of(self.user, &self.new.meta.namespace, self.stored);
        let missing: Vec<Atom<'_>> = wanted
            .into_iter()
            .filter(|atom| !held.rules().any(|rule| atom.is_covered_by(rule)))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let groups: Vec<String> = self.user.groups.iter().map(|g| go_quote(g)).collect();
        let mut why = format!(
            "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            go_quote(&self.user.name),
            groups.join(" "),
            described(&missing)
        );
        if !held.problems.is_empty() {
            why.push_str(&format!("; resolution errors: [{}]", held.problem()));
        }
        Err(self.forbidden(&why))
    }

    fn forbidden(&self, why: &str) -> ApiError {
        ApiError::forbidden(self.source.group_resource(), &self.new.meta.name, why)
    }
}

/// The smallest grant: one verb on one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Atom<'a> {
    Resource {
        group: &'a str,
        resource: &'a str,
        name: Option<&'a str>,
        verb: &'a str,
    },
    Path {
        url: &'a str,
        verb: &'a str,
    },
}

impl Atom<'_> {
    fn is_covered_by(&self, rule: Rule<'_>) -> bool {
        match *self {
            Self::Path { url, verb } => rule.has_or_all("verbs", verb) && rule.covers_path(url),
            Self::Resource {
                group,
                resource,
                name,
                verb,
            } => {
                rule.has_or_all("verbs", verb)
                    && rule.has_or_all("apiGroups", group)
                    && rule.covers_resource(resource)
                    && (rule.is_empty("resourceNames")
                        || name.is_some_and(|name| rule.has("resourceNames", name)))
            }
        }
    }
}

/// A rule taken apart.
fn atoms(rule: Rule<'_>) -> Vec<Atom<'_>> {
    let mut atoms = Vec::new();
    for group in rule.list("apiGroups") {
        for resource in rule.list("resources") {
            for verb in rule.list("verbs") {
                if rule.is_empty("resourceNames") {
                    atoms.push(Atom::Resource {
                        group,
                        resource,
                        name: None,
                        verb,
                    });
                }
                atoms.extend(rule.list("resourceNames").map(|name| Atom::Resource {
                    group,
                    resource,
                    name: Some(name),
                    verb,
                }));
            }
        }
    }
    for url in rule.list("nonResourceURLs") {
        atoms.extend(rule.list("verbs").map(|verb| Atom::Path { url, verb }));
    }
    atoms
}

/// What is missing, one line per resource with its verbs together, lines in order.
fn described(missing: &[Atom<'_>]) -> String {
    let mut verbs_of: BTreeMap<(&str, &str, Option<&str>), Vec<String>> = BTreeMap::new();
    let mut lines = BTreeSet::new();
    for atom in missing {
        match *atom {
            Atom::Path { url, verb } => {
                lines.insert(format!(
                    "{{NonResourceURLs:[{}], Verbs:[{}]}}",
                    go_quote(url),
                    go_quote(verb)
                ));
            }
            Atom::Resource {
                group,
                resource,
                name,
                verb,
            } => {
                verbs_of
                    .entry((group, resource, name))
                    .or_default()
                    .push(go_quote(verb));
            }
        }
    }
    for ((group, resource, name), verbs) in verbs_of {
        let names = name
            .map(|name| format!("ResourceNames:[{}], ", go_quote(name)))
            .unwrap_or_default();
        let (group, resource) = (go_quote(group), go_quote(resource));
        lines.insert(format!(
            "{{APIGroups:[{group}], Resources:[{resource}], {names}Verbs:[{}]}}",
            verbs.join(" ")
        ));
    }
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

/// Whether an update touches nothing but who owns the object and what holds its deletion.
fn only_ownership_changes(new: &Object, old: &Object) -> bool {
    let bare = |object: &Object| {
        let mut object = object.clone();
        object.meta.owner_references.clear();
        object.meta.finalizers.clear();
        object.meta.managed_fields.clear();
        object
    };
    bare(new) == bare(old)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::auth::shelf::Shelf;

    fn object(value: Value) -> Object {
        let Value::Object(map) = value else {
            panic!("an object was expected")
        };
        Object::from_map(map).expect("good metadata")
    }

    fn ann() -> User {
        User {
            name: "ann".into(),
            groups: vec!["system:authenticated".into()],
            ..User::default()
        }
    }

    fn shelf() -> Shelf {
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]);
        Shelf::default()
            .bound("r", "User ann", rules)
            .with(
                Source::Role,
                json!({"metadata": {"name": "sec", "namespace": "ns"},
                       "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]}),
            )
            .with(
                Source::ClusterRole,
                json!({"metadata": {"name": "all"},
                       "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}]}),
            )
    }

    fn said(source: Source, value: Value, stored: &Shelf) -> String {
        match confirm_no_escalation(&ann(), source, &object(value), None, stored) {
            Ok(()) => "ok".into(),
            Err(error) => error.to_status()["message"]
                .as_str()
                .expect("text")
                .to_owned(),
        }
    }

    #[test]
    fn role_with_more_than_its_writer_holds_is_refused() {
        let role =
            |rules: Value| json!({"metadata": {"name": "x", "namespace": "ns"}, "rules": rules});
        let head = "roles.rbac.authorization.k8s.io \"x\" is forbidden: user \"ann\" (groups=[\"system:authenticated\"]) \
                    is attempting to grant RBAC permissions not currently held:\n";
        for (rules, missing) in [
            (
                json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]),
                "",
            ),
            (
                json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"]}]),
                "",
            ),
            (json!(null), ""),
            (
                json!([{"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["configmaps"]},
                       {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s"]}]),
                "{APIGroups:[\"\"], Resources:[\"configmaps\"], Verbs:[\"list\" \"watch\"]}\n\
                 {APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"s\"], Verbs:[\"get\"]}",
            ),
        ] {
            let want = if missing.is_empty() {
                "ok".into()
            } else {
                format!("{head}{missing}")
            };
            assert_eq!(
                said(Source::Role, role(rules.clone()), &shelf()),
                want,
                "{rules}"
            );
        }
    }

    #[test]
    fn binding_grants_only_roles_that_are_held() {
        let binding = |kind: &str, name: &str| json!({"metadata": {"name": "b", "namespace": "ns"}, "roleRef": {"kind": kind, "name": name}});
        let head = "rolebindings.rbac.authorization.k8s.io \"b\" is forbidden: user \"ann\" (groups=[\"system:authenticated\"]) \
                    is attempting to grant RBAC permissions not currently held:\n";
        let all = format!(
            "{head}{{APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}}\n{{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}}"
        );
        for (kind, name, want) in [
            ("Role", "r", "ok"),
            (
                "Role",
                "sec",
                &format!("{head}{{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}}"),
            ),
            ("ClusterRole", "all", &all),
            (
                "Role",
                "missing",
                "rolebindings.rbac.authorization.k8s.io \"missing\" not found",
            ),
        ] {
            assert_eq!(
                said(Source::RoleBinding, binding(kind, name), &shelf()),
                want,
                "{kind} {name}"
            );
        }
        let stored = shelf().bound(
            "binder",
            "User ann",
            json!([{"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "resourceNames": ["sec"]}]),
        );
        assert_eq!(
            said(Source::RoleBinding, binding("Role", "sec"), &stored),
            "ok"
        );
    }

    #[test]
    fn aggregation_is_for_those_who_may_do_everything() {
        let role =
            json!({"metadata": {"name": "agg"}, "aggregationRule": {"clusterRoleSelectors": [{}]}});
        assert_eq!(
            said(Source::ClusterRole, role.clone(), &shelf()),
            "clusterroles.rbac.authorization.k8s.io \"agg\" is forbidden: must have cluster-admin privileges to use the aggregationRule"
        );
        let escalate =
            json!([{"verbs": ["escalate"], "apiGroups": ["*"], "resources": ["clusterroles"]}]);
        assert_eq!(
            said(
                Source::ClusterRole,
                role,
                &shelf().bound_everywhere("e", "User ann", escalate)
            ),
            "ok"
        );
    }

    #[test]
    fn collector_may_change_owners_of_any_role() {
        let role = |finalizers: Value, verb: &str| {
            object(
                json!({"metadata": {"name": "x", "namespace": "ns", "finalizers": finalizers},
                          "rules": [{"verbs": [verb], "apiGroups": ["*"], "resources": ["*"]}]}),
            )
        };
        let update = |new: &Object| {
            confirm_no_escalation(
                &ann(),
                Source::Role,
                new,
                Some(&role(json!(["a"]), "*")),
                &shelf(),
            )
        };
        assert!(update(&role(json!([]), "*")).is_ok());
        assert!(update(&role(json!([]), "get")).is_err());
        assert!(update(&role(json!(["a"]), "*")).is_ok());
    }
}
