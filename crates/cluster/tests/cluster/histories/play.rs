//! Steps done, and what they ask for in the end.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_cluster::{Nodes, UnknownNode};
use bellerophon_testkit::World;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PropagationPolicy},
};
use serde_json::{Value, json};

use super::{
    seen::resource,
    step::{Haste, Step},
    workload::{Kind, NAMESPACES, Wanted, Workload},
};

/// What the last words on every object were.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// What is to run.
    pub(super) workloads: BTreeMap<Workload, Wanted>,
    /// Whose pods have a service and a disruption budget.
    pub(super) served: BTreeSet<Workload>,
    /// What was once deleted without what it owned. Some of that may still be there.
    pub(super) orphaned: BTreeSet<Workload>,
    /// Which namespaces there are.
    pub(super) namespaces: BTreeSet<&'static str>,
}

/// Does what a history says.
pub(super) struct Player {
    world: World,
    asked: Asked,
    /// Whether the loops run.
    runs: bool,
}

impl Player {
    pub(super) async fn new(world: World) -> Self {
        let mut player = Self {
            world,
            asked: Asked::default(),
            runs: true,
        };
        for namespace in NAMESPACES {
            player.make(namespace).await;
        }
        player
    }

    /// Does one step.
    pub(super) async fn play(&mut self, step: &Step) {
        match step {
            Step::Apply(workload, wanted) => self.apply(*workload, *wanted).await,
            Step::Scale(workload, count) => self.scale(*workload, *count).await,
            Step::Delete(workload, how) => self.delete(*workload, how).await,
            Step::Serve(workload) => self.serve(*workload).await,
            Step::StopServing(workload) => self.stop_serving(*workload).await,
            Step::DeletePod(namespace, which, haste) => {
                self.delete_pod(namespace, *which, *haste).await
            }
            Step::RelabelPod(namespace, which) => self.relabel_pod(namespace, *which).await,
            Step::DeleteNamespace(namespace) => self.delete_namespace(namespace).await,
            Step::PowerOff(node) => self.operate(|nodes| nodes.power_off(node)),
            Step::Partition(node) => self.operate(|nodes| nodes.partition(node)),
            Step::Restore(node) => self.operate(|nodes| nodes.restore(node)),
            Step::Reboot(node) => self.operate(|nodes| nodes.reboot(node)),
            Step::Pause if self.runs => {
                self.world.pause().await;
                self.runs = false;
            }
            Step::Crash if self.runs => {
                self.world.crash();
                self.runs = false;
            }
            Step::Resume if !self.runs => {
                self.world.resume().await;
                self.runs = true;
            }
            Step::Restart if self.runs => self.world.restart().await,
            Step::Pause | Step::Crash | Step::Resume | Step::Restart => {}
            Step::Pass(time) => self.world.pass(*time).await,
        }
    }

    /// Brings back what is down, and replaces what cannot run.
    pub(super) async fn mend(mut self) -> (World, Asked) {
        self.play(&Step::Resume).await;
        let nodes = self
            .world
            .cluster()
            .nodes()
            .expect("this cluster has nodes")
            .names();
        nodes
            .iter()
            .for_each(|node| self.operate(|nodes| nodes.restore(node)));
        for (workload, wanted) in self.asked.workloads.clone() {
            if wanted.broken {
                self.apply(
                    workload,
                    Wanted {
                        broken: false,
                        ..wanted
                    },
                )
                .await;
            }
            if workload.kind == Kind::CronJob {
                self.patch(workload, json!({ "spec": { "suspend": true } }))
                    .await;
            }
        }
        for namespace in NAMESPACES {
            let released = self
                .world
                .within::<Pod>(namespace)
                .delete_collection(&Default::default(), &released())
                .await;
            released.expect("pods that were released are deleted");
        }
        (self.world, self.asked)
    }

    async fn apply(&mut self, workload: Workload, wanted: Wanted) {
        // A job is what it was made as.
        if !workload.may_change() && self.asked.workloads.contains_key(&workload) {
            return;
        }
        if self
            .put(
                workload.namespace,
                workload.type_(),
                &workload.manifest(wanted),
            )
            .await
        {
            self.asked.workloads.insert(workload, wanted);
        }
    }

    async fn scale(&mut self, workload: Workload, count: u64) {
        let Some(wanted) = self.asked.workloads.get(&workload).copied() else {
            return;
        };
        let wanted = Wanted { count, ..wanted };
        let done = match workload.kind {
            Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet => {
                let patch = Patch::Merge(json!({ "spec": { "replicas": count } }));
                let scaled = self
                    .api(workload)
                    .patch_scale(workload.name, &PatchParams::default(), &patch)
                    .await;
                scaled.is_ok()
            }
            Kind::DaemonSet => {
                self.put(
                    workload.namespace,
                    workload.type_(),
                    &workload.manifest(wanted),
                )
                .await
            }
            Kind::Job => {
                self.patch(workload, json!({ "spec": { "parallelism": count.max(1) } }))
                    .await;
                false
            }
            Kind::CronJob => {
                self.patch(
                    workload,
                    json!({ "spec": { "suspend": count.is_multiple_of(2) } }),
                )
                .await;
                false
            }
        };
        if done {
            self.asked.workloads.insert(workload, wanted);
        }
    }

    async fn delete(&mut self, workload: Workload, how: &PropagationPolicy) {
        let params = DeleteParams {
            propagation_policy: Some(how.clone()),
            ..DeleteParams::default()
        };
        if self
            .api(workload)
            .delete(workload.name, &params)
            .await
            .is_ok()
        {
            self.asked.workloads.remove(&workload);
            if matches!(how, PropagationPolicy::Orphan) {
                self.asked.orphaned.insert(workload);
            }
        }
    }

