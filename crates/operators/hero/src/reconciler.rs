//! The reconciler of Bellerophons: observe → plan → apply, one step per reconcile.

use std::{sync::Arc, time::Duration};

use bellerophon::prelude::*;
use tracing::{debug, info};

use crate::{
    apply::{Applier, ApplyError},
    crd::Bellerophon,
    metrics::HeroMetrics,
    observe::Observer,
    plan::{PROGRESS_INTERVAL, plan},
    step::Step,
};

/// The delay of the next observation after a mutation: reads that follow it immediately.
const NEXT_STEP: Duration = Duration::from_millis(10);

/// Reconciles Bellerophons.
pub(crate) struct HeroReconciler {
    pub(crate) observer: Arc<Observer>,
    pub(crate) heroes: Lister<Bellerophon>,
    pub(crate) metrics: HeroMetrics,
}

impl Reconciler<Bellerophon> for HeroReconciler {
    async fn reconcile(&self, req: Request<Bellerophon>) -> Result<Action, Error> {
        let observation = self
            .observer
            .observe(req.client(), req.key(), req.now())
            .await?;
        let Some((observed, objects)) = observation else {
            self.forget(&req);
            return Ok(Action::await_change());
        };
        let step = plan(&observed);
        self.metrics.record(req.key(), &observed, &step);
        let applier = Applier {
            client: req.client(),
            members: &*self.observer.members,
            observed: &observed,
            objects: &objects,
        };
        log(&req, &step);
        match applier.apply(&step).await {
            Ok(events) => {
                for event in events {
                    req.recorder().event(&observed.hero, event);
                }
            }
            // A member that refuses is no reason to back off: the next observation shows why.
            Err(error @ (ApplyError::Member(_) | ApplyError::Gone(_))) => {
                return Err(Error::retry_after(PROGRESS_INTERVAL, error));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(match step {
            Step::Wait { after, reason } => Action::requeue_after(after).reason(reason),
            _ => Action::requeue_after(NEXT_STEP).reason("a step was applied"),
        })
    }
}

impl HeroReconciler {
    /// Drops what is kept about stores that no longer exist.
    fn forget(&self, req: &Request<Bellerophon>) {
        let heroes = self.heroes.list();
        let uids: Vec<&str> = heroes
            .iter()
            .filter_map(|hero| hero.metadata.uid.as_deref())
            .collect();
        self.observer.sampler.retain(|uid| uids.contains(&uid));
        self.metrics.forget(req.key());
    }
}

fn log(req: &Request<Bellerophon>, step: &Step) {
    match step {
        Step::Wait { reason, .. } => debug!(hero = %req.key(), reason, "nothing to do"),
        Step::WriteStatus(status) => {
            debug!(hero = %req.key(), phase = ?status.phase, "status changed");
        }
        step => info!(hero = %req.key(), ?step, "applying a step"),
    }
}
