//! Deletion of a Bellerophon: Pods, then claims by policy, then the finalizer.
//!
//! Guarantee: no claim is deleted or retired while a Pod may still write to it.

use super::{PROGRESS_INTERVAL, Planner, STEADY_INTERVAL};
use crate::{
    crd::{ClaimPolicy, Phase},
    names,
    step::Step,
};
use kube::ResourceExt as _;

impl Planner<'_> {
    /// The next step of the deletion.
    pub(super) fn teardown(&mut self) -> Step {
        self.phase = Phase::Terminating;
        let hero = &self.observed.hero;
        if !hero
            .finalizers()
            .iter()
            .any(|name| name == names::FINALIZER)
        {
            return Step::wait(
                "the garbage collector deletes what is left",
                STEADY_INTERVAL,
            );
        }
        let live = self
            .observed
            .pods
            .iter()
            .find(|(_, pod)| !pod.is_terminating);
        if let Some((pod, _)) = live {
            return Step::DeletePod {
                pod: pod.clone(),
                reason: "the Bellerophon is deleted".to_owned(),
            };
        }
        if !self.observed.pods.is_empty() {
            return Step::wait("Pods are terminating", PROGRESS_INTERVAL);
        }
        let policy = hero.spec.storage.claim_policy;
        let claim = self
            .observed
            .claims
            .iter()
            .find(|(_, claim)| claim.is_own && !claim.is_retired && !claim.is_terminating);
        match (claim, policy) {
            (Some((name, _)), ClaimPolicy::Retain) => Step::RetireClaim {
                member: name.clone(),
            },
            (Some((name, _)), ClaimPolicy::Delete) => Step::DeleteClaim {
                member: name.clone(),
            },
            (None, _) => Step::RemoveFinalizer,
        }
    }
}
