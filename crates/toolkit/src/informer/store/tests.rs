//! The store and its indexes.

use bellerophon_kinds::Kind;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;

use super::*;

fn object(namespace: &str, name: &str, version: u64, app: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.namespace = Some(namespace.into());
    object.metadata.name = Some(name.into());
    object.metadata.resource_version = Some(version.to_string());
    object.metadata.labels = Some([("app".to_owned(), app.to_owned())].into());
    object
}

fn applied(object: ConfigMap) -> Delta {
    Delta::Applied {
        key: Arc::new(ObjectKey::from_object(&object)),
        object: CachedObject::decoded(Arc::new(object), ConfigMap::codec()),
    }
}

fn deleted(namespace: &str, name: &str) -> Delta {
    Delta::Deleted {
        key: Arc::new(ObjectKey::namespaced(namespace, name)),
        object: None,
    }
}

fn apply(store: &mut Store, deltas: Vec<Delta>) -> Vec<Transition> {
    let evaluated = store.evaluate(Batch {
        deltas,
        resource_version: None,
        is_list: false,
    });
    store.apply(evaluated)
}

fn index_fn<F>(name: &'static str, function: F) -> IndexFn
where
    F: Fn(&ConfigMap) -> Vec<String> + Send + Sync + 'static,
{
    let erased = move |object: &dyn Any| function(object.downcast_ref().expect("a config map"));
    IndexFn {
        name,
        identity: TypeId::of::<F>(),
        function: Arc::new(erased),
    }
}

fn by_app() -> IndexFn {
    index_fn("app", |map| {
        map.labels().get("app").cloned().into_iter().collect()
    })
}

fn add(store: &mut Store, index_fn: IndexFn) -> IndexId {
    let built = store.build_index(index_fn);
    store.add_index(built)
}

fn names(store: &Store, index: IndexId, value: &str) -> Vec<String> {
    let keys = store.keys_by_index(index, value);
    let names: Vec<_> = keys.map(|key| key.name().to_owned()).collect();
    let objects = store.by_index(index, value);
    let of_objects: Vec<_> = objects
        .iter()
        .map(|object| {
            let object = object.read_uncached();
            let map = object.downcast_ref::<ConfigMap>().expect("a config map");
            map.name_any()
        })
        .collect();
    assert_eq!(of_objects, names);
    names
}

#[test]
fn index_added_late_has_earlier_objects() {
    let mut store = Store::new();
    let first = applied(object("n", "a", 1, "x"));
    let second = applied(object("n", "b", 2, "y"));
    apply(&mut store, vec![first, second]);
    let index = add(&mut store, by_app());
    assert_eq!(names(&store, index, "x"), ["a"]);
    assert_eq!(
        names(&store, index + 1, "x"),
        [""; 0],
        "an index that was never added finds nothing"
    );
}

#[test]
fn equal_name_and_function_are_one_index() {
    let mut store = Store::new();
    let index = add(&mut store, by_app());
    assert_eq!(store.find_index(&by_app()), Some(index));
    assert!(!store.has_conflicting_index(&by_app()));
    let other = index_fn("app", |map| vec![map.name_any()]);
    assert_eq!(store.find_index(&other), None);
    assert!(store.has_conflicting_index(&other));
    let renamed = IndexFn {
        name: "application",
        ..by_app()
    };
    assert_eq!(store.find_index(&renamed), None);
    assert!(!store.has_conflicting_index(&renamed));
}

#[test]
fn changed_and_deleted_objects_leave_old_values() {
    let mut store = Store::new();
    let index = add(&mut store, by_app());
    let first = applied(object("n", "a", 1, "x"));
    let second = applied(object("n", "b", 2, "x"));
    apply(&mut store, vec![first, second]);
    let changed = applied(object("n", "a", 3, "y"));
    apply(&mut store, vec![changed, deleted("n", "b")]);
    assert_eq!(names(&store, index, "x"), [""; 0]);
    assert_eq!(names(&store, index, "y"), ["a"]);
}

#[test]
fn namespace_is_a_range_without_its_neighbours() {
    let mut store = Store::new();
    let namespaces = ["m", "n", "n-1", "o"];
    let deltas = namespaces.map(|namespace| applied(object(namespace, "a", 1, "x")));
    apply(&mut store, deltas.into());
    let found: Vec<_> = store
        .in_namespace("n")
        .map(|object| {
            let object = object.read_uncached();
            let map = object.downcast_ref::<ConfigMap>().expect("a config map");
            map.namespace()
        })
        .collect();
    assert_eq!(found, [Some("n".to_owned())]);
}

#[test]
fn same_version_received_again_changes_nothing() {
    let mut store = Store::new();
    let first = apply(&mut store, vec![applied(object("n", "a", 1, "x"))]);
    assert_eq!(first.len(), 1);
    let repeated = applied(object("n", "a", 1, "x"));
    let second = apply(&mut store, vec![repeated, deleted("n", "z")]);
    assert_eq!(second.len(), 0);
}

#[test]
fn panicking_index_function_leaves_out_its_object_only() {
    let mut store = Store::new();
    let panics = index_fn("app", |map| {
        vec![map.data.clone().expect("data")["app"].clone()]
    });
    let index = add(&mut store, panics);
    apply(&mut store, vec![applied(object("n", "a", 1, "x"))]);
    assert_eq!(store.len(), 1);
    assert_eq!(names(&store, index, "x"), [""; 0]);
}
