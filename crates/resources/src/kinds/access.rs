//! Roles and bindings: their rules, and the immutable role reference.
//! Guarantees: names are path segments.
//! Mirrors `ValidateRole`, `ValidateRoleBinding` and their updates in `pkg/apis/rbac/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::Value;

use super::{Strategy, validation};

const GROUP: &str = "rbac.authorization.k8s.io";

const ANY: Strategy = Strategy {
    name: names::path_segment,
    create_on_update: true,
    ..Strategy::PLAIN
};

/// The strategy of Roles. Mirrors `pkg/registry/rbac/role`.
pub const ROLE: Strategy = Strategy {
    default: default_rules,
    validate: |role, out| rules(role, Scope::Namespace, out),
    ..ANY
};

/// The strategy of ClusterRoles. Mirrors `pkg/registry/rbac/clusterrole`.
pub const CLUSTER_ROLE: Strategy = Strategy {
    default: default_rules,
    validate: validate_cluster_role,
    ..ANY
};

/// The strategy of RoleBindings. Mirrors `pkg/registry/rbac/rolebinding`.
pub const ROLE_BINDING: Strategy = Strategy {
    default: default_binding,
    validate: |binding, out| bound(binding, Scope::Namespace, out),
    validate_update: same_role,
    ..ANY
};

/// The strategy of ClusterRoleBindings. Mirrors `pkg/registry/rbac/clusterrolebinding`.
pub const CLUSTER_ROLE_BINDING: Strategy = Strategy {
    validate: |binding, out| bound(binding, Scope::Cluster, out),
    ..ROLE_BINDING
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Namespace,
    Cluster,
}

fn default_rules(role: &mut Object) {
    if role.body.is_empty_at("rules") {
        role.body.insert("rules".into(), Value::Null);
    }
}

fn default_binding(binding: &mut Object) {
    binding.section("roleRef").default_text("apiGroup", GROUP);
    for subject in binding.body.maps_mut("subjects") {
        if matches!(subject.text("kind"), "User" | "Group") {
            subject.default_text("apiGroup", GROUP);
        }
    }
}

fn rules(role: &Object, scope: Scope, out: &mut Vec<FieldError>) {
    let all = Path::field("rules");
    for (i, rule) in role.body.list("rules").iter().enumerate() {
        validate_rule(&all.index(i), rule, scope, out);
    }
}

fn validate_rule(at: &Path, rule: &Value, scope: Scope, out: &mut Vec<FieldError>) {
    if rule.is_empty_at("verbs") {
        out.push(FieldError::required(
            at.child("verbs"),
            "verbs must contain at least one value",
        ));
    }
    if !rule.is_empty_at("nonResourceURLs") {
        let at = at.child("nonResourceURLs");
        let urls = rule.field("nonResourceURLs");
        if scope == Scope::Namespace {
            out.push(FieldError::invalid(
                at,
                urls,
                "namespaced rules cannot apply to non-resource URLs",
            ));
        }
        if ["apiGroups", "resources", "resourceNames"]
            .iter()
            .any(|f| !rule.is_empty_at(f))
        {
            out.push(FieldError::invalid(
                at,
                urls,
                "rules cannot apply to both regular resources and non-resource URLs",
            ));
        }
        return;
    }
    if rule.is_empty_at("apiGroups") {
        out.push(FieldError::required(
            at.child("apiGroups"),
            "resource rules must supply at least one api group",
        ));
    }
    if rule.is_empty_at("resources") {
        out.push(FieldError::required(
            at.child("resources"),
            "resource rules must supply at least one resource",
        ));
    }
}

fn validate_cluster_role(role: &Object, out: &mut Vec<FieldError>) {
    rules(role, Scope::Cluster, out);
    let Some(aggregation) = role.body.get_set("aggregationRule") else {
        return;
    };
    let at = Path::field("aggregationRule.clusterRoleSelectors");
    let selectors = aggregation.list("clusterRoleSelectors");
    if selectors.is_empty() {
        out.push(FieldError::required(
            at,
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        ));
    }
    for (i, selector) in selectors.iter().enumerate() {
        validation::label_selector(&at.index(i), selector, out);
    }
}

fn bound(binding: &Object, scope: Scope, out: &mut Vec<FieldError>) {
    let at = Path::field("roleRef");
    let role = binding.body.field("roleRef");
    validation::one_of(&at.child("apiGroup"), role.text("apiGroup"), &[GROUP], out);
    let kinds: &[&str] = if scope == Scope::Namespace {
        &["Role", "ClusterRole"]
    } else {
        &["ClusterRole"]
    };
    validation::one_of(&at.child("kind"), role.text("kind"), kinds, out);
    match role.text("name") {
        "" => out.push(FieldError::required(at.child("name"), "")),
        name => validation::named(&at.child("name"), name, names::path_segment(name), out),
    }
    let all = Path::field("subjects");
    for (i, subject) in binding.body.list("subjects").iter().enumerate() {
        validate_subject(&all.index(i), subject, scope, out);
    }
}

