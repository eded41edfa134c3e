//! Operators as `bellerophon run`, with the service accounts of their manifests.
//!
//! Input: a control plane and the program `bellerophon`. Output: a result per operator.
//!
//! Each scenario applies the manifests, runs the operator as their service account with leader
//! election and page, applies a sample, waits for its conditions, and reads page, `trace` and `top`.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::control_plane::{ControlPlane, Process};
use crate::processes::{cargo, now, succeed};

/// The number of simulated nodes.
const NODES: &str = "3";

/// The namespace of the manifests.
const NAMESPACE: &str = "bellerophon-system";

/// What an operator has to do.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// The sample, in `samples`.
    sample: &'static str,
    /// The object whose timeline is printed; `None` for an operator without controllers.
    traced: Option<&'static str>,
    /// Commands of kubectl that succeed after the sample was applied, in order.
    checks: &'static [&'static str],
    /// Commands of kubectl that succeed after the sample was deleted.
    checks_after_deletion: &'static [&'static str],
    /// What is checked, for the page.
    pub(super) summary: &'static str,
}

/// The operators of this repository.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "icecream",
        sample: "icecream.yaml",
        traced: Some("icecream/example-icecream"),
        checks: &[
            "wait --for=condition=Ready icecream/example-icecream --timeout=120s",
            "scale icecream/example-icecream --replicas=3",
            "wait --for=jsonpath={.status.availableReplicas}=3 icecream/example-icecream --timeout=120s",
            "delete deployment/example-icecream --wait=true",
            "wait --for=create deployment/example-icecream --timeout=120s",
            "wait --for=jsonpath={.status.availableReplicas}=3 deployment/example-icecream --timeout=120s",
        ],
        checks_after_deletion: &["wait --for=delete deployment/example-icecream --timeout=120s"],
        summary: "the Deployment is created, scaled, created again after a deletion, and collected \
                  as garbage",
    },
    Scenario {
        name: "simple",
        sample: "shero.yaml",
        traced: Some("bellerophonsimple/philonoe"),
        checks: &[
            "wait --for=condition=Ready sheroes/philonoe --timeout=120s",
            "scale sheroes/philonoe --replicas=1",
            "wait --for=jsonpath={.status.replicas}=1 sheroes/philonoe --timeout=120s",
        ],
        checks_after_deletion: &["wait --for=delete deployment/philonoe --timeout=120s"],
        summary: "the Deployment is created, scaled by the scale subresource, and collected as \
                  garbage",
    },
    Scenario {
        name: "secsynch",
        sample: "secsynch.yaml",
        traced: Some("secsynch/shared-login"),
        checks: &[
            "wait --for=create secret/shared-login --namespace team-a --timeout=120s",
            "delete secret/shared-login --namespace team-a --wait=true",
            "wait --for=create secret/shared-login --namespace team-a --timeout=120s",
        ],
        checks_after_deletion: &["wait --for=delete namespace/team-a --timeout=120s"],
        summary: "the Secret is copied, and copied again after a deletion",
    },
    Scenario {
        name: "fruit",
        sample: "fruit.yaml",
        traced: None,
        checks: &["get fruits --field-selector=spec.sweetness=true --output=name"],
        checks_after_deletion: &[],
        summary: "the object is validated and selected by a field; the operator has no controller",
    },
    Scenario {
        name: "reboot",
        sample: "reboot.yaml",
        traced: Some("rebootpolicy/workers"),
        checks: &[
            "wait --for=jsonpath={.status.nodes}=3 rebootpolicy/workers --timeout=120s",
            // The windows of the sample would permit a reboot at some times of the day only.
            "patch rebootpolicy/workers --type=merge --patch={\"spec\":{\"maxUnavailable\":0,\"windows\":[]}}",
            "wait --for=jsonpath={.status.limit}=0 rebootpolicy/workers --timeout=120s",
            "annotate node/node-1 reboot.bellerophon.io/reboot-needed=kernel",
            "wait --for=jsonpath={.status.needed}=1 rebootpolicy/workers --timeout=120s",
            "patch rebootpolicy/workers --type=merge --patch={\"spec\":{\"maxUnavailable\":1}}",
            "wait --for=jsonpath={.status.granted}=1 rebootpolicy/workers --timeout=120s",
            "annotate node/node-1 reboot.bellerophon.io/reboot-needed-",
        ],
        checks_after_deletion: &[],
        summary: "the policy counts nodes, requests and grants; reboots are in the tests below, which \
                  have agents on simulated nodes",
    },
    Scenario {
        name: "hero",
        sample: "bellerophon.yaml",
        traced: Some("bellerophon/icarus"),
        checks: &[
            "wait --for=create service/icarus --timeout=120s",
            "wait --for=jsonpath={.status.members[*].name} heroes/icarus --timeout=120s",
        ],
        checks_after_deletion: &["wait --for=delete heroes/icarus --timeout=120s"],
        summary: "Services, Secrets and the first member are created; members do not run, since \
                  simulated nodes have no processes and the cluster has no storage provisioner",
    },
];

