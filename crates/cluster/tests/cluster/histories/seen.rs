//! Everything there is, at one moment.

use std::collections::BTreeMap;

use bellerophon_testkit::World;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde_json::Value;

use super::workload::NAMESPACES;

/// What is looked at: everything that a loop writes, but heartbeats and events.
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

/// How a kind of [`KINDS`] is reached.
pub(super) fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    let plural = if kind == "Endpoints" {
        "endpoints".to_owned()
    } else {
        format!("{}s", kind.to_lowercase())
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural)
}

/// All objects of all kinds that are looked at.
pub(super) struct Seen(Vec<(&'static str, DynamicObject)>);

impl Seen {
    /// Reads them all.
    pub(super) async fn of(world: &World) -> Self {
        let mut seen = Vec::new();
        for (group, version, kind) in KINDS {
            let api: Api<DynamicObject> =
                Api::all_with(world.client.clone(), &resource(group, version, kind));
            let listed = api
                .list(&Default::default())
                .await
                .unwrap_or_else(|error| panic!("cannot list {kind}: {error}"));
            seen.extend(listed.items.into_iter().map(|object| (kind, object)));
        }
        Self(seen)
    }

    /// Every object that may belong to a history: with its kind, in its namespaces or in none.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, &DynamicObject)> {
        let ours = |object: &DynamicObject| {
            object
                .namespace()
                .is_none_or(|namespace| NAMESPACES.contains(&&*namespace))
        };
        self.0
            .iter()
            .map(|(kind, object)| (*kind, object))
            .filter(move |(_, object)| ours(object))
    }

    /// The objects of a kind in a namespace; in none if it is empty.
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

    /// The objects of a kind that another one controls.
    pub(super) fn controlled_by(
        &self,
        kind: &'static str,
        owner: &DynamicObject,
    ) -> Vec<&DynamicObject> {
        let namespace = owner.namespace().unwrap_or_default();
        let uid = owner.uid();
        let ours = |object: &&DynamicObject| {
            controller(object).is_some_and(|owner| Some(&owner.uid) == uid.as_ref())
        };
        self.within(kind, &namespace).filter(ours).collect()
    }

    /// What differs later. Nodes report every few minutes, which is no difference.
    pub(super) fn changes(&self, later: &Self) -> Vec<String> {
        let versions = |seen: &Self| -> BTreeMap<String, Option<String>> {
            let still = seen.all().filter(|(kind, _)| *kind != "Node");
            still
                .map(|(kind, object)| (title(kind, object), object.resource_version()))
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

/// How an object is named in a report.
pub(super) fn title(kind: &str, object: &DynamicObject) -> String {
    format!(
        "{kind} {}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

/// The owner that controls an object.
pub(super) fn controller(object: &DynamicObject) -> Option<&OwnerReference> {
    bellerophon::controller_of(object)
}

/// A part of an object by its pointer, such as `/spec/replicas`; null if there is none.
pub(super) fn at<'a>(object: &'a DynamicObject, pointer: &str) -> &'a Value {
    object.data.pointer(pointer).unwrap_or(&Value::Null)
}

/// A number by its pointer; an absent one is zero.
pub(super) fn number(object: &DynamicObject, pointer: &str) -> u64 {
    at(object, pointer).as_u64().unwrap_or(0)
}

/// Whether a condition of an object holds.
pub(super) fn holds(object: &DynamicObject, type_: &str) -> bool {
    let conditions = at(object, "/status/conditions")
        .as_array()
        .into_iter()
        .flatten();
    conditions
        .into_iter()
        .any(|condition| condition["type"] == type_ && condition["status"] == "True")
}
