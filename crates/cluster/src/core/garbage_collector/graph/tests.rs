//! Histories of watch events and the actions that follow from their last event.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::core::{ApiResource, GroupVersionKind};

use super::*;

fn resource(kind: &str, namespaced: bool) -> Arc<ServedResource> {
    Arc::new(ServedResource {
        api_resource: ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind)),
        namespaced,
    })
}

/// `[ns/]name[+foreground|+orphan|+terminating] [<owner|<!owner]…`: an object whose uid is its
/// name. `!` sets `blockOwnerDeletion`. Upper-case names are Nodes (cluster-scoped), others
/// ConfigMaps.
fn object(text: &str) -> (Arc<ServedResource>, ObjectMeta) {
    let mut tokens = text.split_whitespace();
    let (key, state) = tokens
        .next()
        .and_then(|token| token.split_once('+').map_or(Some((token, "")), Some))
        .expect("a name");
    let (namespace, name) = key
        .split_once('/')
        .map_or(("a", key), |(namespace, name)| (namespace, name));
    let cluster_scoped = name.chars().all(char::is_uppercase);
    let owner = |token: &str| {
        let (name, is_blocking) = token
            .trim_start_matches('<')
            .strip_prefix('!')
            .map_or((&token[1..], false), |name| (name, true));
        let cluster_scoped = name.chars().all(char::is_uppercase);
        OwnerReference {
            api_version: "v1".into(),
            kind: if cluster_scoped { "Node" } else { "ConfigMap" }.into(),
            name: name.into(),
            uid: name.into(),
            block_owner_deletion: Some(is_blocking),
            controller: None,
        }
    };
    let finalizer = match state {
        "foreground" => Some(FOREGROUND),
        "orphan" => Some(ORPHAN),
        _ => None,
    };
    let meta = ObjectMeta {
        name: Some(name.into()),
        namespace: (!cluster_scoped).then(|| namespace.into()),
        uid: Some(name.into()),
        owner_references: Some(tokens.map(owner).collect()),
        deletion_timestamp: (!state.is_empty()).then_some(Time(Timestamp::UNIX_EPOCH)),
        finalizers: finalizer.map(|finalizer| vec![finalizer.into()]),
        ..ObjectMeta::default()
    };
    (
        if cluster_scoped {
            resource("Node", false)
        } else {
            resource("ConfigMap", true)
        },
        meta,
    )
}

fn actions_text(actions: &[GraphAction]) -> String {
    let text = |action: &GraphAction| match action {
        GraphAction::AttemptToDelete(uid) => format!("delete? {uid}"),
        GraphAction::AttemptToOrphan(uid) => format!("orphan {uid}"),
        GraphAction::ReportInvalidNamespace { dependent, .. } => format!("report {dependent}"),
        GraphAction::AbsentOwner(owner) => format!("absent {}", owner.key),
    };
    actions.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Applies a history, where `-name` is a deletion, and compares the actions of its last event.
fn check(history: &[&str], expected: &str) {
    let mut graph = Graph::default();
    let mut actions = Vec::new();
    for event in history {
        actions = match event.strip_prefix('-') {
            Some(uid) => graph.deleted(uid),
            None => {
                let (resource, meta) = object(event);
                graph.applied(&resource, &meta)
            }
        };
        assert!(graph.is_consistent(), "{history:?} at {event}");
    }
    assert_eq!(actions_text(&actions), expected, "{history:?}");
}

#[test]
fn every_event_enqueues_the_affected_objects() {
    for (history, expected) in [
        (&["x"][..], ""),
        // An owner may be observed before or after its dependents.
        (&["x", "y <x"], ""),
        (&["y <x"], "delete? y"),
        (&["y <x", "x"], ""),
        // The deletion of an owner enqueues its direct dependents only.
        (&["x", "y <x", "z <y", "-x"], "absent a/x, delete? y"),
        (&["x", "y <x", "z <y", "-y"], "absent a/y, delete? z"),
        (&["y <x", "x", "-x"], "absent a/x, delete? y"),
        (&["x", "y <x", "y", "-x"], ""),
        (&["-x"], ""),
        // A foreground deletion enqueues dependents and owner; later the last blocking dependent
        // enqueues the owner.
        (&["x", "y <!x", "x+foreground <"], "delete? y, delete? x"),
        (&["x", "y <!x", "x+foreground", "x+foreground"], ""),
        (&["x", "y <!x", "x+foreground", "-y"], "delete? x"),
        (
            &["x", "y <!x", "x+foreground", "y <x"],
            "delete? x, delete? y",
        ),
        (&["x", "y <!x", "x+foreground", "y"], "delete? x"),
        (&["x+foreground", "y <x"], "delete? y"),
        (&["x+foreground"], "delete? x"),
        // Orphaning is done once, by the owner.
        (&["x", "y <x", "x+orphan"], "orphan x"),
        (&["x+orphan", "x+orphan"], ""),
        (&["x", "y <x", "x+terminating"], ""),
        // An owner in another namespace is reported, in either order of observation.
        (&["b/x", "a/y <x"], "report y, delete? y"),
        (&["a/y <x", "b/x"], "report y, delete? y"),
        (&["X", "a/y <X"], ""),
        (&["a/y <X", "X"], ""),
    ] {
        let history: Vec<_> = history
            .iter()
            .map(|event| event.trim_end_matches(" <"))
            .collect();
        check(&history, expected);
    }
}

#[test]
fn only_waiting_or_unverified_objects_are_candidates() {
    let candidate = |history: &[&str], uid: &str| {
        let mut graph = Graph::default();
        for event in history {
            let (resource, meta) = object(event);
            graph.applied(&resource, &meta);
        }
        match graph.candidate(&uid.into()) {
            None => "nothing".to_owned(),
            Some(Candidate::DeletingDependents { blocking, .. }) => {
                format!("blocked by {blocking:?}")
            }
            Some(Candidate::UnverifiedOwners { dependents, .. }) => format!(
                "unverified {} {}",
                dependents.exist, dependents.deleting_dependents
            ),
        }
    };
    for (history, uid, expected) in [
        (&["x"][..], "y", "nothing"),
        (&["x", "y <x"], "y", "nothing"),
        (&["y <x"], "y", "unverified false false"),
        (&["x", "y+terminating <z"], "y", "nothing"),
        (
            &["x+foreground", "y <!x", "z <x"],
            "x",
            "blocked by [\"y\"]",
        ),
        (&["x+foreground", "z <x"], "x", "blocked by []"),
        (
            &["x+foreground", "y <!x", "z+foreground <y"],
            "y",
            "unverified true true",
        ),
        (&["x+orphan", "y <x"], "x", "nothing"),
        (&["b/x", "a/y <x"], "y", "unverified false false"),
    ] {
        assert_eq!(candidate(history, uid), expected, "{history:?}, {uid}");
    }
}

#[test]
fn unserved_resource_enqueues_dependents_without_absent_owners() {
    let mut graph = Graph::default();
    for event in ["X", "x", "y <x", "z <X"] {
        let (resource, meta) = object(event);
        graph.applied(&resource, &meta);
    }
    assert_eq!(
        actions_text(&graph.remove_resource(&resource("Node", false))),
        "delete? z"
    );
    assert!(graph.is_consistent());
    assert!(graph.get("X").is_none());
    assert!(graph.get("x").is_some());
}
