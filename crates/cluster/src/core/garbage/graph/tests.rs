//! Every history of a few objects, and what has to be looked at because of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::core::{ApiResource, GroupVersionKind};

use super::*;

fn kind(name: &str, namespaced: bool) -> Arc<Kind> {
    Arc::new(Kind {
        resource: ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", name)),
        namespaced,
    })
}

/// `[ns/]name[+foreground|+orphan|+gone] [<owner|<!owner]…`: an object whose uid is its name and whose blocking owners have
/// a mark. Names in capitals are nodes, which have no namespace; the others are config maps.
fn object(text: &str) -> (Arc<Kind>, ObjectMeta) {
    let mut words = text.split_whitespace();
    let (place, state) = words
        .next()
        .and_then(|word| word.split_once('+').map_or(Some((word, "")), Some))
        .expect("a name");
    let (namespace, name) = place
        .split_once('/')
        .map_or(("a", place), |(namespace, name)| (namespace, name));
    let cluster = name.chars().all(char::is_uppercase);
    let owner = |word: &str| {
        let (name, blocks) = word
            .trim_start_matches('<')
            .strip_prefix('!')
            .map_or((&word[1..], false), |name| (name, true));
        let cluster = name.chars().all(char::is_uppercase);
        OwnerReference {
            api_version: "v1".into(),
            kind: if cluster { "Node" } else { "ConfigMap" }.into(),
            name: name.into(),
            uid: name.into(),
            block_owner_deletion: Some(blocks),
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
        namespace: (!cluster).then(|| namespace.into()),
        uid: Some(name.into()),
        owner_references: Some(words.map(owner).collect()),
        deletion_timestamp: (!state.is_empty()).then_some(Time(Timestamp::UNIX_EPOCH)),
        finalizers: finalizer.map(|finalizer| vec![finalizer.into()]),
        ..ObjectMeta::default()
    };
    (
        if cluster {
            kind("Node", false)
        } else {
            kind("ConfigMap", true)
        },
        meta,
    )
}

fn words(next: &[Next]) -> String {
    let word = |next: &Next| match next {
        Next::Examine(uid) => format!("examine {uid}"),
        Next::Orphan(uid) => format!("orphan {uid}"),
        Next::Report { dependent, .. } => format!("report {dependent}"),
        Next::Absent(absent) => format!("absent {}", absent.key),
    };
    next.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Applies a history, `-name` being a deletion, and looks at what follows its last step.
fn check(history: &[&str], wanted: &str) {
    let mut graph = Graph::default();
    let mut next = Vec::new();
    for step in history {
        next = match step.strip_prefix('-') {
            Some(uid) => graph.deleted(uid),
            None => {
                let (kind, meta) = object(step);
                graph.applied(&kind, &meta)
            }
        };
        assert!(graph.is_consistent(), "{history:?} at {step}");
    }
    assert_eq!(words(&next), wanted, "{history:?}");
}

#[test]
fn every_change_wakes_those_it_concerns() {
    for (history, wanted) in [
        (&["x"][..], ""),
        // An owner may be seen before or after what it owns.
        (&["x", "y <x"], ""),
        (&["y <x"], "examine y"),
        (&["y <x", "x"], ""),
        // Its end wakes what it owned, and only that.
        (&["x", "y <x", "z <y", "-x"], "absent a/x, examine y"),
        (&["x", "y <x", "z <y", "-y"], "absent a/y, examine z"),
        (&["y <x", "x", "-x"], "absent a/x, examine y"),
        (&["x", "y <x", "y", "-x"], ""),
        (&["-x"], ""),
        // Deleting in the foreground wakes both sides; then the last blocking dependent wakes its owner.
        (&["x", "y <!x", "x+foreground <"], "examine y, examine x"),
        (&["x", "y <!x", "x+foreground", "x+foreground"], ""),
        (&["x", "y <!x", "x+foreground", "-y"], "examine x"),
        (
            &["x", "y <!x", "x+foreground", "y <x"],
            "examine x, examine y",
        ),
        (&["x", "y <!x", "x+foreground", "y"], "examine x"),
        (&["x+foreground", "y <x"], "examine y"),
        (&["x+foreground"], "examine x"),
        // Orphans are set free by their owner.
        (&["x", "y <x", "x+orphan"], "orphan x"),
        (&["x+orphan", "x+orphan"], ""),
        (&["x", "y <x", "x+gone"], ""),
        // Owners of another namespace do not count, in whichever order they are seen.
        (&["b/x", "a/y <x"], "report y, examine y"),
        (&["a/y <x", "b/x"], "report y, examine y"),
        (&["X", "a/y <X"], ""),
        (&["a/y <X", "X"], ""),
    ] {
        let history: Vec<_> = history
            .iter()
            .map(|step| step.trim_end_matches(" <"))
            .collect();
        check(&history, wanted);
    }
}

#[test]
fn only_doubtful_or_waiting_objects_are_cases() {
    let case = |history: &[&str], uid: &str| {
        let mut graph = Graph::default();
        for step in history {
            let (kind, meta) = object(step);
            graph.applied(&kind, &meta);
        }
        match graph.case(&uid.into()) {
            None => "nothing".to_owned(),
            Some(Case::Waiting { blocking, .. }) => format!("waits for {blocking:?}"),
            Some(Case::Doubtful {
                has_dependents,
                dependent_waits,
                ..
            }) => format!("doubtful {has_dependents} {dependent_waits}"),
        }
    };
    for (history, uid, wanted) in [
        (&["x"][..], "y", "nothing"),
        (&["x", "y <x"], "y", "nothing"),
        (&["y <x"], "y", "doubtful false false"),
        (&["x", "y+gone <z"], "y", "nothing"),
        (&["x+foreground", "y <!x", "z <x"], "x", "waits for [\"y\"]"),
        (&["x+foreground", "z <x"], "x", "waits for []"),
        (
            &["x+foreground", "y <!x", "z+foreground <y"],
            "y",
            "doubtful true true",
        ),
        (&["x+orphan", "y <x"], "x", "nothing"),
        (&["b/x", "a/y <x"], "y", "doubtful false false"),
    ] {
        assert_eq!(case(history, uid), wanted, "{history:?}, {uid}");
    }
}

#[test]
fn kind_that_is_gone_leaves_its_dependents_in_doubt() {
    let mut graph = Graph::default();
    for step in ["X", "x", "y <x", "z <X"] {
        let (kind, meta) = object(step);
        graph.applied(&kind, &meta);
    }
    assert_eq!(words(&graph.forget_kind(&kind("Node", false))), "examine z");
    assert!(graph.is_consistent());
    assert!(graph.get("X").is_none());
    assert!(graph.get("x").is_some());
}
