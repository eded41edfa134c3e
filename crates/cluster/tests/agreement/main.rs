//! Kubernetes' own controllers agree: what they made of a list of scenarios was recorded, and ours make the same.
//!
//! `scenarios/` says what happens; `recorded/` what the real kube-controller-manager and kube-scheduler left there, with
//! names, times and addresses made comparable. Each scenario has its own namespace; all are played at once, round by round,
//! and looked at whenever nothing changes any more. Nodes are simulated in both cases, by the same code.
//!
//! To record again, run etcd, kube-apiserver, kube-controller-manager and kube-scheduler of the version, `kubectl proxy`
//! in front of them, and `BELLEROPHON_RECORD=http://127.0.0.1:8001 cargo test -p bellerophon-cluster --test agreement`.
//! `docs/conformance-controllers.md` says how it ends; `BELLEROPHON_WRITE=1` with the same command writes it anew.

mod compare; // where two states differ
mod normal; // what is the same in every run
mod page; // the page on how it ends
mod play; // a list of scenarios, on any cluster
mod scenario; // what happens

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use bellerophon_testkit::World;
use serde_json::Value;

use self::{compare::differences, page::Outcome, play::Stage, scenario::Scenario};

/// The states in which a scenario came to rest, first to last.
type Looks = Vec<Value>;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/agreement")
        .join(name)
}

fn recording(scenario: &str) -> PathBuf {
    folder("recorded").join(format!("{scenario}.json"))
}

#[test]
fn kubernetes_own_controllers_agree() {
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

/// Writes down what the controllers at that address make of the scenarios.
fn record(scenarios: &[Scenario], url: &str) {
    let looks = runtime(false).block_on(async {
        let config = kube::Config::new(url.parse().expect("an address"));
        let client = kube::Client::try_from(config).expect("a client");
        Stage::elsewhere(client).await.play(scenarios).await
    });
    for (name, looks) in looks {
        let text = serde_json::to_string_pretty(&looks).expect("JSON");
        fs::write(recording(&name), text + "\n").expect("a recording is written");
    }
}

/// Holds what our own loops make of the scenarios against what is written down.
fn replay(scenarios: &[Scenario]) {
    let ours: BTreeMap<String, Looks> = runtime(true).block_on(async {
        let world = World::with_nodes(play::NODES).await;
        let looks = Stage::here(&world).await.play(scenarios).await;
        world.stop().await;
        looks
    });
    let outcomes: Vec<Outcome> = scenarios
        .iter()
        .map(|scenario| {
            let recorded = fs::read_to_string(recording(&scenario.name))
                .unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
            let recorded: Looks = serde_json::from_str(&recorded).expect("a recording is JSON");
            Outcome {
                scenario,
                differences: differences(&recorded, &ours[&scenario.name]),
            }
        })
        .collect();
    let unexplained: Vec<String> = outcomes.iter().filter_map(Outcome::complaint).collect();
    assert!(
        unexplained.is_empty(),
        "Kubernetes' own controllers disagree:\n{}",
        unexplained.join("\n")
    );
    page::check(&outcomes);
}
