//! How many pods an owner wants: what percentages of a budget are of.
//!
//! In: pods. Out: the sum over what controls them.
//! Holds: each owner counts once. The kinds that are known are read from caches; others are asked for their `scale`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bellerophon::{Lister, ObjectKey, controller_of};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::GroupVersionKind;
use kube::core::request::Request;
use kube::{Client, Resource, ResourceExt};

use crate::api_errors::has_code;

/// Where owners are looked up.
pub(super) struct Owners {
    pub(super) client: Client,
    pub(super) replica_sets: Lister<ReplicaSet>,
    pub(super) deployments: Lister<Deployment>,
    pub(super) stateful_sets: Lister<StatefulSet>,
    pub(super) replication_controllers: Lister<ReplicationController>,
}

/// What the owners of some pods want together.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) replicas: i32,
    /// Pods that nobody controls: they cannot be counted.
    pub(super) unmanaged: Vec<String>,
}

impl Owners {
    /// Adds up what the owners of the pods want.
    ///
    /// # Errors
    /// A pod's owner cannot be found or asked, in words for people.
    pub(super) async fn wanted(&self, pods: &[Arc<Pod>]) -> Result<Wanted, String> {
        let mut wanted = Wanted::default();
        let mut by_owner = BTreeMap::new();
        for pod in pods {
            let Some(owner) = controller_of(&**pod) else {
                wanted.unmanaged.push(pod.name_any());
                continue;
            };
            let namespace = pod.namespace().unwrap_or_default();
            let (top, scale) = self.top(owner, &namespace);
            if by_owner.contains_key(&top.uid) {
                continue;
            }
            let replicas = match scale {
                Some(replicas) => Some(replicas),
                None => self.ask(&top, &namespace).await?,
            };
            let replicas = replicas
                .ok_or_else(|| format!("found no controllers for pod {:?}", pod.name_any()))?;
            by_owner.insert(top.uid, replicas);
        }
        wanted.replicas = by_owner.values().sum();
        Ok(wanted)
    }

    /// The owner that decides on the number of pods, and the number if a cache has it.
    fn top(&self, owner: &OwnerReference, namespace: &str) -> (OwnerReference, Option<i32>) {
        let key = |owner: &OwnerReference| ObjectKey::namespaced(namespace, &owner.name);
        match owner.kind.as_str() {
            "ReplicaSet" => {
                let set = same(self.replica_sets.get(&key(owner)), owner);
                let deployment = set
                    .as_ref()
                    .and_then(|set| controller_of(&**set))
                    .filter(|owner| owner.kind == "Deployment");
                if let Some(deployment) = deployment {
                    let found = same(self.deployments.get(&key(deployment)), deployment);
                    return (
                        deployment.clone(),
                        found.and_then(|it| it.spec.as_ref()?.replicas),
                    );
                }
                (
                    owner.clone(),
                    set.and_then(|set| set.spec.as_ref()?.replicas),
                )
            }
            "StatefulSet" => (
                owner.clone(),
                same(self.stateful_sets.get(&key(owner)), owner)
                    .and_then(|it| it.spec.as_ref()?.replicas),
            ),
            "ReplicationController" => (
                owner.clone(),
                same(self.replication_controllers.get(&key(owner)), owner)
                    .and_then(|it| it.spec.as_ref()?.replicas),
            ),
            _ => (owner.clone(), None),
        }
    }

    /// Asks the server how many pods an owner of any kind wants; `None` if it is gone or has no scale.
    async fn ask(&self, owner: &OwnerReference, namespace: &str) -> Result<Option<i32>, String> {
        let (group, version) = owner
            .api_version
            .split_once('/')
            .unwrap_or(("", &owner.api_version));
        let kind = GroupVersionKind::gvk(group, version, &owner.kind);
        let failed = |error: kube::Error| {
            format!(
                "cannot ask for the scale of {} {}: {error}",
                owner.kind, owner.name
            )
        };
        let resource = match kube::discovery::pinned_kind(&self.client, &kind).await {
            Ok((resource, _)) => resource,
            Err(kube::Error::Discovery(_)) => return Ok(None),
            Err(error) if has_code(&error, 404) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let url = kube::api::DynamicObject::url_path(&resource, Some(namespace));
        let request = Request::new(url).get_subresource("scale", &owner.name);
        let request = request.map_err(|error| failed(kube::Error::BuildRequest(error)))?;
        match self.client.request::<Scale>(request).await {
            Ok(scale) => Ok(Some(scale.spec.and_then(|spec| spec.replicas).unwrap_or(0))),
            Err(error) if has_code(&error, 404) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

/// An owner, if it is the very one the reference means.
fn same<K: Resource>(found: Option<Arc<K>>, owner: &OwnerReference) -> Option<Arc<K>> {
    found.filter(|found| found.meta().uid.as_ref() == Some(&owner.uid))
}