/// The result of a scenario.
pub(super) struct ScenarioResult {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) seconds: f64,
    /// Why it failed.
    pub(super) failure: Option<String>,
}

/// Runs scenarios one after another, with simulated nodes.
///
/// # Errors
/// The nodes cannot be started. Failures of scenarios are results.
pub(super) fn run(
    root: &Path,
    control_plane: &ControlPlane,
    binary: &Path,
    scenarios: &[&Scenario],
) -> Result<Vec<ScenarioResult>, String> {
    let logs = control_plane.logs().to_owned();
    let mut nodes = Command::new(nodes_program(root)?);
    nodes.args([control_plane.kubeconfig().as_os_str(), NODES.as_ref()]);
    let mut nodes = Process::start("nodes", &mut nodes, &logs)?;
    nodes.wait_for_line("ready")?;
    let runner = Runner {
        root,
        control_plane,
        binary,
        logs,
    };
    let results = scenarios.iter().map(|scenario| {
        eprintln!("==> bellerophon run {}", scenario.name);
        let begun = now();
        let failure = runner.run(scenario).err();
        if let Some(failure) = &failure {
            eprintln!("    failed: {failure}");
        }
        ScenarioResult {
            name: scenario.name,
            summary: scenario.summary,
            seconds: begun.elapsed().as_secs_f64(),
            failure,
        }
    });
    let results = results.collect();
    drop(nodes);
    control_plane.kubectl("delete nodes --all")?;
    Ok(results)
}

/// The program that adds simulated nodes to a cluster.
fn nodes_program(root: &Path) -> Result<PathBuf, String> {
    let mut cargo = cargo();
    let arguments = "build --quiet --package bellerophon-cluster --example nodes";
    cargo.args(arguments.split(' ')).current_dir(root);
    succeed(&mut cargo, "cargo build --example nodes")?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("debug/examples/nodes"))
}

struct Runner<'a> {
    root: &'a Path,
    control_plane: &'a ControlPlane,
    binary: &'a Path,
    logs: PathBuf,
}

