//! The page on how it ends, which is made here and nowhere else.

use std::{env, fmt::Write as _, fs, path::Path};

use crate::scenario::Scenario;

/// How one scenario ended.
pub(crate) struct Outcome<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) differences: Vec<String>,
}

impl Outcome<'_> {
    /// What is wrong with it: a difference nobody explained, or an explanation of none.
    pub(crate) fn complaint(&self) -> Option<String> {
        match (&self.scenario.differs, self.differences.is_empty()) {
            (None, false) => Some(format!(
                "{}:\n  {}",
                self.scenario.name,
                self.differences.join("\n  ")
            )),
            (Some(_), true) => Some(format!(
                "{} no longer differs: take `differs` out of it",
                self.scenario.name
            )),
            _ => None,
        }
    }
}

/// Holds the page against how it ended; writes it if asked to.
pub(crate) fn check(outcomes: &[Outcome]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance-controllers.md");
    let text = page(outcomes);
    if env::var("BELLEROPHON_WRITE").is_ok() {
        fs::write(&path, text).expect("the page is written");
        return;
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "{} is out of date; write it with BELLEROPHON_WRITE=1 cargo test -p bellerophon-cluster --test agreement",
        path.display()
    );
}

fn page(outcomes: &[Outcome]) -> String {
    let equal = outcomes
        .iter()
        .filter(|outcome| outcome.differences.is_empty())
        .count();
    let all = outcomes.len();
    let mut page = format!(
        "# Agreement with Kubernetes' own controllers\n\n\
         Made by `BELLEROPHON_WRITE=1 cargo test -p bellerophon-cluster --test agreement`; every test run holds it against what happens.\n\n\
         The real kube-controller-manager and kube-scheduler 1.36.4 played the scenarios in `crates/cluster/tests/agreement/scenarios` on a real\n\
         kube-apiserver, with the same simulated nodes, and every object they left was recorded at each point of rest (of a pod's status, phase and\n\
         conditions). Our loops play them on the embedded server. Names made by chance, times and addresses aside, **{equal} of {all}** scenarios end with the same objects.\n\
         Events are not compared.\n\n\
         | scenario | about | ends |\n|---|---|---|\n"
    );
    for Outcome {
        scenario,
        differences,
    } in outcomes
    {
        let ends = if differences.is_empty() {
            "the same"
        } else {
            scenario.differs.as_deref().unwrap_or("otherwise")
        };
        writeln!(
            page,
            "| `{}` | {} | {ends} |",
            scenario.name, scenario.about
        )
        .expect("text takes text");
    }
    page
}
