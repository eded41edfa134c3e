//! Snapshot of all objects.

use std::collections::BTreeMap;

use bellerophon_testkit::TestCluster;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde_json::Value;

use super::workload::NAMESPACES;

/// Kinds that controllers write, except leases and events.
const KINDS: [(&str, &str, &str); 20] = [
    ("", "v1", "Namespace"),
    ("", "v1", "Node"),
    ("", "v1", "PersistentVolume"),
    ("", "v1", "ServiceAccount"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Service"),
    ("", "v1", "Endpoints"),
    ("discovery.k8s.io", "v1", "EndpointSlice"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "ReplicaSet"),
    ("apps", "v1", "StatefulSet"),
    ("apps", "v1", "DaemonSet"),
    ("apps", "v1", "ControllerRevision"),
    ("batch", "v1", "Job"),
    ("batch", "v1", "CronJob"),
    ("", "v1", "PersistentVolumeClaim"),
    ("", "v1", "ReplicationController"),
    ("", "v1", "Secret"),
    ("", "v1", "Pod"),
];

/// The API resource of a kind.
pub(super) fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    let plural = if kind == "Endpoints" {
        "endpoints".to_owned()
    } else {
        format!("{}s", kind.to_lowercase())
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural)
}

/// All objects of [`KINDS`].
pub(super) struct Snapshot(Vec<(&'static str, DynamicObject)>);

impl Snapshot {
    /// Lists all kinds.
    pub(super) async fn of(cluster: &TestCluster) -> Self {
        let mut objects = Vec::new();
        for (group, version, kind) in KINDS {
            let api: Api<DynamicObject> =
                Api::all_with(cluster.client.clone(), &resource(group, version, kind));
            let listed = api
                .list(&Default::default())
                .await
                .unwrap_or_else(|error| panic!("cannot list {kind}: {error}"));
            objects.extend(listed.items.into_iter().map(|object| (kind, object)));
        }
        Self(objects)
    }

    /// Objects in the namespaces of the histories and cluster-scoped objects, with their kind.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, &DynamicObject)> {
        let is_relevant = |object: &DynamicObject| {
            object
                .namespace()
                .is_none_or(|namespace| NAMESPACES.contains(&&*namespace))
        };
        self.0
            .iter()
            .map(|(kind, object)| (*kind, object))
            .filter(move |(_, object)| is_relevant(object))
    }

    /// Objects of a kind in a namespace; the namespace of cluster-scoped objects is empty.
    pub(super) fn within(
        &self,
        kind: &'static str,
        namespace: &str,
    ) -> impl Iterator<Item = &DynamicObject> {
        self.all()
            .filter(move |(k, object)| {
                *k == kind && object.namespace().unwrap_or_default() == namespace
            })
            .map(|(_, object)| object)
    }

    /// One object.
    pub(super) fn get(
        &self,
        kind: &'static str,
        namespace: &str,
        name: &str,
    ) -> Option<&DynamicObject> {
        self.within(kind, namespace)
            .find(|object| object.name_any() == name)
    }

    /// Objects of a kind with a controller reference to `owner`.
    pub(super) fn controlled_by(
        &self,
        kind: &'static str,
        owner: &DynamicObject,
    ) -> Vec<&DynamicObject> {
        let namespace = owner.namespace().unwrap_or_default();
        let uid = owner.uid();
        let is_controlled = |object: &&DynamicObject| {
            controller(object).is_some_and(|owner| Some(&owner.uid) == uid.as_ref())
        };
        self.within(kind, &namespace)
            .filter(is_controlled)
            .collect()
    }

    /// Objects that were changed, created or deleted later, except nodes, which report their
    /// status.
    pub(super) fn changes(&self, later: &Self) -> Vec<String> {
        let versions = |snapshot: &Self| -> BTreeMap<String, Option<String>> {
            let objects = snapshot.all().filter(|(kind, _)| *kind != "Node");
            objects
                .map(|(kind, object)| (describe(kind, object), object.resource_version()))
                .collect()
        };
        let before = versions(self);
        let after = versions(later);
        let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        keys.into_iter()
            .filter(|key| before.get(*key) != after.get(*key))
            .cloned()
            .collect()
    }
}

/// `kind namespace/name`.
pub(super) fn describe(kind: &str, object: &DynamicObject) -> String {
    format!(
        "{kind} {}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

/// The controller reference of an object.
pub(super) fn controller(object: &DynamicObject) -> Option<&OwnerReference> {
    bellerophon::owner::controller_of(object)
}

/// The value at a JSON pointer such as `/spec/replicas`; null if it is absent.
pub(super) fn at<'a>(object: &'a DynamicObject, pointer: &str) -> &'a Value {
    object.data.pointer(pointer).unwrap_or(&Value::Null)
}

/// The number at a JSON pointer; 0 if it is absent.
pub(super) fn number(object: &DynamicObject, pointer: &str) -> u64 {
    at(object, pointer).as_u64().unwrap_or(0)
}

/// Whether a condition of an object is true.
pub(super) fn has_condition(object: &DynamicObject, type_: &str) -> bool {
    let conditions = at(object, "/status/conditions")
        .as_array()
        .into_iter()
        .flatten();
    conditions
        .into_iter()
        .any(|condition| condition["type"] == type_ && condition["status"] == "True")
}
