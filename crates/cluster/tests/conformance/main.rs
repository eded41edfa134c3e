//! Conformance of the controllers and the scheduler with kube-controller-manager and
//! kube-scheduler.
//!
//! `scenarios/` contains actions; `recorded/` the resulting objects of the upstream components,
//! with generated names, times and addresses normalized. Each scenario has its own namespace; all
//! run concurrently, round by round, and are compared whenever no object changes any more. Both
//! sides use the same simulated nodes.
//!
//! To record again, run etcd, kube-apiserver, kube-controller-manager and kube-scheduler of the
//! version, `kubectl proxy` in front of them, and
//! `BELLEROPHON_RECORD=http://127.0.0.1:8001 cargo test -p bellerophon-cluster --test conformance`.
//! The result is `docs/conformance-controllers.md`; `BELLEROPHON_WRITE=1` with the same command
//! updates it.

mod diff; // differences of two states
mod normalize; // removes generated names, times and addresses
mod report; // docs/conformance-controllers.md
mod runner; // runs scenarios on a cluster
mod scenario; // parses scenarios

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use bellerophon_testkit::TestCluster;
use serde_json::Value;

use self::{diff::differences, report::Outcome, runner::Runner, scenario::Scenario};

/// The normalized state after each round of a scenario.
type States = Vec<Value>;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/conformance")
        .join(name)
}

fn recording(scenario: &str) -> PathBuf {
    folder("recorded").join(format!("{scenario}.json"))
}

#[test]
fn scenarios_end_as_recorded_from_kubernetes() {
    let scenarios = Scenario::all(&folder("scenarios"));
    match env::var("BELLEROPHON_RECORD") {
        Ok(url) => record(&scenarios, &url),
        Err(_) => replay(&scenarios),
    }
}

fn runtime(paused: bool) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(paused)
        .build()
        .expect("a runtime")
}

/// Records the states of the scenarios on the cluster at `url`.
fn record(scenarios: &[Scenario], url: &str) {
    let states = runtime(false).block_on(async {
        let config = kube::Config::new(url.parse().expect("a URL"));
        let client = kube::Client::try_from(config).expect("a client");
        Runner::external(client).await.run(scenarios).await
    });
    for (name, states) in states {
        let text = serde_json::to_string_pretty(&states).expect("JSON");
        fs::write(recording(&name), text + "\n").expect("the recording is written");
    }
}

/// Compares the states of the scenarios on the embedded server with the recordings.
fn replay(scenarios: &[Scenario]) {
    let actual: BTreeMap<String, States> = runtime(true).block_on(async {
        let test_cluster = TestCluster::with_nodes(runner::NODES).await;
        let states = Runner::embedded(&test_cluster).await.run(scenarios).await;
        test_cluster.stop().await;
        states
    });
    let outcomes: Vec<Outcome> = scenarios
        .iter()
        .map(|scenario| {
            let recorded = fs::read_to_string(recording(&scenario.name))
                .unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
            let recorded: States = serde_json::from_str(&recorded).expect("a recording is JSON");
            Outcome {
                scenario,
                differences: differences(&recorded, &actual[&scenario.name]),
            }
        })
        .collect();
    let failures: Vec<String> = outcomes.iter().filter_map(Outcome::failure).collect();
    assert!(
        failures.is_empty(),
        "differences from the recordings:\n{}",
        failures.join("\n")
    );
    report::check(&outcomes);
}
