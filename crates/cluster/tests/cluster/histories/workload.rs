//! What is asked for: a handful of workloads of every kind, in two namespaces.

use serde_json::{Value, json};

/// Where they are.
pub(super) const NAMESPACES: [&str; 2] = ["team-a", "team-b"];

/// What runs pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
}

/// One workload, by its place in [`WORKLOADS`] and its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Workload {
    pub(super) namespace: &'static str,
    pub(super) kind: Kind,
    pub(super) name: &'static str,
}

/// Every workload there may be in a namespace. What differs between two of a kind is in [`Workload::manifest`].
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

/// What is asked of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Pods, or completions of a job. A daemon set with an even number is for one zone only.
    pub(super) count: u64,
    /// Which image.
    pub(super) version: u64,
    /// Its image cannot be pulled.
    pub(super) broken: bool,
}

/// How many finished jobs a cron job keeps.
pub(super) const JOBS_KEPT: usize = 2;

/// How many old templates are kept.
pub(super) const REVISIONS_KEPT: usize = 2;

impl Workload {
    /// The version and kind as objects name them.
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

    /// Whether a template that cannot run is replaced by the next one without help. Members of a stateful set wait for
    /// their predecessors, pods of a replica set for somebody who deletes them.
    pub(super) fn may_break(self) -> bool {
        matches!(self.kind, Kind::Deployment | Kind::DaemonSet)
    }

    /// Whether its template may change.
    pub(super) fn may_change(self) -> bool {
        self.kind != Kind::Job
    }

    /// Whether claims go with their members and with the set.
    pub(super) fn gives_up_storage(self) -> bool {
        self.name == "cache"
    }

    /// The image of its pods.
    pub(super) fn image(self, wanted: Wanted) -> String {
        format!(
            "{}:{}{}",
            self.name,
            wanted.version,
            if wanted.broken { "-broken" } else { "" }
        )
    }

    /// The object that asks for it.
    pub(super) fn manifest(self, wanted: Wanted) -> Value {
        let (api_version, kind) = self.type_();
        json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": self.spec(wanted),
        })
    }

    fn spec(self, wanted: Wanted) -> Value {
        let name = self.name;
        let count = wanted.count;
        let selector = json!({ "matchLabels": { "app": self.name } });
        let template = self.template(wanted);
        match self.kind {
            Kind::Deployment => json!({
                "replicas": count, "selector": selector, "template": template, "revisionHistoryLimit": REVISIONS_KEPT,
                "strategy": if name == "api" { json!({ "type": "Recreate" }) } else { json!({ "type": "RollingUpdate" }) },
            }),
            Kind::ReplicaSet => {
                json!({ "replicas": count, "selector": selector, "template": template })
            }
            Kind::StatefulSet => {
                let (management, retention) = if self.gives_up_storage() {
                    ("Parallel", "Delete")
                } else {
                    ("OrderedReady", "Retain")
                };
                json!({
                    "replicas": count, "selector": selector, "template": template, "serviceName": name, "podManagementPolicy": management,
                    "revisionHistoryLimit": REVISIONS_KEPT,
                    "persistentVolumeClaimRetentionPolicy": { "whenDeleted": retention, "whenScaled": retention },
                    "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {
                        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }],
                })
            }
            Kind::DaemonSet => {
                json!({ "selector": selector, "template": template, "revisionHistoryLimit": REVISIONS_KEPT })
            }
            Kind::Job => job(name, count, template),
            Kind::CronJob => {
                let policy = ["Allow", "Forbid", "Replace"][wanted.version as usize % 3];
                json!({
                    "schedule": "*/2 * * * *", "suspend": false, "jobTemplate": { "spec": job(name, count, template) },
                    "concurrencyPolicy": policy, "successfulJobsHistoryLimit": JOBS_KEPT, "failedJobsHistoryLimit": JOBS_KEPT,
                })
            }
        }
    }

    fn template(self, wanted: Wanted) -> Value {
        let mut spec = json!({ "containers": [{ "name": "main", "image": self.image(wanted) }] });
        match self.kind {
            Kind::DaemonSet if wanted.count.is_multiple_of(2) => {
                spec["nodeSelector"] = json!({ "topology.kubernetes.io/zone": "zone-a" })
            }
            Kind::Job | Kind::CronJob => spec["restartPolicy"] = json!("Never"),
            _ => {}
        }
        let annotations = if wanted.broken {
            json!({ "sim.bellerophon.io/fail": "pull" })
        } else {
            json!({})
        };
        json!({ "metadata": { "labels": { "app": self.name }, "annotations": annotations }, "spec": spec })
    }
}

/// Two pods at a time; losing some is no reason to give up.
fn job(name: &str, count: u64, template: Value) -> Value {
    let mode = if name == "index" {
        "Indexed"
    } else {
        "NonIndexed"
    };
    json!({ "completions": count, "parallelism": 2, "completionMode": mode, "backoffLimit": 1000, "template": template })
}
