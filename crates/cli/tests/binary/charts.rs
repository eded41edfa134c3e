//! The Helm charts: generated files and values.
//!
//! After a change of an operator, `BELLEROPHON_WRITE_CHARTS=1 cargo test -p bellerophon-cli charts`
//! writes the generated files.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

fn charts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = charts().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(text: &str) -> Vec<Value> {
    let documents = text
        .split("\n---")
        .map(|document| document.trim_start_matches("---"));
    let parse = |document: &str| {
        serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}:\n{document}"))
    };
    documents
        .filter(|document| !document.trim().is_empty())
        .map(parse)
        .collect()
}

/// The output of `bellerophon manifests` for all operators.
fn manifests(flags: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
        .args(["manifests", "all,reboot-agent"])
        .args(flags)
        .output()
        .expect("the binary starts");
    yaml(&String::from_utf8(output.stdout).expect("UTF-8"))
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// The generated files of the charts, by path.
fn generated() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut permissions = BTreeMap::new();
    let mut roles = String::new();
    let mut policies = Vec::new();
    let print = |value: &Value| serde_saphyr::to_string(value).expect("YAML");
    for object in manifests(&[]) {
        match object["kind"].as_str().expect("a kind") {
            "CustomResourceDefinition" => {
                files.insert(
                    PathBuf::from(format!("bellerophon-crds/files/{}.yaml", name(&object))),
                    print(&object),
                );
            }
            "ClusterRole" => match name(&object).strip_prefix("bellerophon-") {
                Some(operator) => {
                    permissions.insert(operator.to_owned(), object["rules"].clone());
                }
                None => roles += &format!("---\n{}", print(&object)),
            },
            "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
                policies.push(print(&object));
            }
            // The admission policies of an operator precede its workload.
            "DaemonSet" => {
                files.insert(
                    PathBuf::from(format!(
                        "bellerophon/files/admission-policies/{}.yaml",
                        name(&object)
                    )),
                    policies.join("---\n"),
                );
                policies.clear();
            }
            _ => {}
        }
    }
    files.insert(
        "bellerophon/files/permissions.yaml".into(),
        serde_saphyr::to_string(&permissions).expect("YAML"),
    );
    files.insert("bellerophon/files/roles.yaml".into(), roles);
    files.extend(webhooks(&permissions));
    files
}

/// The webhook configurations of each operator, and the permissions that it needs for them beside
/// its others.
fn webhooks(permissions: &BTreeMap<String, Value>) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut configurations: BTreeMap<String, String> = BTreeMap::new();
    let print = |value: &Value| serde_saphyr::to_string(value).expect("YAML");
    for object in manifests(&["--webhooks"]) {
        let operator = || {
            let operator = name(&object).strip_suffix("-webhooks");
            operator.expect("the name of an operator").to_owned()
        };
        match object["kind"].as_str().expect("a kind") {
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
                let text = configurations.entry(operator()).or_default();
                *text += &format!("---\n{}", print(&object));
            }
            // An operator without configurations may have conversions, which it sets itself.
            "Service" if name(&object).ends_with("-webhooks") => {
                configurations.entry(operator()).or_default().push('#');
            }
            "ClusterRole" => {
                let Some(operator) = name(&object).strip_prefix("bellerophon-") else {
                    continue;
                };
                let others = permissions[operator].as_array().expect("rules");
                let rules = object["rules"].as_array().expect("rules");
                let added: Value = rules
                    .iter()
                    .filter(|rule| !others.contains(rule))
                    .cloned()
                    .collect();
                if added != Value::Array(Vec::new()) {
                    let path = format!("bellerophon/files/webhook-permissions/{operator}.yaml");
                    files.insert(path.into(), print(&added));
                }
            }
            _ => {}
        }
    }
    for (operator, text) in configurations {
        let text = match text.strip_prefix('#') {
            Some("") => "# The conversion is set by the operator.\n".to_owned(),
            Some(text) => text.to_owned(),
            None => text,
        };
        let path = format!("bellerophon/files/webhooks/{operator}.yaml");
        files.insert(path.into(), text);
    }
    files
}

#[test]
fn generated_files_are_up_to_date() {
    for (path, expected) in generated() {
        if env::var("BELLEROPHON_WRITE_CHARTS").is_ok_and(|value| value == "1") {
            let path = charts().join(&path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(&path, &expected).expect("a file");
        }
        assert_eq!(
            read(&path),
            expected,
            "{} is out of date; run with BELLEROPHON_WRITE_CHARTS=1",
            path.display()
        );
    }
}

#[test]
fn every_operator_with_permissions_has_values() {
    let values = yaml(&read("bellerophon/values.yaml")).remove(0);
    let in_values: BTreeSet<&String> = values["operators"]
        .as_object()
        .expect("an object")
        .keys()
        .collect();
    let permissions = yaml(&read("bellerophon/files/permissions.yaml")).remove(0);
    let with_permissions = permissions.as_object().expect("an object").keys();
    assert_eq!(in_values, with_permissions.collect());
}

#[test]
fn charts_have_the_version_of_the_workspace() {
    for name in ["bellerophon", "bellerophon-crds", "store"] {
        let chart = yaml(&read(format!("{name}/Chart.yaml"))).remove(0);
        assert_eq!(chart["name"], name);
        assert_eq!(chart["apiVersion"], "v2");
        assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    }
}

/// The paths and texts of a chart's templates.
fn templates(chart: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(charts().join(chart).join("templates")).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .map(|path| {
            (
                path.display().to_string(),
                fs::read_to_string(&path).expect("UTF-8"),
            )
        })
        .collect()
}

/// The texts between `{{` and `}}`.
fn actions(template: &str) -> Vec<&str> {
    let after_open = template.split("{{").skip(1);
    after_open
        .map(|rest| {
            rest.split_once("}}")
                .expect("every action is closed")
                .0
                .trim_matches(|c: char| c == '-' || c.is_whitespace())
        })
        .collect()
}

/// The paths below `.Values` in an action.
fn value_paths(action: &str) -> impl Iterator<Item = Vec<String>> {
    let path = |rest: &str| {
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '.')
            .unwrap_or(rest.len());
        rest[..end].split('.').map(str::to_owned).collect()
    };
    action.split(".Values.").skip(1).map(path)
}

#[test]
fn templates_use_exactly_the_values_of_values_yaml() {
    for chart in ["bellerophon", "bellerophon-crds", "store"] {
        let values = yaml(&read(format!("{chart}/values.yaml"))).remove(0);
        let mut used = BTreeSet::new();
        for (file, template) in templates(chart) {
            let mut depth = 0;
            for action in actions(&template) {
                match action.split_whitespace().next() {
                    Some("if" | "range" | "with" | "define") => depth += 1,
                    Some("end") => depth -= 1,
                    _ => {}
                }
                assert!(depth >= 0, "{file}: unexpected end at {action:?}");
                for path in value_paths(action) {
                    let found = path
                        .iter()
                        .try_fold(&values, |value, field| value.get(field));
                    assert!(
                        found.is_some(),
                        "{file}: values.yaml has no {}",
                        path.join(".")
                    );
                    used.insert(path[0].clone());
                }
            }
            assert_eq!(depth, 0, "{file}: missing end");
        }
        let defined: BTreeSet<String> = values
            .as_object()
            .expect("values")
            .keys()
            .cloned()
            .collect();
        assert_eq!(used, defined, "{chart}");
    }
}
