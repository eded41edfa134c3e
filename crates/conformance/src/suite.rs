//! All scenarios against one server.
//! Input: a corpus and a transport. Output: the differences of each scenario,
//! with and without managed fields.
//! Guarantees: a scenario that changes objects outside of its namespace runs alone; a panic of the
//! server fails the scenario, not the replay.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use tokio::task::JoinSet;

use crate::{
    compare::compare,
    corpus::{Corpus, Recorded},
    run::{Options, run},
    scenario::Reach,
    transport::Transport,
};

/// The outcome of one scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The folder of the scenario.
    pub folder: String,
    /// Its name among all, as [`Recorded::title`] gives it.
    pub title: String,
    /// What differs: `step 2 body.metadata.name: expected …, got …`. Nothing if it passed.
    pub differences: Vec<String>,
    /// What differs apart from managed fields.
    pub without_managed_fields: Vec<String>,
}

impl Outcome {
    /// Whether the answers were those of the recording.
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

/// The outcomes of all scenarios, in order of title.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// One for each scenario of the corpus.
    pub outcomes: Vec<Outcome>,
}

/// How many passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Those that passed without any difference.
    pub passed: usize,
    /// Those that passed apart from who owns which field.
    pub without_managed_fields: usize,
    /// All.
    pub total: usize,
}

impl Results {
    /// How many passed, by folder.
    pub fn by_folder(&self) -> BTreeMap<&str, Tally> {
        let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
        for outcome in &self.outcomes {
            tallies.entry(&outcome.folder).or_default().add(outcome);
        }
        tallies
    }

    /// How many passed of all.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.outcomes.iter().for_each(|outcome| tally.add(outcome));
        tally
    }

    /// The titles of those that passed.
    pub fn passed(&self) -> impl Iterator<Item = &str> {
        self.outcomes
            .iter()
            .filter(|outcome| outcome.passed())
            .map(|outcome| outcome.title.as_str())
    }

    /// Those that did not pass.
    pub fn failed(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| !outcome.passed())
    }
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        self.passed += usize::from(outcome.passed());
        self.without_managed_fields += usize::from(outcome.without_managed_fields.is_empty());
        self.total += 1;
    }
}

/// The key of the managed fields of an object.
const MANAGED_FIELDS: &str = "managedFields";

/// Replays every scenario of the corpus.
///
/// Scenarios that keep to their own names run at the same time, as many as the options allow; the others follow one by one.
pub async fn replay<T: Transport>(
    corpus: &Corpus,
    transport: Arc<T>,
    options: &Options,
) -> Results {
    let (own, alone): (Vec<_>, Vec<_>) = corpus
        .scenarios
        .iter()
        .partition(|recorded| recorded.scenario.reach() == Reach::Own);
    let options = Arc::new(options.clone());
    let mut outcomes = Vec::with_capacity(corpus.scenarios.len());
    let mut running = JoinSet::new();
    let phases = [(own, options.concurrency.max(1)), (alone, 1)];
    for (scenarios, concurrency) in phases {
        for recorded in scenarios {
            if running.len() >= concurrency {
                outcomes.extend(finished(&mut running).await);
            }
            running.spawn(outcome(
                recorded.clone(),
                transport.clone(),
                options.clone(),
            ));
        }
        while let Some(outcome) = finished(&mut running).await {
            outcomes.push(outcome);
        }
    }
    outcomes.sort_by(|a, b| a.title.cmp(&b.title));
    Results { outcomes }
}

async fn finished(running: &mut JoinSet<Outcome>) -> Option<Outcome> {
    running
        .join_next()
        .await
        .map(|ended| ended.expect("a scenario catches its panics and is not cancelled"))
}

async fn outcome<T: Transport>(
    recorded: Recorded,
    transport: Arc<T>,
    options: Arc<Options>,
) -> Outcome {
    let (file, index) = recorded.place;
    let id = format!("{}q{file}q{index}", options.stamp);
    let answers = AssertUnwindSafe(run(transport.as_ref(), &recorded.scenario, &id, &options))
        .catch_unwind()
        .await;
    let differing = |without: &[String]| match &answers {
        Ok(Ok(answers)) => {
            let steps = recorded.scenario.steps.iter().zip(answers).enumerate();
            steps
                .flat_map(|(place, (step, answer))| {
                    let found = compare(&step.comparison, answer, without);
                    found
                        .into_iter()
                        .map(move |difference| format!("step {} {difference}", place + 1))
                })
                .collect()
        }
        Ok(Err(error)) => vec![error.to_string()],
        Err(_) => vec!["the server panicked".to_owned()],
    };
    let without_managed_fields: Vec<String> = options
        .without
        .iter()
        .cloned()
        .chain([MANAGED_FIELDS.to_owned()])
        .collect();
    Outcome {
        folder: recorded.folder.clone(),
        title: recorded.title(),
        differences: differing(&options.without),
        without_managed_fields: differing(&without_managed_fields),
    }
}
