//! Expected scale: the sum of desired replicas of the pods' controllers, the base of percentages in
//! a PodDisruptionBudget.
//!
//! Guarantees: each controller counts once. Built-in workloads are read from caches, others through
//! the `scale` subresource.

use std::collections::BTreeMap;
use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::informer::Lister;
use bellerophon::owner::controller_of;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::GroupVersionKind;
use kube::core::request::Request;
use kube::{Client, Resource, ResourceExt};

/// Finds the scale of controllers. Upstream: finders.
pub(super) struct ScaleFinder {
    pub(super) client: Client,
    pub(super) replica_sets: Lister<ReplicaSet>,
    pub(super) deployments: Lister<Deployment>,
    pub(super) stateful_sets: Lister<StatefulSet>,
    pub(super) replication_controllers: Lister<ReplicationController>,
}

/// Scale of the controllers of some pods.
#[derive(Debug, Default)]
pub(super) struct ExpectedScale {
    /// Sum of the controllers' replicas.
    pub(super) replicas: i32,
    /// Names of pods without a controller.
    pub(super) unmanaged: Vec<String>,
}

impl ScaleFinder {
    /// Sums the replicas of the pods' controllers. Mirrors getExpectedScale.
    ///
    /// # Errors
    /// The controller of a pod does not exist or has no scale; the message is set in the status.
    pub(super) async fn expected_scale(&self, pods: &[Arc<Pod>]) -> Result<ExpectedScale, String> {
        let mut expected = ExpectedScale::default();
        let mut replicas_by_controller = BTreeMap::new();
        for pod in pods {
            let Some(owner) = controller_of(&**pod) else {
                expected.unmanaged.push(pod.name_any());
                continue;
            };
            let namespace = pod.namespace().unwrap_or_default();
            let (controller, cached) = self.scale_target(owner, &namespace);
            // All pods of a controller share its scale.
            if replicas_by_controller.contains_key(&controller.uid) {
                continue;
            }
            let replicas = match cached {
                Some(replicas) => Some(replicas),
                None => self.get_scale(&controller, &namespace).await?,
            };
            let replicas = replicas
                .ok_or_else(|| format!("found no controllers for pod {:?}", pod.name_any()))?;
            replicas_by_controller.insert(controller.uid, replicas);
        }
        expected.replicas = replicas_by_controller.values().sum();
        Ok(expected)
    }

    /// The controller that determines the replicas, and the replicas if they are cached. Mirrors
    /// getPodReplicaSet, getPodDeployment, getPodStatefulSet and getPodReplicationController.
    fn scale_target(
        &self,
        owner: &OwnerReference,
        namespace: &str,
    ) -> (OwnerReference, Option<i32>) {
        let key = |owner: &OwnerReference| ObjectKey::namespaced(namespace, &owner.name);
        match owner.kind.as_str() {
            "ReplicaSet" => {
                let set = with_uid(self.replica_sets.get(&key(owner)), owner);
                let deployment = set
                    .as_ref()
                    .and_then(|set| controller_of(&**set))
                    .filter(|owner| owner.kind == "Deployment");
                if let Some(deployment) = deployment {
                    let found = with_uid(self.deployments.get(&key(deployment)), deployment);
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
                with_uid(self.stateful_sets.get(&key(owner)), owner)
                    .and_then(|it| it.spec.as_ref()?.replicas),
            ),
            "ReplicationController" => (
                owner.clone(),
                with_uid(self.replication_controllers.get(&key(owner)), owner)
                    .and_then(|it| it.spec.as_ref()?.replicas),
            ),
            _ => (owner.clone(), None),
        }
    }

    /// Reads the scale subresource; `None` if the owner is gone or has none. Mirrors
    /// getScaleController.
    async fn get_scale(
        &self,
        owner: &OwnerReference,
        namespace: &str,
    ) -> Result<Option<i32>, String> {
        let (group, version) = owner
            .api_version
            .split_once('/')
            .unwrap_or(("", &owner.api_version));
        let kind = GroupVersionKind::gvk(group, version, &owner.kind);
        let message = |error: kube::Error| {
            format!(
                "cannot get the scale of {} {}: {error}",
                owner.kind, owner.name
            )
        };
        let resource = match kube::discovery::pinned_kind(&self.client, &kind).await {
            Ok((resource, _)) => resource,
            // Mirrors implementsScale: a kind without scale is no controller.
            Err(kube::Error::Discovery(_)) => return Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => return Err(message(error)),
        };
        let url = kube::api::DynamicObject::url_path(&resource, Some(namespace));
        let request = Request::new(url).get_subresource("scale", &owner.name);
        let request = request.map_err(|error| message(kube::Error::BuildRequest(error)))?;
        match self.client.request::<Scale>(request).await {
            Ok(scale) => Ok(Some(scale.spec.and_then(|spec| spec.replicas).unwrap_or(0))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(message(error)),
        }
    }
}

/// The object if it has the uid of the owner reference.
fn with_uid<K: Resource>(found: Option<Arc<K>>, owner: &OwnerReference) -> Option<Arc<K>> {
    found.filter(|found| found.meta().uid.as_ref() == Some(&owner.uid))
}
