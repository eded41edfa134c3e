//! The results of the conformance tests.
//!
//! Inputs: ginkgo's JSON report, and the list of skipped tests. Outputs: a summary for the
//! terminal, and a page.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use serde_json::Value;

type Result<T> = std::result::Result<T, String>;

/// The tests to run. All names are regular expressions of ginkgo.
#[derive(Debug)]
pub struct Tests {
    selected: Vec<String>,
    /// Selected tests that are not run.
    skipped: Vec<SkippedTests>,
}

/// Skipped tests with a common reason.
#[derive(Debug)]
struct SkippedTests {
    reason: String,
    tests: Vec<String>,
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
        let skipped = file["left_out"]
            .as_array()
            .and_then(|groups| groups.iter().map(group).collect::<Option<Vec<_>>>());
        let tests = texts(&file["chosen"])
            .zip(skipped)
            .map(|(selected, skipped)| Self { selected, skipped });
        tests.ok_or_else(|| format!("{} has no lists of tests", path.display()))
    }

    /// One expression for all selected tests.
    pub fn focus(&self) -> String {
        self.selected.join("|")
    }

    /// One expression for all skipped tests.
    pub fn skip(&self) -> String {
        self.skipped
            .iter()
            .flat_map(|group| &group.tests)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("|")
    }
}

/// The results of all tests.
#[derive(Debug)]
pub struct Report {
    tests: Vec<Test>,
    /// The number of conformance tests that did not run.
    skipped: usize,
}

#[derive(Debug)]
struct Test {
    /// The SIG, such as `sig-api-machinery`.
    group: String,
    name: String,
    passed: bool,
    /// The first line of the failure.
    failure: String,
}

impl Report {
    /// Reads ginkgo's report.
    ///
    /// # Errors
    /// The file is not a report, or no test ran.
    pub fn read(path: &Path) -> Result<Self> {
        let report = read(path)?;
        let specs = report[0]["SpecReports"]
            .as_array()
            .ok_or_else(|| format!("{} is not a report", path.display()))?;
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
            .filter(|spec| spec["State"] == "skipped" && name_of(spec).contains("[Conformance]"))
            .count();
        Ok(Self { tests, skipped })
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
        let passed = self.tests.iter().filter(|test| test.passed).count();
        put(
            &mut text,
            format_args!(
                "{passed} of {} passed; {} did not run",
                self.tests.len(),
                self.skipped
            ),
        );
        text
    }

    /// The page of results.
    pub fn page(&self, tests: &Tests) -> String {
        let mut text = String::from(HEAD);
        let mut groups: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for test in &self.tests {
            let (passed, all) = groups.entry(&test.group).or_default();
            *passed += usize::from(test.passed);
            *all += 1;
        }
        for (group, (passed, all)) in &groups {
            put(&mut text, format_args!("| {group} | {passed} of {all} |\n"));
        }
        let passed = self.tests.iter().filter(|test| test.passed).count();
        put(
            &mut text,
            format_args!("| **all** | {passed} of {} |\n", self.tests.len()),
        );
        let mut failed: Vec<&Test> = self.tests.iter().filter(|test| !test.passed).collect();
        failed.sort_by(|a, b| a.name.cmp(&b.name));
        if !failed.is_empty() {
            text.push_str("\n## Failed\n\n");
            failed.iter().for_each(|test| {
                put(
                    &mut text,
                    format_args!("- {}: {}\n", test.name, test.failure),
                )
            });
        }
        text.push_str("\n## Skipped\n\nOf the SIGs above:\n\n");
        for group in &tests.skipped {
            put(
                &mut text,
                format_args!("- {}: {}\n", group.reason, group.tests.join(", ")),
            );
        }
        put(
            &mut text,
            format_args!("\n{} conformance tests did not run: ", self.skipped),
        );
        text.push_str(
            "these, and those of other SIGs that need containers, networks or volumes.\n",
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
        let failure: String = failure.chars().take(200).collect();
        let name = name.replace(" [Conformance]", "");
        Self {
            group,
            name,
            passed: spec["State"] == "passed",
            failure,
        }
    }
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

const HEAD: &str = "# Kubernetes' own conformance tests

<!-- Generated by `cargo xtask upstream --write-docs`; do not edit. -->

The end-to-end conformance tests of Kubernetes 1.36.4, built from their Go modules and run unchanged against `bellerophon up --cluster full`, whose nodes
run no containers: all tests of SIG API Machinery, and those of other SIGs that need only the API and the built-in controllers.

```
cargo xtask upstream                         # against the embedded server; needs Go and network access for its modules
cargo xtask upstream --kubeconfig FILE       # against another server
cargo xtask upstream --focus 'Watchers'      # selected tests
```

| SIG | passed |
|---|---|
";

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

    fn report() -> Report {
        let spec = |name: &str, state: &str, failure: &str| {
            json!({
                "LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-x] Things"],
                "LeafNodeText": name, "State": state, "Failure": {"Message": failure},
            })
        };
        let specs = json!([{"SpecReports": [
            {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
            spec("work [Conformance]", "passed", ""),
            spec("break [Conformance]", "failed", "first line\nsecond line"),
            spec("sleep [Conformance]", "skipped", ""),
            spec("are not in the suite", "skipped", ""),
        ]}]);
        let path =
            std::env::temp_dir().join(format!("upstream-report-{}.json", std::process::id()));
        fs::write(&path, specs.to_string()).expect("a file");
        let report = Report::read(&path).expect("a valid report");
        drop(fs::remove_file(path));
        report
    }

    #[test]
    fn report_lists_failed_and_skipped_tests() {
        let report = report();
        assert_eq!(
            report.summary(),
            "FAIL [sig-x] Things break\n     first line\n1 of 2 passed; 1 did not run"
        );
        let skipped = vec![SkippedTests {
            reason: "they sleep".into(),
            tests: vec!["sleep".into(), "doze".into()],
        }];
        let tests = Tests {
            selected: vec!["sig-x".into()],
            skipped,
        };
        assert_eq!(tests.focus(), "sig-x");
        assert_eq!(tests.skip(), "sleep|doze");
        let page = report.page(&tests);
        for part in [
            "| sig-x | 1 of 2 |",
            "- [sig-x] Things break: first line\n",
            "- they sleep: sleep, doze\n",
            "\n1 conformance tests did not run",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
    }
}
