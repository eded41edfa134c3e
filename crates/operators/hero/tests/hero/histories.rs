//! Random histories of the plan in memory: faults of Pods, disks, nodes and the operator, changes
//! of the spec, writes to the store.
//!
//! `HERO_HISTORIES=10000 cargo test -p bellerophon-hero --test hero histories` runs more of them
//! than the default. `HERO_SEED=n` runs one.

use std::{collections::BTreeSet, io::Write as _, time::Duration};

use bellerophon::clock::Rng;
use bellerophon_hero::{
    PodPhase,
    crd::{MemberPhase, Phase},
};

use crate::simulation::{Simulation, hero};

/// The default number of histories.
const HISTORIES: u64 = 200;

/// The images that a history changes to. One of them skips a version.
const IMAGES: [&str; 4] = ["store:1.0.0", "store:1.1.0", "store:1.0.1", "store:1.3.0"];

#[test]
fn random_histories_keep_every_invariant() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seeds = match number("HERO_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HERO_HISTORIES").unwrap_or(HISTORIES),
    };
    let mut running = 0;
    let mut lost = 0;
    for seed in seeds.clone() {
        match history(seed) {
            Phase::QuorumLost => lost += 1,
            _ => running += 1,
        }
    }
    let count = seeds.end - seeds.start;
    // To stderr directly, since the test harness captures output.
    _ = writeln!(
        std::io::stderr(),
        "{count} histories: {running} running, {lost} without data"
    );
    assert!(
        running >= lost,
        "most histories end well: {running}, {lost}"
    );
}

/// Prints the seed of a history that fails.
struct PrintedSeed(u64);

impl Drop for PrintedSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            _ = writeln!(std::io::stderr(), "HERO_SEED={} repeats it", self.0);
        }
    }
}

/// Runs one history. Returns the phase that it ended in.
fn history(seed: u64) -> Phase {
    let _seed = PrintedSeed(seed);
    let rng = Rng::seeded(seed);
    let mut simulation = Simulation::new(hero(1 + rng.below(5) as i32), seed);
    if rng.below(2) == 0 {
        simulation.hero.spec.storage.claim_policy = bellerophon_hero::crd::ClaimPolicy::Delete;
    }
    for _ in 0..20 + rng.below(40) {
        fault(&mut simulation, &rng);
        for _ in 0..rng.below(30) {
            simulation.store.write(rng.below(300));
            simulation.reconcile();
        }
    }
    repair(&mut simulation);
    let status = simulation.settle();
    check_end(&simulation, seed);
    status.phase
}

/// One thing that goes wrong, or that a user does.
fn fault(simulation: &mut Simulation, rng: &Rng) {
    let members: Vec<String> = simulation
        .status()
        .members
        .iter()
        .map(|member| member.name.clone())
        .collect();
    let member = match members.len() as u64 {
        0 => String::new(),
        count => members[rng.below(count) as usize].clone(),
    };
    let claim = simulation.claim_uid(&member);
    match rng.below(22) {
        0 => simulation.end_pod(&member, PodPhase::Succeeded),
        1 => simulation.end_pod(&member, PodPhase::Failed),
        2 => simulation.delete_pod(&member),
        // Losing a disk is rare: most histories keep their data. A disk that is emptied between the
        // initialization and its record cannot be distinguished from a new one.
        3 if rng.below(3) == 0 && simulation.status().bootstrapped => simulation.store.wipe(&claim),
        4 if rng.below(3) == 0 => simulation.delete_claim(&member),
        5 => _ = simulation.store.stalled.insert(claim),
        6 => _ = simulation.store.unreachable.insert(claim),
        7 => {
            if let Some(pod) = simulation.pods.get_mut(&member) {
                pod.is_stranded = true;
            }
        }
        8 => repair(simulation),
        9 | 10 => simulation.edit(|spec| spec.replicas = 1 + rng.below(5) as i32),
        11 | 12 => {
            let image = IMAGES[rng.below(IMAGES.len() as u64) as usize];
            simulation.edit(|spec| spec.image = image.into());
        }
        13 => {
            let readers = rng.below(3) as i32;
            simulation.edit(|spec| {
                spec.autopilot.readers.min = readers;
                spec.autopilot.readers.max = readers;
            });
        }
        14..=16 => simulation.crash_after_mutation(),
        17 => simulation.store.interrupts_change = true,
        18 => simulation.store.write(rng.below(20_000)),
        19 => simulation.edit(|spec| spec.winged_horse_name = format!("horse-{}", rng.below(3))),
        _ => simulation.advance(Duration::from_secs(rng.below(2000))),
    }
}

/// Ends all faults that do not lose data.
fn repair(simulation: &mut Simulation) {
    simulation.store.stalled.clear();
    simulation.store.unreachable.clear();
    simulation.store.interrupts_change = false;
    for pod in simulation.pods.values_mut() {
        pod.is_stranded = false;
    }
    simulation.advance(Duration::from_secs(10));
}

fn check_end(simulation: &Simulation, seed: u64) {
    let status = simulation.status();
    let claims: BTreeSet<String> = simulation
        .claims
        .values()
        .filter(|claim| !claim.is_terminating)
        .map(|claim| claim.uid.clone())
        .collect();
    let cluster = simulation.cluster_id();
    let is_lost = simulation.store.is_data_lost(&cluster, &claims);
    // A change of the membership that stopped half-way hides how many voters there are.
    if status.phase == Phase::Unavailable && is_lost {
        return;
    }
    if status.phase == Phase::QuorumLost {
        // The first member may have lost its claim before it was initialized.
        assert!(
            is_lost || !status.bootstrapped,
            "seed {seed}: {}",
            simulation.describe()
        );
        return;
    }
    assert_eq!(
        status.phase,
        Phase::Running,
        "seed {seed}: {}",
        simulation.describe()
    );
    let desired = usize::try_from(simulation.hero.spec.replicas).expect("a number");
    let readers = usize::try_from(simulation.hero.spec.autopilot.readers.max).expect("a number");
    assert_eq!(
        status.voters.len(),
        desired,
        "seed {seed}: {}",
        simulation.describe()
    );
    assert_eq!(
        status.members.len(),
        desired + readers,
        "seed {seed}: {}",
        simulation.describe()
    );
    assert_eq!(
        simulation.pods.len(),
        desired + readers,
        "seed {seed}: {}",
        simulation.describe()
    );
    let active = simulation.members_in(MemberPhase::Active);
    assert_eq!(
        active.len(),
        desired + readers,
        "seed {seed}: {}",
        simulation.describe()
    );
    let image = status.image.clone().unwrap_or_default();
    let version = image.rsplit(':').next().unwrap_or_default();
    for member in &status.members {
        assert!(member.healthy, "seed {seed}: {}", simulation.describe());
        assert_eq!(
            member.version.as_deref(),
            Some(version),
            "seed {seed}: {}",
            simulation.describe()
        );
    }
}
