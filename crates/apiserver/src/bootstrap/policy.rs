//! The default roles and bindings, read from a table.
//! In: `policy.txt`. Out: ClusterRoles, Roles and their bindings.
//! Guarantees: the table is part of the program, so a line that cannot be read is a defect and
//! stops the start.
//!
//! A line of the table is one of:
//! - `role NAME +view =edit`: a ClusterRole, or with `NAMESPACE/NAME` a Role. `+view` puts it into
//!   the aggregate of `view`, `=edit` makes it
//!   that aggregate;
//! - `controller NAME`: the ClusterRole `system:controller:NAME`, bound to the service account of
//!   that name in kube-system;
//! - an indented rule of the role above: `VERBS : GROUPS : RESOURCES [: NAMES]`, or `VERBS @
//!   PATHS`;
//! - `bind NAME [= ROLE] -> SUBJECT, …`: a binding, to the role of the same name unless another is
//!   given.

use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

const TABLE: &str = include_str!("policy.txt");
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";
const UNREADABLE: &str = "the policy table is part of the program";

/// Every default role and binding: ClusterRoles, ClusterRoleBindings, Roles, RoleBindings.
pub(super) fn objects() -> Vec<Object> {
    let mut roles: Vec<Object> = Vec::new();
    let mut bindings: Vec<Object> = Vec::new();
    for line in TABLE.lines() {
        if let Some(text) = line.strip_prefix("  ") {
            let rules = roles
                .last_mut()
                .and_then(|role| role.body.get_mut("rules"))
                .expect(UNREADABLE);
            match rules {
                Value::Array(list) => list.push(rule(text)),
                empty => *empty = json!([rule(text)]),
            }
            continue;
        }
        let (word, rest) = line.split_once(' ').expect(UNREADABLE);
        match word {
            "role" => roles.push(role(rest)),
            "bind" => bindings.push(binding(rest)),
            _ => {
                let name = format!("system:controller:{rest}");
                roles.push(role(&name));
                bindings.push(binding(&format!("{name} -> account kube-system/{rest}")));
            }
        }
    }
    let (cluster_roles, roles) = apart(roles);
    let (cluster_bindings, bindings) = apart(bindings);
    [cluster_roles, cluster_bindings, roles, bindings].concat()
}

/// Cluster-wide ones and those of a namespace.
fn apart(objects: Vec<Object>) -> (Vec<Object>, Vec<Object>) {
    objects
        .into_iter()
        .partition(|o| o.meta.namespace.is_empty())
}

fn marked(object: Object) -> Object {
    object
        .labelled("kubernetes.io/bootstrapping", "rbac-defaults")
        .annotated("rbac.authorization.kubernetes.io/autoupdate", "true")
}

fn role(text: &str) -> Object {
    let mut words = text.split(' ');
    let place = words.next().expect(UNREADABLE);
    let kind = if place.contains('/') {
        "Role"
    } else {
        "ClusterRole"
    };
    let mut role = marked(Object::named(
        API_VERSION,
        kind,
        place,
        json!({"rules": null}),
    ));
    let label = |aggregate: &str| format!("rbac.authorization.k8s.io/aggregate-to-{aggregate}");
    for word in words {
        match word.split_at(1) {
            ("+", aggregate) => role = role.labelled(&label(aggregate), "true"),
            (_, aggregate) => {
                let labels = Map::from_iter([(label(aggregate), "true".into())]);
                role.body.insert(
                    "aggregationRule".into(),
                    json!({"clusterRoleSelectors": [{"matchLabels": labels}]}),
                );
            }
        }
    }
    role
}

fn rule(text: &str) -> Value {
    if let Some((verbs, paths)) = text.split_once(" @ ") {
        return json!({"verbs": verb_list(verbs), "nonResourceURLs": list(paths)});
    }
    let mut parts = text.split(" : ");
    let mut next = || parts.next().expect(UNREADABLE);
    let verbs = verb_list(next());
    let groups = next();
    let resources = list(next());
    let groups: Vec<&str> = groups
        .split(' ')
        .map(|group| if group == "core" { "" } else { group })
        .collect();
    let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": resources});
    if let Some(names) = parts.next() {
        rule["resourceNames"] = json!(list(names));
    }
    rule
}

fn list(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

fn verb_list(text: &str) -> Vec<&str> {
    list(match text {
        "read" => "get list watch",
        "write" => "create delete deletecollection patch update",
        "all" => "create delete deletecollection get list patch update watch",
        other => other,
    })
}

fn binding(text: &str) -> Object {
    let (head, subjects) = text.split_once(" -> ").unwrap_or((text, ""));
    let (place, role) = head.split_once(" = ").unwrap_or((head, ""));
    let (kind, role_kind) = if place.contains('/') {
        ("RoleBinding", "Role")
    } else {
        ("ClusterRoleBinding", "ClusterRole")
    };
    let mut binding = marked(Object::named(API_VERSION, kind, place, json!({})));
    let name = if role.is_empty() {
        binding.meta.name.as_str()
    } else {
        role
    };
    let reference = json!({"apiGroup": GROUP, "kind": role_kind, "name": name});
    binding.body.insert("roleRef".into(), reference);
    if !subjects.is_empty() {
        binding.body.insert(
            "subjects".into(),
            subjects.split(", ").map(subject).collect(),
        );
    }
    binding
}

fn subject(text: &str) -> Value {
    let (kind, name) = text.split_once(' ').expect(UNREADABLE);
    match (kind, name.split_once('/')) {
        ("account", Some((namespace, name))) => {
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        ("user", _) => json!({"kind": "User", "apiGroup": GROUP, "name": name}),
        _ => json!({"kind": "Group", "apiGroup": GROUP, "name": name}),
    }
}
