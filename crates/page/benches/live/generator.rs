//! Records of chains, as a cluster under load has them.
//!
//! In: a rate. Out: records in a trace, and versions in an object log.
//! A chain has 14 records: a client patches a Deployment; its controller patches the ReplicaSet;
//! the controller of that patches the status of a Pod; a third controller has nothing to write. The
//! objects have the size and the managed fields of real ones.

use std::sync::Arc;
use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bellerophon::ObjectKey;
use bellerophon::queue::{Cause, CauseEvent, Causes};
use bellerophon::trace::{AcceptedWrite, Trace, TraceEvent, WriteAttributes};
use bellerophon_page::ObjectLog;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The number of Deployments that are patched in turn.
const OBJECTS: u64 = 300;

/// The writes of which the time is the mean.
const RECORDINGS: u64 = 200_000;

/// How often records are made.
const TICK: Duration = Duration::from_millis(10);

/// Makes records.
pub(crate) struct Generator {
    trace: Trace,
    objects: ObjectLog,
    /// The newest version of the storage.
    version: u64,
    /// The objects of a Deployment, each with its version: itself, its ReplicaSet and a Pod.
    stored: Vec<[Option<Stored>; 3]>,
    /// The attributes of the patches of each writer.
    patches: [Arc<WriteAttributes>; 3],
    chain: u64,
}

/// A version of an object, and its bytes.
type Stored = (u64, Bytes);

/// Who writes an object of a chain.
struct Writer {
    kind: &'static str,
    user: &'static str,
    manager: &'static str,
    subresource: &'static str,
}

const WRITERS: [Writer; 3] = [
    Writer {
        kind: "Deployment.apps",
        user: "admin",
        manager: "kubectl",
        subresource: "",
    },
    Writer {
        kind: "ReplicaSet.apps",
        user: "system:serviceaccount:kube-system:deployment-controller",
        manager: "deployment-controller",
        subresource: "",
    },
    Writer {
        kind: "Pod",
        user: "system:serviceaccount:kube-system:replicaset-controller",
        manager: "replicaset-controller",
        subresource: "status",
    },
];

impl Writer {
    fn attributes(&self, verb: &'static str) -> Arc<WriteAttributes> {
        Arc::new(WriteAttributes {
            user: self.user.into(),
            manager: self.manager.into(),
            verb,
            subresource: self.subresource.into(),
            kind: self.kind.into(),
            is_in_process: self.user != "admin",
        })
    }
}

impl Generator {
    pub(crate) fn new(trace: Trace, objects: ObjectLog) -> Self {
        Self {
            trace,
            objects,
            version: 100,
            stored: vec![[const { None }; 3]; OBJECTS as usize],
            patches: WRITERS.each_ref().map(|writer| writer.attributes("patch")),
            chain: 0,
        }
    }

    /// Makes records at a rate until `stop`.
    pub(crate) fn start(mut self, rate: u64, stop: CancellationToken) -> JoinHandle<()> {
        thread::spawn(move || {
            let started = now();
            let first = self.trace.newest_sequence();
            while !stop.is_cancelled() {
                sleep(TICK);
                let due = started.elapsed().as_micros() as u64 * rate / 1_000_000;
                while self.trace.newest_sequence() - first < due {
                    self.chain();
                }
            }
        })
    }

    /// The mean time of recording an accepted write, as an API server without a viewer does.
    pub(crate) fn recording_time(mut self) -> Duration {
        let key = ObjectKey::namespaced("team-a", "web");
        let object: Bytes = body(&WRITERS[0], &key, 1, 0).to_string().into();
        let started = now();
        for number in 0..RECORDINGS {
            let before = Some((self.version, object.clone()));
            self.version += 1;
            let key = ObjectKey::namespaced("team-a", format!("web-{}", number % OBJECTS));
            self.record(0, key, object.clone(), before);
        }
        started.elapsed() / RECORDINGS as u32
    }

    fn chain(&mut self) {
        let number = self.chain;
        self.chain += 1;
        let object = number % OBJECTS;
        let name = format!("web-{object}");
        let names = [
            name.clone(),
            format!("{name}-7d4b9c6f5"),
            format!("{name}-7d4b9c6f5-x2kqd"),
        ];
        let keys = names.map(|name| ObjectKey::namespaced(format!("team-{}", object % 7), &name));
        let mut version = self.accept(0, &keys[0], number);
        for (place, controller) in [
            (1, "deployment-controller"),
            (2, "replicaset-controller"),
            (3, "endpointslice-controller"),
        ] {
            let cause = WRITERS[place - 1].kind;
            let reconciling = &keys[(place - 1).min(2)];
            self.start_reconcile(controller, reconciling, cause, &keys[place - 1], version);
            if place < WRITERS.len() {
                version = self.accept(place, &keys[place], number);
                let written = version;
                self.trace.record(|| TraceEvent::Wrote {
                    controller: controller.into(),
                    reconciling: reconciling.clone(),
                    kind: WRITERS[place].kind.into(),
                    key: keys[place].clone(),
                    resource_version: Some(written.to_string()),
                });
            }
            self.trace.record(|| TraceEvent::Finished {
                controller: controller.into(),
                key: reconciling.clone(),
                result: "success",
                took: Duration::from_micros(700 + number % 900),
                requeue_after: None,
                error: None,
            });
        }
    }