impl Runner<'_> {
    fn run(&self, scenario: &Scenario) -> Result<(), String> {
        let name = scenario.name;
        let manifests = self.bellerophon(&["manifests", name])?;
        let manifests = self.write(&format!("{name}-manifests.yaml"), &manifests)?;
        let apply = format!("apply --server-side --filename {manifests}");
        self.control_plane.kubectl(&apply)?;
        let sample = self.root.join("samples").join(scenario.sample);
        let sample = sample.display().to_string();
        let Some(traced) = scenario.traced else {
            return self.reconcile(scenario, &sample, |_| Ok(()));
        };
        let rollout =
            format!("rollout status deployment/{name} --namespace {NAMESPACE} --timeout=120s");
        self.control_plane.kubectl(&rollout)?;
        let account = format!("{NAMESPACE}/{name}");
        let admin = self.control_plane.kubeconfig().display().to_string();
        let kubeconfig = self.bellerophon(&[
            "kubeconfig",
            "--service-account",
            &account,
            "--kubeconfig",
            &admin,
        ])?;
        let kubeconfig = self.write(&format!("{name}.yaml"), &kubeconfig)?;
        let mut command = Command::new(self.binary);
        command
            .args(["run", name, "--leader-elect", "-v", "--page", "127.0.0.1:0"])
            .args(["--kubeconfig", &kubeconfig]);
        let mut operator = Process::start(&format!("run-{name}"), &mut command, &self.logs)?;
        let page = operator.wait_for_line("live page ")?;
        self.reconcile(scenario, &sample, |when| {
            if let Some(ended) = operator.ended() {
                return Err(ended);
            }
            match when {
                When::Reconciled => self.check_observability(name, traced, &page),
                When::Deleted => Ok(()),
            }
        })?;
        drop(operator);
        let log = fs::read_to_string(self.logs.join(format!("run-{name}.log")));
        let log = log.map_err(|e| format!("cannot read the log of {name}: {e}"))?;
        match log.lines().find(|line| line.contains("forbidden")) {
            Some(line) => Err(format!("a permission is missing: {line}")),
            None => Ok(()),
        }
    }

    /// Applies a sample, waits for its conditions, deletes it, and waits for theirs.
    fn reconcile(
        &self,
        scenario: &Scenario,
        sample: &str,
        mut inspect: impl FnMut(When) -> Result<(), String>,
    ) -> Result<(), String> {
        self.control_plane
            .kubectl(&format!("apply --filename {sample}"))?;
        let checks = || {
            for check in scenario.checks {
                self.control_plane.kubectl(check)?;
            }
            Ok(())
        };
        let reconciled = checks().and_then(|()| inspect(When::Reconciled));
        let delete = format!("delete --wait=false --filename {sample}");
        let deleted = self.control_plane.kubectl(&delete);
        reconciled?;
        deleted?;
        for check in scenario.checks_after_deletion {
            self.control_plane.kubectl(check)?;
        }
        inspect(When::Deleted)
    }

    /// Reads page, timeline and queues of a running operator.
    fn check_observability(&self, name: &str, traced: &str, page: &str) -> Result<(), String> {
        let index = fetch(page)?;
        if !index.contains("<title>") {
            return Err(format!("the page is not HTML: {index}"));
        }
        let timeline = self.bellerophon(&["trace", traced, "--page", page])?;
        let object = traced.split_once('/').map_or(traced, |(_, object)| object);
        if !timeline.contains(object) || !timeline.contains("writes") {
            return Err(format!(
                "the timeline of {traced} has no writes: {timeline}"
            ));
        }
        let table = self.bellerophon(&["top", "--once", "--page", page])?;
        match table.contains(name) {
            true => Ok(()),
            false => Err(format!("top does not show the controller {name}: {table}")),
        }
    }

    fn bellerophon(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.binary);
        let what = format!("bellerophon {}", arguments[0]);
        succeed(command.args(arguments), &what)
    }

    /// Writes a file of this run, and returns its path.
    fn write(&self, name: &str, text: &str) -> Result<String, String> {
        let path = self.control_plane.directory().join(name);
        fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        Ok(path.display().to_string())
    }
}

/// When an operator is looked at.
#[derive(Clone, Copy)]
enum When {
    Reconciled,
    Deleted,
}

/// The first file of a page.
fn fetch(url: &str) -> Result<String, String> {
    let host = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split('/').next());
    let host = host.ok_or_else(|| format!("not the URL of a page: {url}"))?;
    let exchange = || {
        let mut stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    exchange().map_err(|e: std::io::Error| format!("cannot read the page: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_scenarios_exist() {
        for scenario in SCENARIOS {
            let sample = crate::root().join("samples").join(scenario.sample);
            assert!(sample.exists(), "{}", scenario.sample);
        }
    }
}
