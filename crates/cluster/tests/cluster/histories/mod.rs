//! Random histories: whatever happened, in whatever order, the end is what the specs describe.
//!
//! A history is drawn from a seed: objects are applied, scaled, changed, deleted in every way, nodes fail and return, the
//! loops stop and start again, at any distance in time. Then everything broken is mended, time passes, and the state is held
//! against what was asked for last: exactly those pods, all of them ready, nothing left over, and nobody writes any more.
//!
//! `BELLEROPHON_HISTORIES` says how many are played, `BELLEROPHON_HISTORY` from which seed on; a failure names its own.

mod check; // what holds at rest
mod play; // steps done, and what they ask for in the end
mod seen; // everything there is, at one moment
mod step; // what can happen
mod workload; // what is asked for

use std::time::Duration;

use bellerophon::Entropy;
use bellerophon_testkit::World;

use self::{check::check, play::Player, seen::Seen, step::Step};

/// How many histories a test run plays unless told otherwise.
const HISTORIES: u64 = 2;
/// How many steps one has.
const STEPS: u64 = 40;
const NODES: usize = 4;

/// Longer than any back-off, grace period or toleration.
const TO_SETTLE: Duration = Duration::from_secs(18 * 60);
/// How long nobody may write after that.
const AT_REST: Duration = Duration::from_secs(6 * 60);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text}"))
    })
}

#[tokio::test(start_paused = true)]
async fn any_history_ends_as_the_specs_describe() {
    let first = setting("BELLEROPHON_HISTORY").unwrap_or(1);
    for seed in first..first + setting("BELLEROPHON_HISTORIES").unwrap_or(HISTORIES) {
        let entropy = Entropy::seeded(seed);
        let steps: Vec<Step> = (0..STEPS).map(|_| Step::draw(&entropy, NODES)).collect();
        if let Some(problems) = play(&steps).await {
            let told: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
            panic!(
                "history {seed} ends otherwise:\n  {}\nafter\n  {}",
                problems.join("\n  "),
                told.join("\n  ")
            );
        }
    }
}

/// What is wrong in the end; `None` if nothing is.
async fn play(steps: &[Step]) -> Option<Vec<String>> {
    let mut player = Player::new(World::with_nodes(NODES).await).await;
    for step in steps {
        player.play(step).await;
    }
    let (world, wanted) = player.mend().await;
    world.pass(TO_SETTLE).await;
    let settled = Seen::of(&world).await;
    world.pass(AT_REST).await;
    let seen = Seen::of(&world).await;
    let mut problems = check(&wanted, &seen);
    problems.extend(
        settled
            .changes(&seen)
            .into_iter()
            .map(|change| format!("somebody still writes: {change}")),
    );
    world.stop().await;
    (!problems.is_empty()).then_some(problems)
}