fn validate_subject(at: &Path, subject: &Value, scope: Scope, out: &mut Vec<FieldError>) {
    let name = subject.text("name");
    let group = subject.text("apiGroup");
    validation::required(&at.child("name"), name, out);
    match subject.text("kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                validation::named(&at.child("name"), name, names::dns_subdomain(name), out);
            }
            validation::one_of(&at.child("apiGroup"), group, &[""], out);
            if scope == Scope::Cluster {
                validation::required(&at.child("namespace"), subject.text("namespace"), out);
            }
        }
        "User" | "Group" => validation::one_of(&at.child("apiGroup"), group, &[GROUP], out),
        other => out.push(FieldError::not_supported(
            at.child("kind"),
            other,
            &["ServiceAccount", "User", "Group"],
        )),
    }
}

fn same_role(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let role = new.body.field("roleRef");
    if role != old.body.field("roleRef") {
        out.push(FieldError::invalid(
            "roleRef",
            Internal::one("rbac.RoleRef", role),
            "cannot change roleRef",
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn groups_of_role_and_subjects_are_filled_in() {
        let subjects =
            json!([{"kind": "ServiceAccount", "name": "ci"}, {"kind": "User", "name": "jane"}]);
        let (binding, errors) = create(
            &ROLE_BINDING,
            json!({"roleRef": {"kind": "Role", "name": "r", "apiGroup": ""}, "subjects": subjects}),
        );
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(binding.str_at("roleRef.apiGroup"), GROUP);
        assert_eq!(binding.body["subjects"][1]["apiGroup"], GROUP);
        assert_eq!(create(&ROLE, json!({})).0.body["rules"], Value::Null);
    }

    #[test]
    fn rules_need_verbs_and_resources_that_fit() {
        for (strategy, rule, expected) in [
            (
                &ROLE,
                json!({"apiGroups": [""], "resources": ["pods"]}),
                &["rules[0].verbs: Required value: verbs must contain at least one value"][..],
            ),
            (
                &ROLE,
                json!({"verbs": ["get"]}),
                &[
                    "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                    "rules[0].resources: Required value: resource rules must supply at least one resource",
                ],
            ),
            (
                &ROLE,
                json!({"verbs": ["get"], "nonResourceURLs": ["/healthz"]}),
                &[
                    r#"rules[0].nonResourceURLs: Invalid value: ["/healthz"]: namespaced rules cannot apply to non-resource URLs"#,
                ],
            ),
            (
                &CLUSTER_ROLE,
                json!({"verbs": ["get"], "apiGroups": [""], "nonResourceURLs": ["/x"]}),
                &[
                    r#"rules[0].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply to both regular resources and non-resource URLs"#,
                ],
            ),
        ] {
            refused(strategy, json!({"rules": [rule]}), expected);
        }
    }

    #[test]
    fn subjects_are_checked_by_kind() {
        refused(
            &ROLE_BINDING,
            json!({"roleRef": {"apiGroup": "example.com", "kind": "Role", "name": ""}, "subjects": [{"kind": "User", "name": ""}, {"kind": "ServiceAccount", "name": "Bad_Name"}, {"kind": "Person", "name": "x"}]}),
            &[
                r#"roleRef.apiGroup: Unsupported value: "example.com": supported values: "rbac.authorization.k8s.io""#,
                "roleRef.name: Required value",
                "subjects[0].name: Required value",
                r#"subjects[1].name: Invalid value: "Bad_Name": a lowercase RFC 1123 subdomain…"#,
                r#"subjects[2].kind: Unsupported value: "Person": supported values: "ServiceAccount", "User", "Group""#,
            ],
        );
        refused(
            &CLUSTER_ROLE_BINDING,
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "ServiceAccount", "name": "s"}]}),
            &[
                r#"roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole""#,
                "subjects[0].namespace: Required value",
            ],
        );
    }

    #[test]
    fn role_of_a_binding_stays() {
        let (old, _) = create(
            &ROLE_BINDING,
            json!({"roleRef": {"kind": "ClusterRole", "name": "view"}}),
        );
        let (_, errors) = update(
            &ROLE_BINDING,
            &old,
            json!({"roleRef": {"kind": "ClusterRole", "name": "edit"}}),
        );
        assert_eq!(
            errors,
            [
                r#"roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"ClusterRole","Name":"edit"}: cannot change roleRef"#
            ]
        );
    }
}
