//! Scenarios that do not pass, grouped by reason.
//! Input: `known-differences.json` and results. Output: whether the results are the expected ones.
//! Guarantees: a scenario outside of the list must pass and one in it must fail, so that the list is
//! complete and has no obsolete entries.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::suite::{Outcome, Results};

/// Scenarios that fail for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The reason in two or three words, for example `managed fields`.
    pub group: String,
    /// The reason in one sentence.
    pub reason: String,
    /// The titles of the scenarios, in order.
    pub scenarios: Vec<String>,
}

/// The list, in the order in which it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KnownDifferences {
    /// The groups. No scenario is in two of them.
    pub groups: Vec<Group>,
}

/// Where results differ from the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Scenarios that fail and are not in the list, with their first difference.
    pub surprises: Vec<(String, String)>,
    /// Scenarios that pass and are in the list.
    pub arrived: Vec<String>,
    /// Titles in the list that no recording has.
    pub unknown: Vec<String>,
}

/// The group of scenarios that differ in `managedFields` only.
const MANAGED_FIELDS: (&str, &str) = (
    "managed fields",
    "Everything but `metadata.managedFields` is equal.",
);

/// The group of all other new failures.
const UNSORTED: (&str, &str) = ("not sorted yet", "The cause is not known yet.");

impl KnownDifferences {
    /// The list of this repository.
    ///
    /// # Errors
    /// A list that cannot be read.
    pub fn of_repository() -> io::Result<Self> {
        serde_json::from_slice(&fs::read(file())?).map_err(io::Error::from)
    }

    /// Writes the list of this repository.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write_to_repository(&self) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(file(), text)
    }

    /// Holds results against the list. `titles` are all scenarios there are, run or not.
    pub fn verdict<'a>(
        &self,
        results: &Results,
        titles: impl Iterator<Item = String> + 'a,
    ) -> Verdict {
        let known_differences: BTreeSet<&str> = self
            .groups
            .iter()
            .flat_map(|group| &group.scenarios)
            .map(String::as_str)
            .collect();
        let titles: BTreeSet<String> = titles.collect();
        let surprises = results
            .failed()
            .filter(|outcome| !known_differences.contains(outcome.title.as_str()));
        Verdict {
            surprises: surprises
                .map(|outcome| (outcome.title.clone(), outcome.differences[0].clone()))
                .collect(),
            arrived: results
                .passed()
                .filter(|title| known_differences.contains(title))
                .map(str::to_owned)
                .collect(),
            unknown: known_differences
                .iter()
                .filter(|title| !titles.contains(**title))
                .map(|title| (*title).to_owned())
                .collect(),
        }
    }

    /// The list that fits complete results: what passes leaves its group, what fails only for field ownership
    /// goes there, and what else newly fails goes to a group to be sorted by hand.
    #[must_use]
    pub fn following(&self, results: &Results) -> Self {
        let mut failing: BTreeMap<&str, &Outcome> = results
            .failed()
            .map(|outcome| (outcome.title.as_str(), outcome))
            .collect();
        let mut groups = self.groups.clone();
        for group in &mut groups {
            let about_managed_fields = group.group == MANAGED_FIELDS.0;
            let still_fits = |title: &String| {
                failing.get(title.as_str()).is_some_and(|outcome| {
                    outcome.without_managed_fields.is_empty() == about_managed_fields
                })
            };
            group.scenarios.retain(still_fits);
            for title in &group.scenarios {
                failing.remove(title.as_str());
            }
        }
        for (title, outcome) in failing {
            let home = if outcome.without_managed_fields.is_empty() {
                MANAGED_FIELDS
            } else {
                UNSORTED
            };
            scenarios_of(&mut groups, home).push(title.to_owned());
        }
        groups.iter_mut().for_each(|group| group.scenarios.sort());
        groups.retain(|group| !group.scenarios.is_empty());
        Self { groups }
    }
}