    async fn serve(&mut self, workload: Workload) {
        let name = workload.name;
        let namespace = workload.namespace;
        let metadata = json!({ "name": name, "namespace": namespace });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": { "selector": { "app": name }, "ports": [{ "port": 80 }] },
        });
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
            "spec": { "selector": { "matchLabels": { "app": name } }, "minAvailable": 1 },
        });
        let serves = self.put(namespace, ("v1", "Service"), &service).await;
        if serves
            && self
                .put(namespace, ("policy/v1", "PodDisruptionBudget"), &budget)
                .await
        {
            self.asked.served.insert(workload);
        }
    }

    async fn stop_serving(&mut self, workload: Workload) {
        if self.asked.served.remove(&workload) {
            for type_ in [("v1", "Service"), ("policy/v1", "PodDisruptionBudget")] {
                let deleted = self
                    .api_of(workload.namespace, type_)
                    .delete(workload.name, &Default::default())
                    .await;
                deleted.unwrap_or_else(|error| panic!("cannot delete {workload:?}: {error}"));
            }
        }
    }

    async fn delete_pod(&self, namespace: &str, which: u64, haste: Haste) {
        let Some(pod) = self.pick(namespace, which, |_| true).await else {
            return;
        };
        let grace_period_seconds = (haste == Haste::AtOnce).then_some(0);
        let params = DeleteParams {
            grace_period_seconds,
            ..DeleteParams::default()
        };
        gone_or_done(
            self.world
                .within::<Pod>(namespace)
                .delete(&pod.name_any(), &params)
                .await,
        );
    }

    async fn relabel_pod(&self, namespace: &str, which: u64) {
        // A member of a stateful set that leaves it keeps its name, and nobody can follow it.
        let may_leave = |pod: &Pod| {
            bellerophon::controller_of(pod)
                .is_some_and(|owner| ["ReplicaSet", "DaemonSet"].contains(&&*owner.kind))
        };
        let Some(pod) = self.pick(namespace, which, may_leave).await else {
            return;
        };
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "app": RELEASED } } }));
        gone_or_done(
            self.world
                .within::<Pod>(namespace)
                .patch(&pod.name_any(), &PatchParams::default(), &patch)
                .await,
        );
    }

    async fn pick(&self, namespace: &str, which: u64, so: impl Fn(&Pod) -> bool) -> Option<Pod> {
        let mut pods = self
            .world
            .within::<Pod>(namespace)
            .list(&Default::default())
            .await
            .expect("pods")
            .items;
        pods.retain(so);
        let which = usize::try_from(which)
            .expect("it is small")
            .checked_rem(pods.len())?;
        Some(pods.swap_remove(which))
    }

    async fn delete_namespace(&mut self, namespace: &str) {
        gone_or_done(
            self.world
                .all::<Namespace>()
                .delete(namespace, &Default::default())
                .await,
        );
        self.asked
            .workloads
            .retain(|workload, _| workload.namespace != namespace);
        self.asked
            .served
            .retain(|workload| workload.namespace != namespace);
        self.asked
            .orphaned
            .retain(|workload| workload.namespace != namespace);
        self.asked.namespaces.remove(namespace);
    }

    fn operate(&self, operation: impl FnOnce(&Nodes) -> Result<(), UnknownNode>) {
        if self.runs {
            operation(
                self.world
                    .cluster()
                    .nodes()
                    .expect("this cluster has nodes"),
            )
            .expect("every history is about its own nodes");
        }
    }

    /// Applies an object, in a namespace that is made if it is not there. Says whether it is there to stay.
    async fn put(&mut self, namespace: &'static str, type_: (&str, &str), object: &Value) -> bool {
        if !self.make(namespace).await {
            return false;
        }
        let name = object["metadata"]["name"].as_str().expect("a name");
        let applied = self
            .api_of(namespace, type_)
            .patch(
                name,
                &PatchParams::apply("test").force(),
                &Patch::Apply(object),
            )
            .await;
        let there = applied.unwrap_or_else(|error| panic!("cannot apply {object}: {error}"));
        there.metadata.deletion_timestamp.is_none()
    }

    /// Makes a namespace; says whether it can be used, which it cannot while it goes.
    async fn make(&mut self, namespace: &'static str) -> bool {
        let made = self.world.apply(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })).await;
        let stays = made.metadata.deletion_timestamp.is_none();
        if stays {
            self.asked.namespaces.insert(namespace);
        }
        stays
    }

    async fn patch(&self, workload: Workload, patch: Value) {
        gone_or_done(
            self.api(workload)
                .patch(workload.name, &PatchParams::default(), &Patch::Merge(patch))
                .await,
        );
    }

    fn api(&self, workload: Workload) -> Api<DynamicObject> {
        self.api_of(workload.namespace, workload.type_())
    }

    fn api_of(&self, namespace: &str, (api_version, kind): (&str, &str)) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Api::namespaced_with(
            self.world.client.clone(),
            namespace,
            &resource(group, version, kind),
        )
    }
}

/// The label of pods that were taken from their owners.
const RELEASED: &str = "released";

fn released() -> kube::api::ListParams {
    kube::api::ListParams::default().labels(&format!("app={RELEASED}"))
}

/// What is gone already need not be changed.
fn gone_or_done<T>(answer: kube::Result<T>) {
    match answer {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => panic!("{error}"),
    }
}
