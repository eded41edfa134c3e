//! The delta FIFO, by scripts of changes and by random histories.

use bellerophon_kinds::Kind;
use k8s_openapi::api::core::v1::ConfigMap;

use super::*;
use crate::clock::Rng;

fn object(name: &str, version: u64) -> ReceivedObject {
    let mut object = ConfigMap::default();
    object.metadata.namespace = Some("n".into());
    object.metadata.name = Some(name.into());
    object.metadata.resource_version = Some(version.to_string());
    ReceivedObject {
        key: ObjectKey::from_object(&object),
        object: CachedObject::decoded(Arc::new(object), ConfigMap::codec()),
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("n", name)
}

/// `+a5` applies, `-a` deletes, `=5:a5,b6` lists, `^5` is a bookmark; `!` before a listed name
/// marks an undecodable object.
fn change(text: &str) -> Change {
    let (verb, rest) = text.split_at(1);
    let parse = |text: &str| object(&text[..1], text[1..].parse().expect("a version"));
    match verb {
        "+" => Change::Applied(parse(rest)),
        "-" => Change::Deleted {
            key: key(rest),
            object: None,
            resource_version: None,
        },
        "^" => Change::Bookmark {
            resource_version: rest.into(),
        },
        _ => {
            let (version, names) = rest.split_once(':').expect("a version");
            let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
            let undecodable = names
                .iter()
                .filter_map(|name| name.strip_prefix('!'))
                .map(key)
                .collect();
            let objects = names
                .iter()
                .filter(|name| !name.starts_with('!'))
                .map(|name| parse(name))
                .collect();
            Change::Replaced {
                objects,
                undecodable,
                resource_version: version.into(),
            }
        }
    }
}

fn printed(batch: &Batch) -> String {
    let deltas = batch.deltas.iter().map(|delta| match delta {
        Delta::Applied { key, object } => {
            let version = object.resource_version().unwrap_or_default();
            format!("+{}{version}", key.name())
        }
        Delta::Deleted { key, .. } => format!("-{}", key.name()),
    });
    format!(
        "{}@{}",
        deltas.collect::<Vec<_>>().join(" "),
        batch.resource_version.as_deref().unwrap_or("?")
    )
}

fn check(changes: &str, expected: &[&str]) {
    let mut fifo = DeltaFifo::with_known(KnownKeys::new());
    changes
        .split_whitespace()
        .for_each(|text| fifo.push(change(text)));
    let batches: Vec<_> = std::iter::from_fn(|| fifo.pop())
        .map(|batch| printed(&batch))
        .collect();
    assert_eq!(batches, expected, "after {changes}");
}

#[test]
fn deltas_keep_the_order_of_the_changes() {
    check("+a1 +b2 +a3 -b", &["+a1 +b2 +a3 -b@3"]);
    check("^4", &["@4"]);
    check("+a1 ^9", &["+a1@9"]);
}

#[test]
fn relist_reports_vanished_keys_exactly_once() {
    check(
        "=1:a1,b1,c1 =5:b1,d5 =6:b1,d5",
        &["+a1 +b1 +c1@1", "-a -c +b1 +d5@5", "+b1 +d5@6"],
    );
    check("=1:a1 -a =5:", &["+a1@1", "-a@?", "@5"]);
}

#[test]
fn deletion_of_an_unknown_key_emits_no_delta() {
    check("-a =1:b1 -a", &["+b1@1"]);
    check("+a1 -a -a", &["+a1 -a@1"]);
}

#[test]
fn listed_but_undecodable_objects_are_not_deleted() {
    check("=1:a1,b1 =5:!a -a", &["+a1 +b1@1", "-b@5", "-a@?"]);
    check("=1:!z", &["@1"]);
}

#[test]
fn object_repeated_in_a_list_is_emitted_once() {
    check("=7:a1,b2,a6", &["+a6 +b2@7"]);
}

#[test]
fn first_list_deletes_known_keys_of_the_previous_reflector() {
    let mut before = DeltaFifo::with_known(KnownKeys::new());
    before.push(change("=1:a1,b1,c1"));
    before.push(change("-c"));
    let mut fifo = DeltaFifo::with_known(before.into_known());
    fifo.push(change("=5:b1,d5"));
    let batch = fifo.pop().as_ref().map(printed);
    assert_eq!(batch.as_deref(), Some("-a +b1 +d5@5"));
}

#[test]
fn batches_have_at_most_1000_deltas() {
    let mut fifo = DeltaFifo::with_known(KnownKeys::new());
    (0..2500).for_each(|n| fifo.push(Change::Applied(object("a", n))));
    let sizes: Vec<_> = std::iter::from_fn(|| fifo.pop())
        .map(|batch| batch.deltas.len())
        .collect();
    assert_eq!(sizes, [1000, 1000, 500]);
}

#[test]
fn random_histories_end_like_a_plain_map() {
    for seed in 0..2000 {
        let rng = Rng::seeded(seed);
        let mut fifo = DeltaFifo::with_known(KnownKeys::new());
        let mut server = BTreeMap::new();
        let mut applied = BTreeMap::new();
        for version in 1..30 {
            let name = ["a", "b", "c", "d", "e"][usize::try_from(rng.below(5)).expect("small")];
            // A dropped watch: the change is not received before the next list.
            let received = rng.below(3) > 0;
            match rng.below(3) {
                0 if server.remove(&key(name)).is_some() && received => {
                    fifo.push(change(&format!("-{name}")))
                }
                0 => {}
                1 => {
                    server.insert(key(name), version);
                    if received {
                        fifo.push(Change::Applied(object(name, version)));
                    }
                }
                _ => fifo.push(list(&server, version)),
            }
            if rng.below(2) == 0 {
                std::iter::from_fn(|| fifo.pop())
                    .for_each(|batch| apply(&mut applied, batch, seed));
            }
        }
        fifo.push(list(&server, 99));
        std::iter::from_fn(|| fifo.pop()).for_each(|batch| apply(&mut applied, batch, seed));
        assert_eq!(applied, server, "seed {seed}");
    }
}

fn list(server: &BTreeMap<ObjectKey, u64>, version: u64) -> Change {
    let objects = server
        .iter()
        .map(|(key, version)| object(key.name(), *version))
        .collect();
    Change::Replaced {
        objects,
        undecodable: Vec::new(),
        resource_version: version.to_string(),
    }
}

fn apply(applied: &mut BTreeMap<ObjectKey, u64>, batch: Batch, seed: u64) {
    for delta in batch.deltas {
        match delta {
            Delta::Applied { key, object } => {
                let version = object.resource_version().expect("a version");
                applied.insert((*key).clone(), version.parse().expect("a number"));
            }
            Delta::Deleted { key, .. } => assert!(
                applied.remove(&*key).is_some(),
                "{key} deleted twice, seed {seed}"
            ),
        }
    }
}
