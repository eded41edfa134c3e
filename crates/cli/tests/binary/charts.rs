//! The Helm charts: in step with the operators, sound without Helm, and rendered by Helm where it is present.
//! After a change of an operator, `BELLEROPHON_WRITE_CHARTS=1 cargo test -p bellerophon-cli charts` brings them in step.
//! HELM names the program; without it and without one on the PATH the test that needs it says so and passes.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::running::Running;

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
    let read = |document: &str| {
        serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}:\n{document}"))
    };
    documents
        .filter(|document| !document.trim().is_empty())
        .map(read)
        .collect()
}

/// What `bellerophon manifests` prints for everything there is.
fn manifests() -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_bellerophon"))
        .args(["manifests", "all,reboot-agent"])
        .output()
        .expect("the binary starts");
    yaml(&String::from_utf8(output.stdout).expect("text"))
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// The files of the charts that follow from the operators, by path.
fn derived() -> BTreeMap<PathBuf, String> {
    let (mut files, mut rights, mut roles, mut guards) =
        (BTreeMap::new(), BTreeMap::new(), String::new(), Vec::new());
    let print = |value: &Value| serde_saphyr::to_string(value).expect("YAML");
    for object in manifests() {
        match object["kind"].as_str().expect("a kind") {
            "CustomResourceDefinition" => {
                files.insert(
                    PathBuf::from(format!("bellerophon-crds/files/{}.yaml", name(&object))),
                    print(&object),
                );
            }
            "ClusterRole" => match name(&object).strip_prefix("bellerophon-") {
                Some(operator) => _ = rights.insert(operator.to_owned(), object["rules"].clone()),
                None => roles += &format!("---\n{}", print(&object)),
            },
            "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
                guards.push(print(&object))
            }
            // The guards of an operator come before its pods.
            "DaemonSet" => {
                files.insert(
                    PathBuf::from(format!("bellerophon/files/guards/{}.yaml", name(&object))),
                    guards.join("---\n"),
                );
                guards.clear();
            }
            _ => {}
        }
    }
    files.insert(
        "bellerophon/files/rights.yaml".into(),
        serde_saphyr::to_string(&rights).expect("YAML"),
    );
    files.insert("bellerophon/files/roles.yaml".into(), roles);
    files
}

#[test]
fn charts_are_in_step_with_the_operators() {
    for (path, wanted) in derived() {
        if env::var("BELLEROPHON_WRITE_CHARTS").is_ok_and(|value| value == "1") {
            let path = charts().join(&path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder can be made");
            fs::write(&path, &wanted).expect("a file can be written");
        }
        assert_eq!(
            read(&path),
            wanted,
            "{}: BELLEROPHON_WRITE_CHARTS=1 brings it in step",
            path.display()
        );
    }
    let values = yaml(&read("bellerophon/values.yaml")).remove(0);
    let offered: BTreeSet<&String> = values["operators"]
        .as_object()
        .expect("operators")
        .keys()
        .collect();
    let rights = yaml(&read("bellerophon/files/rights.yaml")).remove(0);
    assert_eq!(
        offered,
        rights.as_object().expect("rights").keys().collect(),
        "every operator that does something can be turned on"
    );
    for chart in ["bellerophon", "bellerophon-crds"] {
        let about = yaml(&read(format!("{chart}/Chart.yaml"))).remove(0);
        assert_eq!(
            (about["name"].as_str(), about["apiVersion"].as_str()),
            (Some(chart), Some("v2"))
        );
        assert_eq!(
            (about["version"].as_str(), about["appVersion"].as_str()),
            (
                Some(env!("CARGO_PKG_VERSION")),
                Some(env!("CARGO_PKG_VERSION"))
            )
        );
    }
}

/// The templates of a chart, by name.
fn templates(chart: &str) -> Vec<(String, String)> {
    let folder = fs::read_dir(charts().join(chart).join("templates")).expect("a folder");
    let paths = folder.map(|entry| entry.expect("an entry").path());
    paths
        .map(|path| {
            (
                path.display().to_string(),
                fs::read_to_string(&path).expect("text"),
            )
        })
        .collect()
}

/// What stands between `{{` and `}}`, in order.
fn actions(template: &str) -> Vec<&str> {
    let opened = template.split("{{").skip(1);
    opened
        .map(|rest| {
            rest.split_once("}}")
                .expect("every action is closed")
                .0
                .trim_matches(|c: char| c == '-' || c.is_whitespace())
        })
        .collect()
}

/// The paths below `.Values` that an action names.
fn values_named(action: &str) -> impl Iterator<Item = Vec<String>> {
    let path = |rest: &str| {
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '.')
            .unwrap_or(rest.len());
        rest[..end].split('.').map(str::to_owned).collect()
    };
    action.split(".Values.").skip(1).map(path)
}