    /// Records an accepted write, and returns its version.
    fn accept(&mut self, place: usize, key: &ObjectKey, number: u64) -> u64 {
        self.version += 1;
        let version = self.version;
        let writer = &WRITERS[place];
        let body = body(writer, key, version, number / OBJECTS).to_string();
        let body = Bytes::from(body);
        let stored = &mut self.stored[(number % OBJECTS) as usize][place];
        let before = stored.replace((version, body.clone()));
        self.record(place, key.clone(), body, before);
        version
    }

    /// Records a write of the newest version as the observer of `bellerophon up` does.
    fn record(&self, place: usize, key: ObjectKey, object: Bytes, before: Option<Stored>) {
        let (previous_version, before) = before.unzip();
        let accepted = Arc::new(AcceptedWrite {
            attributes: match previous_version {
                Some(_) => self.patches[place].clone(),
                None => WRITERS[place].attributes("create"),
            },
            key,
            previous_version,
            resource_version: self.version,
            is_deletion: false,
        });
        self.objects.add(accepted.clone(), object, before);
        self.trace.record(|| TraceEvent::Accepted(accepted));
    }

    fn start_reconcile(
        &self,
        controller: &str,
        key: &ObjectKey,
        cause_kind: &str,
        cause_key: &ObjectKey,
        version: u64,
    ) {
        self.trace.record(|| TraceEvent::Enqueued {
            controller: controller.into(),
            key: key.clone(),
            cause_kind: cause_kind.into(),
            cause_key: cause_key.clone(),
            cause_version: Some(version.to_string()),
        });
        let causes = Causes::from(Cause {
            kind: cause_kind.into(),
            key: cause_key.clone(),
            resource_version: Some(version.to_string()),
            event: CauseEvent::Updated,
            at: tokio::time::Instant::now(),
            reason: None,
        });
        self.trace.record(|| TraceEvent::Started {
            controller: controller.into(),
            key: key.clone(),
            causes,
            attempt: 1,
            waited: Some(Duration::from_micros(300)),
        });
    }
}

/// An object of the size of a real one. One field of its spec or status changes in every round.
fn body(writer: &Writer, key: &ObjectKey, version: u64, round: u64) -> Value {
    let (spec_round, status_round) = match writer.subresource {
        "status" => (0, round),
        _ => (round, 0),
    };
    let (kind, group) = writer.kind.split_once('.').unwrap_or((writer.kind, ""));
    let container = json!({
        "name": "horse", "image": "registry.example/pegasus:1", "imagePullPolicy": "IfNotPresent",
        "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
        "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    });
    let fields = json!({ "f:metadata": { "f:labels": { ".": {}, "f:app": {} } }, "f:spec": {
        "f:replicas": {}, "f:selector": {}, "f:template": { "f:metadata": { "f:labels": { ".": {},
        "f:app": {} } }, "f:spec": { "f:containers": { "k:{\"name\":\"horse\"}": { ".": {},
        "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:ports": { ".": {},
        "k:{\"containerPort\":8080,\"protocol\":\"TCP\"}": { ".": {}, "f:containerPort": {},
        "f:protocol": {} } }, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {} } },
        "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
        "f:terminationGracePeriodSeconds": {} } } } });
    let conditions = ["Available", "Progressing", "Ready"].map(|name| {
        json!({ "type": name, "status": "True", "reason": "AsExpected",
            "lastTransitionTime": "2026-11-18T02:00:00Z", "message": "nothing to report" })
    });
    json!({
        "apiVersion": if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") },
        "kind": kind,
        "metadata": {
            "name": key.name(), "namespace": key.namespace(), "uid": format!("uid-{kind}-{}", key.name()),
            "resourceVersion": version.to_string(), "generation": spec_round + 1,
            "creationTimestamp": "2026-11-18T02:00:00Z", "labels": { "app": "web" },
            "managedFields": [{ "manager": writer.manager, "operation": "Update",
                "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": fields,
                "time": "2026-11-18T02:00:00Z" }],
        },
        "spec": {
            "replicas": 2 + spec_round % 3, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": {
                "containers": [container], "dnsPolicy": "ClusterFirst", "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {},
                "terminationGracePeriodSeconds": 30 } },
        },
        "status": { "observedGeneration": 1, "readyReplicas": 1 + status_round % 3,
            "replicas": 2, "conditions": conditions },
    })
}

#[expect(clippy::disallowed_methods, reason = "a benchmark takes real time")]
pub(crate) fn sleep(time: Duration) {
    thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