/// The scenarios of a group, which is added if it is not there.
fn scenarios_of<'a>(
    groups: &'a mut Vec<Group>,
    (name, reason): (&str, &str),
) -> &'a mut Vec<String> {
    let place = groups
        .iter()
        .position(|group| group.group == name)
        .unwrap_or_else(|| {
            groups.push(Group {
                group: name.to_owned(),
                reason: reason.to_owned(),
                scenarios: Vec::new(),
            });
            groups.len() - 1
        });
    &mut groups[place].scenarios
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("known-differences.json")
}

impl Verdict {
    /// Whether the results are those of the list.
    pub fn is_as_known(&self) -> bool {
        self.surprises.is_empty() && self.arrived.is_empty() && self.unknown.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, difference) in &self.surprises {
            writeln!(f, "FAIL {title}\n     {difference}")?;
        }
        for title in &self.arrived {
            writeln!(
                f,
                "PASS {title}\n     it is in known-differences.json; take it out (`cargo xtask conformance --write-known_differences --write-docs` does)"
            )?;
        }
        for title in &self.unknown {
            writeln!(
                f,
                "LOST {title}\n     known-differences.json names it, but no recording does; take it out"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq)]
    enum TestOutcome {
        Passes,
        ManagedFieldsDiffer,
        Fails,
    }
    use TestOutcome::{Fails, ManagedFieldsDiffer, Passes};

    fn results(outcomes: &[(&str, TestOutcome)]) -> Results {
        let outcome = |(title, outcome_of): &(&str, TestOutcome)| {
            let unless = |passes: bool| {
                if passes {
                    Vec::new()
                } else {
                    vec!["step 1 status: expected 200, got 500".to_owned()]
                }
            };
            Outcome {
                folder: "a".to_owned(),
                title: (*title).to_owned(),
                differences: unless(*outcome_of == Passes),
                without_managed_fields: unless(*outcome_of != Fails),
            }
        };
        Results {
            outcomes: outcomes.iter().map(outcome).collect(),
        }
    }

    fn known_differences(groups: &[(&str, &[&str])]) -> KnownDifferences {
        let group = |(group, scenarios): &(&str, &[&str])| Group {
            group: (*group).to_owned(),
            reason: [MANAGED_FIELDS, UNSORTED]
                .iter()
                .find(|(name, _)| name == group)
                .map_or("Because.", |(_, reason)| reason)
                .to_owned(),
            scenarios: scenarios.iter().map(|title| (*title).to_owned()).collect(),
        };
        KnownDifferences {
            groups: groups.iter().map(group).collect(),
        }
    }

    #[test]
    fn list_neither_hides_failures_nor_rots() {
        let list = known_differences(&[("x", &["known failure", "mended", "renamed"])]);
        let results = results(&[
            ("known failure", Fails),
            ("mended", Passes),
            ("new failure", Fails),
            ("fine", Passes),
        ]);
        let titles = ["known failure", "mended", "new failure", "fine"].map(str::to_owned);
        let verdict = list.verdict(&results, titles.into_iter());
        assert_eq!(
            verdict.surprises,
            [(
                "new failure".to_owned(),
                "step 1 status: expected 200, got 500".to_owned()
            )]
        );
        assert_eq!(verdict.arrived, ["mended"]);
        assert_eq!(verdict.unknown, ["renamed"]);
        assert!(!verdict.is_as_known());
    }

    #[test]
    fn rewritten_list_fits_and_keeps_its_groups() {
        let list = known_differences(&[("x", &["a", "b", "e"]), ("y", &["c"])]);
        let results = results(&[
            ("a", Fails),
            ("b", Passes),
            ("c", Passes),
            ("d", Fails),
            ("e", ManagedFieldsDiffer),
        ]);
        let next = list.following(&results);
        assert_eq!(
            next,
            known_differences(&[
                ("x", &["a"]),
                (UNSORTED.0, &["d"]),
                (MANAGED_FIELDS.0, &["e"])
            ])
        );
        assert!(
            next.verdict(
                &results,
                ["a", "b", "c", "d", "e"].map(str::to_owned).into_iter()
            )
            .is_as_known()
        );
        assert_eq!(next.following(&results), next);
    }
}
