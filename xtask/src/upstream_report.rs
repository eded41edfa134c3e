//! The results of the conformance tests.
//!
//! Inputs: ginkgo's JSON reports, and the lists of skipped tests. Outputs: a summary for the
//! terminal.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

type Result<T> = std::result::Result<T, String>;

/// The tests to run. All names are regular expressions of ginkgo.
#[derive(Debug)]
pub struct Tests {
    pub(crate) selected: Vec<String>,
    /// Selected tests that are not run.
    pub(crate) skipped: Vec<SkippedTests>,
    /// Tests that are not run on nodes with local processes.
    pub(crate) skipped_with_processes: Vec<SkippedTests>,
}

/// Skipped tests with a common reason.
#[derive(Debug)]
pub(crate) struct SkippedTests {
    pub(crate) reason: String,
    pub(crate) tests: Vec<String>,
}

impl Tests {
    /// Reads the lists of a file.
    ///
    /// # Errors
    /// The file cannot be read, or has no such lists.
    pub fn read(path: &Path) -> Result<Self> {
        let file = read(path)?;
        let texts = |value: &Value| {
            value
                .as_array()?
                .iter()
                .map(|text| text.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        };
        let group = |value: &Value| {
            Some(SkippedTests {
                reason: value["reason"].as_str()?.to_owned(),
                tests: texts(&value["tests"])?,
            })
        };
        let groups = |name: &str| {
            let groups = file[name].as_array()?;
            groups.iter().map(group).collect::<Option<Vec<_>>>()
        };
        let tests = || {
            Some(Self {
                selected: texts(&file["chosen"])?,
                skipped: groups("left_out")?,
                skipped_with_processes: groups("left_out_of_processes")?,
            })
        };
        tests().ok_or_else(|| format!("{} has no lists of tests", path.display()))
    }

    /// One expression for all selected tests.
    pub fn focus(&self) -> String {
        self.selected.join("|")
    }

    /// One expression for all skipped tests.
    pub fn skip(&self) -> String {
        expression(&self.skipped)
    }

    /// One expression for all tests that are skipped with local processes.
    pub fn skip_with_processes(&self) -> String {
        expression(&self.skipped_with_processes)
    }
}

fn expression(groups: &[SkippedTests]) -> String {
    let tests = groups.iter().flat_map(|group| &group.tests);
    tests.map(String::as_str).collect::<Vec<_>>().join("|")
}

/// The results of all tests.
#[derive(Debug)]
pub struct Report {
    pub(crate) tests: Vec<Test>,
    /// The conformance tests that did not run.
    pub(crate) skipped: BTreeSet<String>,
    /// The first failures of tests that passed when they were run again, by their names.
    pub(crate) passed_later: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(crate) struct Test {
    /// The SIG, such as `sig-api-machinery`.
    group: String,
    pub(crate) name: String,
    pub(crate) passed: bool,
    /// The first line of the failure.
    pub(crate) failure: String,
}

impl Report {
    /// Reads ginkgo's report.
    ///
    /// # Errors
    /// The file is not a report, or no test ran.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&read(path)?).map_err(|e| format!("{}: {e}", path.display()))
    }

    pub(crate) fn parse(report: &Value) -> Result<Self> {
        let specs = report[0]["SpecReports"]
            .as_array()
            .ok_or("it is not a report of ginkgo")?;
        let its = || specs.iter().filter(|spec| spec["LeafNodeType"] == "It");
        let tests: Vec<Test> = its()
            .filter(|spec| {
                !["skipped", "pending"]
                    .iter()
                    .any(|state| spec["State"] == *state)
            })
            .map(Test::new)
            .collect();
        if tests.is_empty() {
            let failure = specs
                .iter()
                .find(|spec| spec["State"] == "failed")
                .map(|spec| spec["Failure"]["Message"].to_string());
            return Err(format!("no test ran: {}", failure.unwrap_or_default()));
        }
        let skipped = its()
            .filter(|spec| spec["State"] == "skipped")
            .map(name_of)
            .filter(|name| name.contains("[Conformance]"))
            .map(|name| name.replace(CONFORMANCE, ""))
            .collect();
        Ok(Self {
            tests,
            skipped,
            passed_later: BTreeMap::new(),
        })
    }

    /// Reads several reports. A test has the result of the last one in which it ran.
    ///
    /// # Errors
    /// One of the files is not a report.
    pub fn read_all(paths: &[PathBuf]) -> Result<Self> {
        let reports: Result<Vec<Self>> = paths.iter().map(|path| Self::read(path)).collect();
        Ok(Self::merge(reports?))
    }

