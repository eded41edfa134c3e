//! Scheduler: which node a pod runs on.
//!
//! In: pods without a node, nodes, placed pods. Out: bindings; conditions and events of pods that no node takes; evictions
//! of less important ones.
//! Holds: one pod is decided on at a time, on a ledger that has every earlier decision; requests are made in parallel, and
//! a decision that the server refuses is taken back.

mod ledger; // which pods are on which node
mod pod_info; // what matters of a pod
mod resources; // what pods ask for and nodes have
mod terms; // which nodes and pods a pod speaks of

mod notice; // what informers tell
mod queue; // which pod is next

mod budget; // which pods may be ended
mod cycle; // where one pod goes
mod preempt; // whom to end for it
mod refusal; // why a node does not take it
mod score; // which node is best
mod trial; // whether a node takes it
mod volumes; // where its claims can be reached

mod act; // what the server is told
#[cfg(test)]
mod tests; // decisions on small clusters

use std::sync::Arc;

use bellerophon::{Entropy, HandlerHandle, HandlerOptions, Lister, SharedInformer};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::act::Act;
use self::cycle::{Circumstances, Decision, decide};
use self::notice::{Board, Notices};
use self::volumes::Volumes;
use crate::component::Component;
use crate::context::{Context, Loop};

pub(crate) use resources::units;

/// How many decisions are on their way to the server at once; while so many are, no further one is made.
const ACTS_MAX: usize = 32;

/// Decisions in a row before other tasks of the thread get their turn.
const DECISIONS_IN_A_ROW: usize = 8;

/// The loops of this level, in the order in which they start.
pub(crate) fn loops(ctx: &Context) -> Vec<Loop> {
    let board = Arc::new(Board::default());
    let notices = Notices {
        board: board.clone(),
        trace: ctx.trace.clone(),
    };
    let pods = ctx.pods();
    let handles = vec![
        listen(&ctx.informer::<Namespace>(), &notices),
        listen(&ctx.informer::<Node>(), &notices),
        listen(&ctx.informer::<PersistentVolume>(), &notices),
        listen(&ctx.informer::<PersistentVolumeClaim>(), &notices),
        listen(&pods, &notices),
    ];
    let scheduler = Scheduler {
        act: Arc::new(Act {
            client: ctx.client(Component::Scheduler),
            clock: ctx.clock,
            recorder: ctx.recorder(Component::Scheduler, pod_info::SCHEDULER),
            pods: pods.lister(),
            board: board.clone(),
            trace: ctx.trace.clone(),
        }),
        board,
        volumes: Volumes {
            claims: ctx.informer::<PersistentVolumeClaim>().lister(),
            volumes: ctx.informer::<PersistentVolume>().lister(),
            classes: ctx.informer::<StorageClass>().lister(),
        },
        budgets: ctx.informer::<PodDisruptionBudget>().lister(),
        entropy: ctx.entropy.clone(),
    };
    vec![Loop::background("scheduler", move |stop| async move {
        for handle in handles {
            match stop.run_until_cancelled(handle.wait_for_sync()).await {
                None => return Ok(()),
                Some(synced) => synced?,
            }
        }
        scheduler.run(stop).await;
        Ok(())
    })]
}

fn listen<K>(informer: &SharedInformer<K>, notices: &Notices) -> HandlerHandle
where
    K: kube::Resource + Send + Sync + 'static,
    Notices: bellerophon::EventHandler<K>,
{
    informer.add_handler(notices.clone(), HandlerOptions::default())
}

struct Scheduler {
    board: Arc<Board>,
    act: Arc<Act>,
    volumes: Volumes,
    budgets: Lister<PodDisruptionBudget>,
    entropy: Entropy,
}

impl Scheduler {
    /// Decides and acts until told to stop; what was decided by then is still told to the server.
    async fn run(&self, stop: CancellationToken) {
        let mut acts = JoinSet::new();
        loop {
            for _ in 0..DECISIONS_IN_A_ROW {
                if acts.len() >= ACTS_MAX {
                    break;
                }
                let Some((pending, decision)) = self.next() else {
                    break;
                };
                let act = self.act.clone();
                acts.spawn(async move { act.perform(pending, decision).await });
            }
            let (in_line, due) = {
                let board = self.board.lock();
                (
                    board.queue.is_in_line(Instant::now()),
                    board.queue.next_time(),
                )
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(done) = acts.join_next() => {
                    noted(done);
                    while let Some(done) = acts.try_join_next() {
                        noted(done);
                    }
                }
                () = tokio::task::yield_now(), if in_line && acts.len() < ACTS_MAX => {}
                () = self.board.changed.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
        while let Some(done) = acts.join_next().await {
            noted(done);
        }
    }

    /// Decides on the next pod, if there is one, and notes the decision in the ledger.
    fn next(&self) -> Option<(Arc<pod_info::Pending>, Decision)> {
        let mut board = self.board.lock();
        let board = &mut *board;
        let pending = board.queue.take(Instant::now())?;
        let circumstances = Circumstances {
            volumes: self.volumes.of(&pending),
            budgets: &self.budgets,
            entropy: &self.entropy,
        };
        let decision = decide(&mut board.ledger, &pending, &circumstances);
        match &decision {
            Decision::Bind { node } => board.assume(&pending, node),
            Decision::Refuse(refused) => board.refused(&pending, refused, Instant::now()),
        }
        Some((pending, decision))
    }
}

/// A pod whose act ended badly stays taken until its next change; hiding that would be worse than saying it.
fn noted(done: Result<(), JoinError>) {
    if let Err(error) = done {
        tracing::error!(%error, "telling the server of a decision ended unexpectedly");
    }
}
