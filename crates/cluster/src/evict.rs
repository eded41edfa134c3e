//! Evict: ends a pod that did nothing wrong, and says why.
//!
//! In: a pod, the reason. Out: a condition that controllers read, then the delete.
//! Holds: only the pod that was read is ended, never another one of its name; one that is gone is none of our business.

use bellerophon::WallClock;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

/// The condition of a pod that is ended for the sake of others.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// How a pod is ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Reason and message of the condition `DisruptionTarget`.
    pub(crate) because: Option<(&'static str, String)>,
    /// It can end no more by itself, so its phase is set to `Failed` first.
    pub(crate) fails: bool,
    /// It goes at once, whether or not it still runs somewhere.
    pub(crate) at_once: bool,
}

impl Eviction {
    /// Ends the pod.
    ///
    /// # Errors
    /// The server refuses.
    pub(crate) async fn apply(
        &self,
        client: &Client,
        clock: WallClock,
        pod: &Pod,
    ) -> Result<(), kube::Error> {
        let pods = Api::<Pod>::namespaced(
            client.clone(),
            pod.metadata.namespace.as_deref().unwrap_or("default"),
        );
        if let Some(status) = self.status(pod, clock) {
            let body = json!({ "metadata": { "uid": pod.metadata.uid }, "status": status });
            match pods
                .patch_status(
                    &pod.name_any(),
                    &PatchParams::default(),
                    &Patch::Strategic(&body),
                )
                .await
            {
                Ok(_) => {}
                Err(error) if is_another(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let preconditions = Some(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        });
        let grace_period_seconds = self.at_once.then_some(0);
        match pods
            .delete(
                &pod.name_any(),
                &DeleteParams {
                    grace_period_seconds,
                    preconditions,
                    ..DeleteParams::default()
                },
            )
            .await
        {
            Err(error) if !is_another(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// What the pod's status does not say yet.
    fn status(&self, pod: &Pod, clock: WallClock) -> Option<Value> {
        let known = pod.status.as_ref();
        let phase = known.and_then(|status| status.phase.as_deref());
        let fails = self.fails && !matches!(phase, Some("Succeeded" | "Failed"));
        let says = |reason: &str| {
            let conditions = known.and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|c| {
                c.type_ == DISRUPTION_TARGET
                    && c.status == "True"
                    && c.reason.as_deref() == Some(reason)
            })
        };
        let because = self.because.as_ref().filter(|(reason, _)| !says(reason));
        if !fails && because.is_none() {
            return None;
        }
        let mut status = json!({});
        if fails {
            status["phase"] = json!("Failed");
        }
        if let Some((reason, message)) = because {
            status["conditions"] = json!([{
                "type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message,
                "lastTransitionTime": Time(clock.now()), "observedGeneration": pod.metadata.generation,
            }]);
            // Behind what the pod says of itself.
            let others = known
                .and_then(|status| status.conditions.as_ref())
                .into_iter()
                .flatten()
                .map(|c| &*c.type_);
            let order = others
                .filter(|type_| *type_ != DISRUPTION_TARGET)
                .chain([DISRUPTION_TARGET]);
            status["$setElementOrder/conditions"] =
                order.map(|type_| json!({ "type": type_ })).collect();
        }
        Some(status)
    }
}

/// The object that was read is no longer there; whatever is will be told by a watch.
pub(crate) fn is_another(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || (status.code == 409 && status.reason == "Conflict"))
}