    fn merge(reports: Vec<Self>) -> Self {
        let mut tests: BTreeMap<String, Test> = BTreeMap::new();
        let mut skipped = BTreeSet::new();
        let mut passed_later = BTreeMap::new();
        for report in reports {
            skipped.extend(report.skipped);
            let failed = report.tests.iter().filter(|test| !test.passed);
            for test in failed {
                let first = passed_later.entry(test.name.clone());
                first.or_insert_with(|| test.failure.clone());
            }
            let named = report
                .tests
                .into_iter()
                .map(|test| (test.name.clone(), test));
            tests.extend(named);
        }
        skipped.retain(|name| !tests.contains_key(name));
        passed_later.retain(|name, _| tests.get(name).is_some_and(|test| test.passed));
        Self {
            tests: tests.into_values().collect(),
            skipped,
            passed_later,
        }
    }

    /// Passed and all tests, by SIG.
    pub(crate) fn by_group(&self) -> BTreeMap<&str, (usize, usize)> {
        let mut groups: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for test in &self.tests {
            let (passed, all) = groups.entry(&test.group).or_default();
            *passed += usize::from(test.passed);
            *all += 1;
        }
        groups
    }

    pub(crate) fn total(&self) -> (usize, usize) {
        let passed = self.tests.iter().filter(|test| test.passed).count();
        (passed, self.tests.len())
    }

    /// The names of failed tests.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.tests
            .iter()
            .filter(|test| !test.passed)
            .map(|test| test.name.as_str())
    }

    /// For the terminal.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for test in self.tests.iter().filter(|test| !test.passed) {
            put(
                &mut text,
                format_args!("FAIL {}\n     {}\n", test.name, test.failure),
            );
        }
        let (passed, _) = self.total();
        put(
            &mut text,
            format_args!(
                "{passed} of {} passed; {} did not run",
                self.tests.len(),
                self.skipped.len()
            ),
        );
        text
    }
}

impl Test {
    fn new(spec: &Value) -> Self {
        let name = name_of(spec);
        let group = name
            .split(['[', ']'])
            .find(|word| word.starts_with("sig-"))
            .unwrap_or("other")
            .to_owned();
        let failure = spec["Failure"]["Message"]
            .as_str()
            .unwrap_or_default()
            .lines()
            .next()
            .unwrap_or_default();
        let failure: String = without_directories(failure).chars().take(200).collect();
        let name = name.replace(CONFORMANCE, "");
        Self {
            group,
            name,
            passed: spec["State"] == "passed",
            failure,
        }
    }
}

/// The text without the directories of this machine: `--kubeconfig=/DIR/config` becomes
/// `--kubeconfig=config`.
pub(crate) fn without_directories(text: &str) -> String {
    let shortened = text.split(' ').map(|word| {
        let start = word.find('=').map_or(0, |equals| equals + 1);
        let (option, value) = word.split_at(start);
        let file = value.starts_with('/').then(|| value.rsplit('/').next());
        format!("{option}{}", file.flatten().unwrap_or(value))
    });
    shortened.collect::<Vec<_>>().join(" ")
}

fn name_of(spec: &Value) -> String {
    let above = spec["ContainerHierarchyTexts"]
        .as_array()
        .into_iter()
        .flatten();
    let words = above
        .chain([&spec["LeafNodeText"]])
        .filter_map(Value::as_str)
        .filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// The mark of the tests that are conformance tests.
const CONFORMANCE: &str = " [Conformance]";

fn read(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("{} is not JSON: {e}", path.display()))
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments)
        .expect("a write to a string succeeds");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_have_no_directories_of_this_machine() {
        let failure = "error running /a/b/kubectl --server=https://h:1 --kubeconfig=/c/d version:";
        let expected = "error running kubectl --server=https://h:1 --kubeconfig=d version:";
        assert_eq!(without_directories(failure), expected);
    }

    #[test]
    fn test_of_several_reports_has_its_last_result() {
        let spec = |name: &str, state: &str| {
            json!({
                "LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-x]"],
                "LeafNodeText": format!("{name} [Conformance]"), "State": state,
            })
        };
        let first = [
            spec("a", "failed"),
            spec("b", "passed"),
            spec("c", "skipped"),
        ];
        let second = [
            spec("a", "passed"),
            spec("b", "skipped"),
            spec("c", "skipped"),
        ];
        let reports = [first, second].map(|specs| {
            let report = json!([{"SpecReports": specs}]);
            Report::parse(&report).expect("a valid report")
        });
        let report = Report::merge(reports.into());
        assert_eq!(report.summary(), "2 of 2 passed; 1 did not run");
        let passed_later: Vec<&String> = report.passed_later.keys().collect();
        assert_eq!(passed_later, ["[sig-x] a"]);
    }
}
