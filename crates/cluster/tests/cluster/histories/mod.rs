//! Random histories: after any sequence of actions the cluster converges to the desired state.
//!
//! A history is generated from a seed: objects are applied, scaled, updated and deleted, nodes fail
//! and return, the controllers are stopped and restarted, at random intervals. Then all failures
//! are repaired, time passes, and the state is compared with the desired state: exactly the desired
//! pods, all ready, no other objects, and no more writes.
//!
//! `BELLEROPHON_HISTORIES` sets the number of histories, `BELLEROPHON_HISTORY` the first seed; a
//! failure reports its seed.

mod action; // actions of a history
mod driver; // executes actions and records the desired state
mod invariants; // invariants of the converged state
mod snapshot; // all objects at one time
mod workload; // workloads and their manifests

use std::time::Duration;

use bellerophon::clock::Rng;
use bellerophon_testkit::TestCluster;

use self::{action::Action, driver::Driver, invariants::violations, snapshot::Snapshot};

/// Default number of histories.
const HISTORIES: u64 = 2;
/// Actions per history.
const ACTIONS: u64 = 40;
const NODES: usize = 4;

/// Time to converge: longer than any back-off, grace period or toleration.
const CONVERGENCE_TIME: Duration = Duration::from_secs(18 * 60);
/// Time without writes after convergence.
const QUIET_TIME: Duration = Duration::from_secs(6 * 60);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text}"))
    })
}

#[tokio::test(start_paused = true)]
async fn random_histories_converge_to_the_desired_state() {
    let first = setting("BELLEROPHON_HISTORY").unwrap_or(1);
    for seed in first..first + setting("BELLEROPHON_HISTORIES").unwrap_or(HISTORIES) {
        let rng = Rng::seeded(seed);
        let actions: Vec<Action> = (0..ACTIONS).map(|_| Action::random(&rng, NODES)).collect();
        if let Some(violations) = run(&actions).await {
            let listed: Vec<String> = actions.iter().map(|action| format!("{action:?}")).collect();
            panic!(
                "history {seed} does not converge:\n  {}\nactions:\n  {}",
                violations.join("\n  "),
                listed.join("\n  ")
            );
        }
    }
}

/// Runs a history and returns the violated invariants, if any.
async fn run(actions: &[Action]) -> Option<Vec<String>> {
    let mut driver = Driver::new(TestCluster::with_nodes(NODES).await).await;
    for action in actions {
        driver.execute(action).await;
    }
    let (cluster, desired) = driver.recover().await;
    cluster.advance(CONVERGENCE_TIME).await;
    let converged = Snapshot::of(&cluster).await;
    cluster.advance(QUIET_TIME).await;
    let snapshot = Snapshot::of(&cluster).await;
    let mut violations = violations(&desired, &snapshot);
    violations.extend(
        converged
            .changes(&snapshot)
            .into_iter()
            .map(|change| format!("still written: {change}")),
    );
    cluster.stop().await;
    (!violations.is_empty()).then_some(violations)
}
