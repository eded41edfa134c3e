//! Workloads of every kind in two namespaces, and their manifests.

use serde_json::{Value, json};

/// Namespaces of the workloads.
pub(super) const NAMESPACES: [&str; 2] = ["team-a", "team-b"];

/// Kind of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
}

/// One workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Workload {
    pub(super) namespace: &'static str,
    pub(super) kind: Kind,
    pub(super) name: &'static str,
}

/// The workloads of a namespace. Differences of two of a kind are in [`Workload::manifest`].
pub(super) const WORKLOADS: [(Kind, &str); 9] = [
    (Kind::Deployment, "web"),
    (Kind::Deployment, "api"),
    (Kind::ReplicaSet, "raw"),
    (Kind::StatefulSet, "db"),
    (Kind::StatefulSet, "cache"),
    (Kind::DaemonSet, "agent"),
    (Kind::Job, "batch"),
    (Kind::Job, "index"),
    (Kind::CronJob, "tick"),
];

/// Desired state of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkloadSpec {
    /// Replicas, or completions of a Job. A DaemonSet with an even count selects one zone.
    pub(super) count: u64,
    /// Version of the image.
    pub(super) version: u64,
    /// The image cannot be pulled.
    pub(super) broken: bool,
}

/// History limits of a CronJob.
pub(super) const JOBS_HISTORY_LIMIT: usize = 2;

/// `revisionHistoryLimit`.
pub(super) const REVISION_HISTORY_LIMIT: usize = 2;

impl Workload {
    /// `apiVersion` and `kind`.
    pub(super) fn type_(self) -> (&'static str, &'static str) {
        match self.kind {
            Kind::Deployment => ("apps/v1", "Deployment"),
            Kind::ReplicaSet => ("apps/v1", "ReplicaSet"),
            Kind::StatefulSet => ("apps/v1", "StatefulSet"),
            Kind::DaemonSet => ("apps/v1", "DaemonSet"),
            Kind::Job => ("batch/v1", "Job"),
            Kind::CronJob => ("batch/v1", "CronJob"),
        }
    }

    /// Whether a template that cannot run is replaced by an update. Pods of a StatefulSet wait for
    /// lower ordinals, pods of a ReplicaSet are not replaced.
    pub(super) fn can_recover_from_broken_template(self) -> bool {
        matches!(self.kind, Kind::Deployment | Kind::DaemonSet)
    }

    /// Whether its template is mutable.
    pub(super) fn is_mutable(self) -> bool {
        self.kind != Kind::Job
    }

    /// Whether its claims are deleted on scale-down and with the set.
    pub(super) fn deletes_claims(self) -> bool {
        self.name == "cache"
    }

    /// The image of its pods.
    pub(super) fn image(self, spec: WorkloadSpec) -> String {
        format!(
            "{}:{}{}",
            self.name,
            spec.version,
            if spec.broken { "-broken" } else { "" }
        )
    }

    /// The object to apply.
    pub(super) fn manifest(self, spec: WorkloadSpec) -> Value {
        let (api_version, kind) = self.type_();
        json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": self.spec(spec),
        })
    }

    fn spec(self, spec: WorkloadSpec) -> Value {
        let name = self.name;
        let count = spec.count;
        let selector = json!({ "matchLabels": { "app": self.name } });
        let template = self.template(spec);
        match self.kind {
            Kind::Deployment => json!({
                "replicas": count,
                "selector": selector,
                "template": template,
                "revisionHistoryLimit": REVISION_HISTORY_LIMIT,
                "strategy": if name == "api" { json!({
                    "type": "Recreate",
                }) } else { json!({ "type": "RollingUpdate" }) },
            }),
            Kind::ReplicaSet => {
                json!({ "replicas": count, "selector": selector, "template": template })
            }
            Kind::StatefulSet => {
                let (management, retention) = if self.deletes_claims() {
                    ("Parallel", "Delete")
                } else {
                    ("OrderedReady", "Retain")
                };
                json!({
                    "replicas": count,
                    "selector": selector,
                    "template": template,
                    "serviceName": name,
                    "podManagementPolicy": management,
                    "revisionHistoryLimit": REVISION_HISTORY_LIMIT,
                    "persistentVolumeClaimRetentionPolicy": {
                        "whenDeleted": retention,
                        "whenScaled": retention,
                    },
                    "volumeClaimTemplates": [
                        {
                            "metadata": { "name": "data" },
                            "spec": {
                                "accessModes": ["ReadWriteOnce"],
                                "resources": { "requests": { "storage": "1Gi" } },
                            },
                        },
                    ],
                })
            }
            Kind::DaemonSet => {
                json!({
                    "selector": selector,
                    "template": template,
                    "revisionHistoryLimit": REVISION_HISTORY_LIMIT,
                })
            }
            Kind::Job => job(name, count, template),
            Kind::CronJob => {
                let policy = ["Allow", "Forbid", "Replace"][spec.version as usize % 3];
                json!({
                    "schedule": "*/2 * * * *",
                    "suspend": false,
                    "jobTemplate": { "spec": job(name, count, template) },
                    "concurrencyPolicy": policy,
                    "successfulJobsHistoryLimit": JOBS_HISTORY_LIMIT,
                    "failedJobsHistoryLimit": JOBS_HISTORY_LIMIT,
                })
            }
        }
    }

    fn template(self, spec: WorkloadSpec) -> Value {
        let mut pod_spec = json!({ "containers": [{ "name": "main", "image": self.image(spec) }] });
        match self.kind {
            Kind::DaemonSet if spec.count.is_multiple_of(2) => {
                pod_spec["nodeSelector"] = json!({ "topology.kubernetes.io/zone": "zone-a" })
            }
            Kind::Job | Kind::CronJob => pod_spec["restartPolicy"] = json!("Never"),
            _ => {}
        }
        let annotations = if spec.broken {
            json!({ "sim.bellerophon.io/fail": "pull" })
        } else {
            json!({})
        };
        json!({
            "metadata": { "labels": { "app": self.name }, "annotations": annotations },
            "spec": pod_spec,
        })
    }
}

/// A Job with parallelism 2 and a back-off limit that is never reached.
fn job(name: &str, count: u64, template: Value) -> Value {
    let mode = if name == "index" {
        "Indexed"
    } else {
        "NonIndexed"
    };
    json!({
        "completions": count,
        "parallelism": 2,
        "completionMode": mode,
        "backoffLimit": 1000,
        "template": template,
    })
}
