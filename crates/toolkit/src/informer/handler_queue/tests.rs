//! The handler queue, by scripts of changes.

use bellerophon_kinds::Kind;
use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

type Objects = BTreeMap<Arc<ObjectKey>, CachedObject>;

fn cached(version: u64) -> CachedObject {
    let mut object = ConfigMap::default();
    object.metadata.resource_version = Some(version.to_string());
    CachedObject::decoded(Arc::new(object), ConfigMap::codec())
}

fn version(object: &CachedObject) -> String {
    object.resource_version().expect("a version")
}

/// `a1` applies version 1 of a, `-a` deletes it, `.` delivers one notification.
fn run(script: &str) -> Vec<String> {
    let queue = HandlerQueue::new();
    let mut objects = Objects::new();
    let mut delivered = Vec::new();
    for word in script.split_whitespace() {
        match word.strip_prefix('-') {
            _ if word == "." => delivered.extend(queue.take().map(print)),
            Some(name) => {
                let key = Arc::new(ObjectKey::cluster(name));
                let before = objects.remove(&key).expect("it was applied");
                let last = before.clone();
                queue.push(&[Transition::Deleted { key, before, last }], false);
            }
            None => {
                let key = Arc::new(ObjectKey::cluster(&word[..1]));
                let after = cached(word[1..].parse().expect("a number"));
                let before = objects.insert(key.clone(), after.clone());
                queue.push(&[Transition::Applied { key, before, after }], false);
            }
        }
    }
    delivered.extend(std::iter::from_fn(|| queue.take()).map(print));
    delivered
}

fn print(notification: Notification) -> String {
    let key = notification.key.name().to_owned();
    let calls = notification.calls();
    let delete = calls.delete.map(|last| format!("-{key}{}", version(&last)));
    let update = calls
        .update
        .map(|(old, new)| format!("{key}{}>{}", version(&old), version(&new)));
    let add = calls
        .add
        .map(|object| format!("+{key}{}", version(&object)));
    [delete, update, add]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn pending_changes_of_one_object_merge_from_the_last_delivered_state() {
    let cases: &[(&str, &[&str])] = &[
        ("a1 b1 a2", &["+a2", "+b1"]),
        ("a1 . a2 a3", &["+a1", "a1>3"]),
        ("a1 -a", &[]),
        ("a1 . -a", &["+a1", "-a1"]),
        ("a1 . a2 -a", &["+a1", "-a2"]),
        ("a1 . a2 -a a3 a4", &["+a1", "-a2 +a4"]),
        ("a1 . -a a2 -a", &["+a1", "-a1"]),
        ("a1 . -a a2 . a3", &["+a1", "-a1 +a2", "a2>3"]),
        ("a1 . b1 a2 b2 c1 b3", &["+a1", "+b3", "a1>2", "+c1"]),
    ];
    for (script, delivered) in cases {
        assert_eq!(run(script), *delivered, "after {script}");
    }
}

#[test]
fn backlog_of_a_blocked_handler_has_one_entry_per_object() {
    let queue = HandlerQueue::new();
    let key = Arc::new(ObjectKey::cluster("a"));
    for n in 0..10_000_u64 {
        let updated = Transition::Applied {
            key: key.clone(),
            before: n.checked_sub(1).map(cached),
            after: cached(n),
        };
        queue.push(&[updated], false);
        let other = Arc::new(ObjectKey::cluster(format!("b{n}")));
        let object = cached(n);
        let added = Transition::Applied {
            key: other.clone(),
            before: None,
            after: object.clone(),
        };
        queue.push(&[added], false);
        let deleted = Transition::Deleted {
            key: other,
            before: object.clone(),
            last: object,
        };
        queue.push(&[deleted], false);
    }
    let inner = queue.lock();
    assert_eq!(inner.notifications.len(), 1);
    assert_eq!(inner.order.len(), 1);
}

#[test]
fn handler_is_synced_once_the_initial_list_was_delivered() {
    let queue = HandlerQueue::new();
    let added = Transition::Applied {
        key: Arc::new(ObjectKey::cluster("a")),
        before: None,
        after: cached(1),
    };
    queue.push(&[added], true);
    queue.complete_initial_list();
    assert!(!*queue.synced.borrow());
    let notification = queue.take().expect("a notification");
    assert!(!*queue.synced.borrow(), "the handler has not returned yet");
    queue.delivered(notification.in_initial_list);
    assert!(*queue.synced.borrow());
}