#[test]
fn templates_name_values_that_exist_and_all_of_them() {
    for chart in ["bellerophon", "bellerophon-crds"] {
        let values = yaml(&read(format!("{chart}/values.yaml"))).remove(0);
        let mut named = BTreeSet::new();
        for (file, template) in templates(chart) {
            let mut open = 0;
            for action in actions(&template) {
                match action.split_whitespace().next() {
                    Some("if" | "range" | "with" | "define") => open += 1,
                    Some("end") => open -= 1,
                    _ => {}
                }
                assert!(open >= 0, "{file}: an end too many at {action:?}");
                for path in values_named(action) {
                    let found = path.iter().try_fold(&values, |at, part| at.get(part));
                    assert!(
                        found.is_some(),
                        "{file}: values.yaml has no {}",
                        path.join(".")
                    );
                    named.insert(path[0].clone());
                }
            }
            assert_eq!(open, 0, "{file}: something is not ended");
        }
        let offered: BTreeSet<String> = values
            .as_object()
            .expect("values")
            .keys()
            .cloned()
            .collect();
        assert_eq!(named, offered, "{chart}: every value does something");
    }
}

#[test]
fn helm_renders_what_the_server_accepts() {
    let helm = env::var("HELM").unwrap_or_else(|_| "helm".to_owned());
    if Command::new(&helm).arg("version").output().is_err() {
        eprintln!("skipped: {helm} cannot be started; install it or name it in HELM");
        return;
    }
    let render = |chart: &str, more: &[&str]| {
        let output = Command::new(&helm)
            .args(["template", "demo"])
            .arg(charts().join(chart))
            .args(more)
            .output()
            .expect("helm starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    };
    let sets = [
        vec![],
        vec![
            "--set",
            "leaderElection.enabled=false,replicas=1,metrics.service.enabled=false,aggregateRoles=false",
        ],
        vec![
            "--set",
            "operators.icecream.namespace=default,operators.simple.enabled=false,operators.secsynch.allow={secsynch-without-consent}",
        ],
        vec![
            "--set",
            "operators.reboot.enabled=true,operators.reboot-agent.enabled=true,operators.reboot-agent.environment.REBOOT_COMMAND=/bin/true",
        ],
        vec![
            "--set",
            "nodeSelector.disk=ssd,podAnnotations.a=b,podLabels.c=d,priorityClassName=system-cluster-critical,image.pullSecrets[0].name=x",
        ],
    ];
    let server = Running::start(&["--cluster", "none"]);
    let apply = |text: &str| {
        let file = server.directory.path().join("rendered.yaml");
        fs::write(&file, text).expect("a file can be written");
        let kubectl = env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let first = kubectl.split(':').next().expect("one").to_owned();
        let output = Command::new(first)
            .args(["--kubeconfig", server.kubeconfig(), "apply", "-f"])
            .arg(&file)
            .output()
            .expect("kubectl starts");
        assert!(
            output.status.success(),
            "{}\n{text}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    apply(&render("bellerophon-crds", &[]));
    for set in sets {
        apply(&render("bellerophon", &set));
    }
    assert!(
        render(
            "bellerophon",
            &["--set", "metrics.serviceMonitor.enabled=true"]
        )
        .contains("kind: ServiceMonitor")
    );
}
