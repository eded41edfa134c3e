//! The results as a part of docs/real-cluster.md.

use super::{operators::ScenarioResult, suites::SuiteResult};

/// The page, relative to the root.
pub(super) const PAGE: &str = "docs/real-cluster.md";

/// The command that writes a part of the page.
pub(super) const COMMAND: &str = "cargo xtask real --write-docs";

/// The results of a run.
#[derive(Default)]
pub(super) struct Report {
    /// Of the control plane.
    pub(super) versions: String,
    pub(super) scenarios: Vec<ScenarioResult>,
    pub(super) suites: Vec<SuiteResult>,
}

impl Report {
    /// Adds the results of tests of a suite to those of its other tests.
    pub(super) fn add(&mut self, result: SuiteResult) {
        let mut suites = self.suites.iter_mut();
        match suites.find(|it| it.suite.name == result.suite.name) {
            Some(suite) => {
                suite.tests.extend(result.tests);
                suite.seconds += result.seconds;
            }
            None => self.suites.push(result),
        }
    }

    pub(super) fn has_failures(&self) -> bool {
        let scenario = self.scenarios.iter().any(|it| it.failure.is_some());
        let mut tests = self.suites.iter().flat_map(|suite| suite.tests.values());
        scenario || tests.any(|passed| !passed)
    }

    /// A line per failure, and the numbers.
    pub(super) fn summary(&self) -> String {
        let mut lines = Vec::new();
        for scenario in &self.scenarios {
            if let Some(failure) = &scenario.failure {
                lines.push(format!("failed: run {}: {failure}", scenario.name));
            }
        }
        for suite in &self.suites {
            let failed = suite.tests.iter().filter(|(_, passed)| !**passed);
            let package = suite.suite.package;
            lines.extend(failed.map(|(name, _)| format!("failed: {package}: {name}")));
        }
        let passed = self.scenarios.iter().filter(|it| it.failure.is_none());
        lines.push(format!(
            "{}: {} of {} scenarios, {} of {} tests passed",
            self.versions,
            passed.count(),
            self.scenarios.len(),
            self.suites.iter().map(passed_tests).sum::<usize>(),
            self.suites.iter().map(|it| it.tests.len()).sum::<usize>(),
        ));
        lines.join("\n")
    }

    /// The generated part of the page.
    pub(super) fn text(&self) -> String {
        let mut text = format!("Ran on {}.\n\n", self.versions);
        text.push_str("| `bellerophon run` | checked | result | seconds |\n|---|---|---|---|\n");
        for scenario in &self.scenarios {
            let result = match &scenario.failure {
                None => "passed".to_owned(),
                Some(failure) => format!("failed: {}", in_one_cell(failure)),
            };
            text.push_str(&format!(
                "| {} | {} | {result} | {:.0} |\n",
                scenario.name, scenario.summary, scenario.seconds
            ));
        }
        text.push_str("\n| tests | passed | failed | seconds |\n|---|---|---|---|\n");
        for suite in &self.suites {
            let passed = passed_tests(suite);
            let failed = suite.tests.iter().filter(|(_, passed)| !**passed);
            let failed: Vec<String> = failed.map(|(name, _)| format!("`{name}`")).collect();
            let failed = match failed.is_empty() {
                true => "none".to_owned(),
                false => failed.join(", "),
            };
            text.push_str(&format!(
                "| `{}` | {passed} of {} | {failed} | {:.0} |\n",
                suite.suite.package,
                suite.tests.len(),
                suite.seconds
            ));
        }
        text.push_str("\n| tests that are not run | why |\n|---|---|\n");
        for suite in &self.suites {
            for (name, why) in suite.suite.skipped {
                let package = suite.suite.package;
                text.push_str(&format!("| `{package}`: `{name}` | {why} |\n"));
            }
        }
        text
    }
}

fn passed_tests(suite: &SuiteResult) -> usize {
    suite.tests.values().filter(|passed| **passed).count()
}

/// A text without line ends and column separators.
fn in_one_cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::suites::SUITES;
    use super::*;

    #[test]
    fn failures_are_in_summary_and_page() {
        let mut report = Report {
            versions: "a control plane".to_owned(),
            ..Report::default()
        };
        report.scenarios.push(ScenarioResult {
            name: "icecream",
            summary: "it melts",
            seconds: 1.0,
            failure: Some("too\nwarm | sunny".to_owned()),
        });
        report.suites.push(SuiteResult {
            suite: &SUITES[0],
            tests: BTreeMap::from([("cold".to_owned(), true), ("warm".to_owned(), false)]),
            seconds: 2.0,
        });
        assert!(report.has_failures());
        let summary = report.summary();
        assert!(
            summary.contains("0 of 1 scenarios, 1 of 2 tests"),
            "{summary}"
        );
        let text = report.text();
        assert!(text.contains("failed: too warm \\| sunny"), "{text}");
        assert!(text.contains("1 of 2 | `warm`"), "{text}");
    }
}
