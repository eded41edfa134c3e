//! Privilege escalation prevention of RBAC objects.
//! In: a role or binding that is written, and its writer. Out: nothing, or a Forbidden error with
//! the missing permissions.
//! Guarantees: users that may `escalate` the role or `bind` the referred role, and
//! `system:masters`, need nothing more.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{error::ApiError, field::go_quote};
use bellerophon_codec::object::Object;
use serde_json::json;

use super::{
    Attributes, Lookup, Source, Target, authorize,
    coverage::{Permission, TooComplex, UNCOVERED_MAX, uncovered},
    rbac::{Grants, Rule, referred_role},
    user::{MASTERS, User},
};

/// Lines of a refusal: more than the roles of a usual cluster have.
const LINES_MAX: usize = 100;

/// A refusal gets no further line when it is this long.
const BYTES_MAX: usize = 64 * 1024;

/// Refuses a role or binding through which `user` would grant what they do not hold.
///
/// `source` is the kind written, one of the four of RBAC; `old` is the stored object when it is an
/// update.
///
/// # Errors
/// `Forbidden` with every permission that is missing; `NotFound` when a binding refers to a role
/// that does not exist.
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
        self.confirm_holds(Rule::of(self.new))?;
        let aggregates = |role: &Object| {
            role.at("aggregationRule.clusterRoleSelectors")
                .and_then(|s| s.as_array())
                .is_some_and(|list| !list.is_empty())
        };
        if self.source == Source::ClusterRole
            && (aggregates(self.new) || old.is_some_and(aggregates))
        {
            let everything = json!([
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]);
            self.confirm_holds(Rule::each(&everything)).map_err(|_| {
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
        self.confirm_holds(Rule::of(&role))
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

    fn confirm_holds<'r>(&self, wanted: impl Iterator<Item = Rule<'r>>) -> Result<(), ApiError> {
        let held = Grants::of(self.user, &self.new.meta.namespace, self.stored);
        let rules: Vec<Rule<'_>> = held.distinct_rules().collect();
        let uncovered = uncovered(&rules, wanted).map_err(|TooComplex| {
            self.forbidden(
                "the role has too many combinations of groups, resources and verbs \
                 to be compared with the permissions of its writer",
            )
        })?;
        if uncovered.is_empty() {
            return Ok(());
        }
        let groups: Vec<String> = self.user.groups.iter().map(|g| go_quote(g)).collect();
        let mut why = format!(
            "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            go_quote(&self.user.name),
            groups.join(" "),
            described(&uncovered)
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

/// The uncovered permissions as upstream lists them: one line per resource with its verbs, lines
/// sorted. At most [`LINES_MAX`] lines, and few of them if they are long.
fn described(uncovered: &[Permission<'_>]) -> String {
    let mut verbs_of: BTreeMap<Permission<'_>, Vec<&str>> = BTreeMap::new();
    for permission in uncovered {
        let (line, verb) = permission.without_verb();
        verbs_of.entry(line).or_default().push(verb);
    }
    let mut lines = BTreeSet::new();
    let mut bytes = 0;
    let mut is_cut = uncovered.len() >= UNCOVERED_MAX;
    for (permission, verbs) in verbs_of {
        if lines.len() >= LINES_MAX || bytes > BYTES_MAX {
            is_cut = true;
            break;
        }
        for line in lines_of(permission, &verbs) {
            bytes += line.len();
            lines.insert(line);
        }
    }
    let mut text = lines.into_iter().collect::<Vec<_>>().join("\n");
    if is_cut {
        text.push_str("\nand more");
    }
    text
}

/// A resource is one line, a path one line for each verb.
fn lines_of(permission: Permission<'_>, verbs: &[&str]) -> Vec<String> {
    let verbs = verbs.iter().map(|verb| go_quote(verb));
    match permission {
        Permission::Path { url, .. } => {
            let url = go_quote(url);
            verbs
                .map(|verb| format!("{{NonResourceURLs:[{url}], Verbs:[{verb}]}}"))
                .collect()
        }
        Permission::Resource {
            group,
            resource,
            name,
            ..
        } => {
            let names = name
                .map(|name| format!("ResourceNames:[{}], ", go_quote(name)))
                .unwrap_or_default();
            let group = go_quote(group);
            let resource = go_quote(resource);
            let verbs = verbs.collect::<Vec<_>>().join(" ");
            vec![format!(
                "{{APIGroups:[{group}], Resources:[{resource}], {names}Verbs:[{verbs}]}}"
            )]
        }
    }
}

/// Whether an update changes only owner references, finalizers and managed fields.
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
    use crate::auth::fake_lookup::FakeLookup;

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

    fn fake_lookup() -> FakeLookup {
        let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]);
        FakeLookup::default()
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

    fn message(source: Source, value: Value, stored: &FakeLookup) -> String {
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
                message(Source::Role, role(rules.clone()), &fake_lookup()),
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
                message(Source::RoleBinding, binding(kind, name), &fake_lookup()),
                want,
                "{kind} {name}"
            );
        }
        let stored = fake_lookup().bound(
            "binder",
            "User ann",
            json!([{"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "resourceNames": ["sec"]}]),
        );
        assert_eq!(
            message(Source::RoleBinding, binding("Role", "sec"), &stored),
            "ok"
        );
    }

    #[test]
    fn refusal_of_a_large_role_names_a_hundred_rules() {
        let many = |prefix: &str| (0..250).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
        let rule = json!({"verbs": many("v"), "apiGroups": many("g"), "resources": many("r")});
        let role = json!({"metadata": {"name": "x", "namespace": "ns"}, "rules": [rule]});
        let message = message(Source::Role, role, &fake_lookup());
        let lines: Vec<&str> = message.lines().collect();
        assert!(lines[0].ends_with("not currently held:"), "{}", lines[0]);
        assert!(lines.len() <= LINES_MAX + 2, "{} lines", lines.len());
        assert_eq!(lines.last(), Some(&"and more"));
        assert!(message.len() < 2 * BYTES_MAX, "{} bytes", message.len());
    }

    #[test]
    fn aggregation_rule_needs_all_permissions() {
        let role =
            json!({"metadata": {"name": "agg"}, "aggregationRule": {"clusterRoleSelectors": [{}]}});
        assert_eq!(
            message(Source::ClusterRole, role.clone(), &fake_lookup()),
            "clusterroles.rbac.authorization.k8s.io \"agg\" is forbidden: must have cluster-admin privileges to use the aggregationRule"
        );
        let escalate =
            json!([{"verbs": ["escalate"], "apiGroups": ["*"], "resources": ["clusterroles"]}]);
        assert_eq!(
            message(
                Source::ClusterRole,
                role,
                &fake_lookup().bound_everywhere("e", "User ann", escalate)
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
                &fake_lookup(),
            )
        };
        assert!(update(&role(json!([]), "*")).is_ok());
        assert!(update(&role(json!([]), "get")).is_err());
        assert!(update(&role(json!(["a"]), "*")).is_ok());
    }
}
