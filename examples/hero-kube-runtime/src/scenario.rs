//! The steps of a scenario of a store.
//!
//! In: a client of the API server, without faults. Out: how long each step took to converge.
//! Guarantee: a step ends when the store has the desired members and answers, or fails after a
//! bounded time.

use std::time::Duration;

use bellerophon_hero::Bellerophon;
use bellerophon_hero::crd::Phase;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::Failure;

const NAME: &str = "pegasus";

/// How often the state is read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(180);

/// The steps, as they are reported.
pub(crate) const STEPS: [&str; 5] = [
    "install 3",
    "scale to 5",
    "scale to 3",
    "replace the deleted leader Pod",
    "delete",
];

/// Runs all steps.
///
/// # Errors
/// A request failed, or a step did not converge.
pub(crate) async fn run(client: &Client, image: &str) -> Result<Vec<Duration>, Failure> {
    let store = Store {
        heroes: Api::default_namespaced(client.clone()),
        pods: Api::default_namespaced(client.clone()),
        claims: Api::default_namespaced(client.clone()),
    };
    let mut durations = Vec::new();
    for step in STEPS {
        let started = Instant::now();
        store.start(step, image).await?;
        let converged = store.wait_for(step);
        let converged = tokio::time::timeout(STEP_TIMEOUT, converged).await;
        converged.map_err(|_| format!("{step:?} did not converge within {STEP_TIMEOUT:?}"))??;
        durations.push(started.elapsed());
    }
    Ok(durations)
}

struct Store {
    heroes: Api<Bellerophon>,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
}

impl Store {
    /// Makes the change of a step.
    async fn start(&self, step: &str, image: &str) -> Result<(), Failure> {
        match step {
            "install 3" => {
                let hero = serde_json::from_value(json!({
                    "apiVersion": "stable.bellerophon.io/v1beta7",
                    "kind": "Bellerophon",
                    "metadata": {"name": NAME},
                    "spec": {
                        "winged_horse_name": NAME,
                        "image": image,
                        "replicas": 3,
                        "storage": {"size": "64Mi", "claimPolicy": "Delete"},
                    },
                }))?;
                self.heroes.create(&PostParams::default(), &hero).await?;
            }
            "scale to 5" => self.scale(5).await?,
            "scale to 3" => self.scale(3).await?,
            "replace the deleted leader Pod" => {
                let hero = self.heroes.get(NAME).await?;
                let leader = hero.status.and_then(|status| status.leader);
                let leader = leader.ok_or("the store has no leader")?;
                self.pods.delete(&leader, &DeleteParams::default()).await?;
                self.wait_until_gone(&leader).await?;
            }
            _ => {
                self.heroes.delete(NAME, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }

    async fn scale(&self, replicas: i32) -> Result<(), Failure> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let params = PatchParams::default();
        self.heroes.patch(NAME, &params, &patch).await?;
        Ok(())
    }

    /// The Pod of this name is gone, or replaced by another one.
    async fn wait_until_gone(&self, name: &str) -> Result<(), Failure> {
        let first = self.pods.get_opt(name).await?.and_then(|pod| pod.uid());
        loop {
            let current = self.pods.get_opt(name).await?.and_then(|pod| pod.uid());
            if current.is_none() || current != first {
                return Ok(());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn wait_for(&self, step: &str) -> Result<(), Failure> {
        loop {
            let is_converged = match step {
                "scale to 5" => self.has_members(5).await?,
                "delete" => self.is_gone().await?,
                _ => self.has_members(3).await?,
            };
            if is_converged {
                return Ok(());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the store runs with this number of voters, and nothing else is left.
    async fn has_members(&self, count: usize) -> Result<bool, Failure> {
        let hero = self.heroes.get(NAME).await?;
        let Some(status) = &hero.status else {
            return Ok(false);
        };
        let is_running = status.phase == Phase::Running
            && status.observed_generation == hero.metadata.generation
            && usize::try_from(status.replicas)? == count
            && status.voters.len() == count
            && status.members.len() == count;
        Ok(is_running && self.ready_pods().await? == count)
    }

    async fn ready_pods(&self) -> Result<usize, Failure> {
        let pods = self.pods.list(&ListParams::default()).await?;
        let is_ready = |pod: &&Pod| {
            let status = pod.status.as_ref();
            let mut conditions = status
                .into_iter()
                .flat_map(|s| s.conditions.iter().flatten());
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        Ok(pods.items.iter().filter(is_ready).count())
    }

    async fn is_gone(&self) -> Result<bool, Failure> {
        let list = ListParams::default();
        Ok(self.heroes.get_opt(NAME).await?.is_none()
            && self.pods.list(&list).await?.items.is_empty()
            && self.claims.list(&list).await?.items.is_empty())
    }
}
