//! Executes actions and records the desired state.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_cluster::{Nodes, UnknownNode};
use bellerophon_testkit::TestCluster;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PropagationPolicy},
};
use serde_json::{Value, json};

use super::{
    action::{Action, DeleteMode},
    snapshot::resource,
    workload::{Kind, NAMESPACES, Workload, WorkloadSpec},
};

/// The state that the actions so far request.
#[derive(Debug, Default)]
pub(super) struct DesiredState {
    /// Existing workloads.
    pub(super) workloads: BTreeMap<Workload, WorkloadSpec>,
    /// Workloads with a Service and a PodDisruptionBudget.
    pub(super) exposed: BTreeSet<Workload>,
    /// Workloads whose dependents were orphaned by a deletion and may still exist.
    pub(super) orphaned: BTreeSet<Workload>,
    /// Existing namespaces.
    pub(super) namespaces: BTreeSet<&'static str>,
}

/// Executes a history on a test cluster.
pub(super) struct Driver {
    cluster: TestCluster,
    desired: DesiredState,
    /// Whether the controllers run.
    running: bool,
}

impl Driver {
    pub(super) async fn new(cluster: TestCluster) -> Self {
        let mut driver = Self {
            cluster,
            desired: DesiredState::default(),
            running: true,
        };
        for namespace in NAMESPACES {
            driver.ensure_namespace(namespace).await;
        }
        driver
    }

    /// Executes one action.
    pub(super) async fn execute(&mut self, action: &Action) {
        match action {
            Action::Apply(workload, spec) => self.apply(*workload, *spec).await,
            Action::Scale(workload, count) => self.scale(*workload, *count).await,
            Action::Delete(workload, policy) => self.delete(*workload, policy).await,
            Action::Expose(workload) => self.expose(*workload).await,
            Action::Unexpose(workload) => self.unexpose(*workload).await,
            Action::DeletePod(namespace, index, mode) => {
                self.delete_pod(namespace, *index, *mode).await
            }
            Action::RelabelPod(namespace, index) => self.relabel_pod(namespace, *index).await,
            Action::DeleteNamespace(namespace) => self.delete_namespace(namespace).await,
            Action::PowerOff(node) => self.operate(|nodes| nodes.power_off(node)),
            Action::Partition(node) => self.operate(|nodes| nodes.partition(node)),
            Action::Restore(node) => self.operate(|nodes| nodes.restore(node)),
            Action::Reboot(node) => self.operate(|nodes| nodes.reboot(node)),
            Action::Pause if self.running => {
                self.cluster.stop_controllers().await;
                self.running = false;
            }
            Action::Crash if self.running => {
                self.cluster.crash_controllers();
                self.running = false;
            }
            Action::Resume if !self.running => {
                self.cluster.start_controllers().await;
                self.running = true;
            }
            Action::Restart if self.running => self.cluster.restart_controllers().await,
            Action::Pause | Action::Crash | Action::Resume | Action::Restart => {}
            Action::Pass(time) => self.cluster.advance(*time).await,
        }
    }

    /// Restarts controllers and nodes, and replaces templates that cannot run.
    pub(super) async fn recover(mut self) -> (TestCluster, DesiredState) {
        self.execute(&Action::Resume).await;
        let nodes = self
            .cluster
            .cluster()
            .nodes()
            .expect("this cluster has nodes")
            .names();
        nodes
            .iter()
            .for_each(|node| self.operate(|nodes| nodes.restore(node)));
        for (workload, spec) in self.desired.workloads.clone() {
            if spec.broken {
                self.apply(
                    workload,
                    WorkloadSpec {
                        broken: false,
                        ..spec
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
                .cluster
                .namespaced::<Pod>(namespace)
                .delete_collection(&Default::default(), &released())
                .await;
            released.expect("released pods are deleted");
        }
        (self.cluster, self.desired)
    }

    async fn apply(&mut self, workload: Workload, spec: WorkloadSpec) {
        // The template of a Job is immutable.
        if !workload.is_mutable() && self.desired.workloads.contains_key(&workload) {
            return;
        }
        if self
            .put(
                workload.namespace,
                workload.type_(),
                &workload.manifest(spec),
            )
            .await
        {
            self.desired.workloads.insert(workload, spec);
        }
    }

    async fn scale(&mut self, workload: Workload, count: u64) {
        let Some(spec) = self.desired.workloads.get(&workload).copied() else {
            return;
        };
        let spec = WorkloadSpec { count, ..spec };
        let scaled = match workload.kind {
            Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet => {
                let patch = Patch::Merge(json!({ "spec": { "replicas": count } }));
                let result = self
                    .api(workload)
                    .patch_scale(workload.name, &PatchParams::default(), &patch)
                    .await;
                result.is_ok()
            }
            Kind::DaemonSet => {
                self.put(
                    workload.namespace,
                    workload.type_(),
                    &workload.manifest(spec),
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
        if scaled {
            self.desired.workloads.insert(workload, spec);
        }
    }

    async fn delete(&mut self, workload: Workload, policy: &PropagationPolicy) {
        let params = DeleteParams {
            propagation_policy: Some(policy.clone()),
            ..DeleteParams::default()
        };
        if self
            .api(workload)
            .delete(workload.name, &params)
            .await
            .is_ok()
        {
            self.desired.workloads.remove(&workload);
            if matches!(policy, PropagationPolicy::Orphan) {
                self.desired.orphaned.insert(workload);
            }
        }
    }

    async fn expose(&mut self, workload: Workload) {
        let name = workload.name;
        let namespace = workload.namespace;
        let metadata = json!({ "name": name, "namespace": namespace });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": { "selector": { "app": name }, "ports": [{ "port": 80 }] },
        });
        let pdb = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
            "spec": { "selector": { "matchLabels": { "app": name } }, "minAvailable": 1 },
        });
        let service_exists = self.put(namespace, ("v1", "Service"), &service).await;
        if service_exists
            && self
                .put(namespace, ("policy/v1", "PodDisruptionBudget"), &pdb)
                .await
        {
            self.desired.exposed.insert(workload);
        }
    }

    async fn unexpose(&mut self, workload: Workload) {
        if self.desired.exposed.remove(&workload) {
            for type_ in [("v1", "Service"), ("policy/v1", "PodDisruptionBudget")] {
                let deleted = self
                    .api_of(workload.namespace, type_)
                    .delete(workload.name, &Default::default())
                    .await;
                deleted.unwrap_or_else(|error| panic!("cannot delete {workload:?}: {error}"));
            }
        }
    }

    async fn delete_pod(&self, namespace: &str, index: u64, mode: DeleteMode) {
        let Some(pod) = self.pick(namespace, index, |_| true).await else {
            return;
        };
        let grace_period_seconds = (mode == DeleteMode::Force).then_some(0);
        let params = DeleteParams {
            grace_period_seconds,
            ..DeleteParams::default()
        };
        ignore_gone(
            self.cluster
                .namespaced::<Pod>(namespace)
                .delete(&pod.name_any(), &params)
                .await,
        );
    }

    async fn relabel_pod(&self, namespace: &str, index: u64) {
        // A released pod of a StatefulSet keeps its name, which blocks its replacement.
        let can_be_released = |pod: &Pod| {
            bellerophon::owner::controller_of(pod)
                .is_some_and(|owner| ["ReplicaSet", "DaemonSet"].contains(&&*owner.kind))
        };
        let Some(pod) = self.pick(namespace, index, can_be_released).await else {
            return;
        };
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "app": RELEASED } } }));
        ignore_gone(
            self.cluster
                .namespaced::<Pod>(namespace)
                .patch(&pod.name_any(), &PatchParams::default(), &patch)
                .await,
        );
    }

    async fn pick(
        &self,
        namespace: &str,
        index: u64,
        predicate: impl Fn(&Pod) -> bool,
    ) -> Option<Pod> {
        let mut pods = self
            .cluster
            .namespaced::<Pod>(namespace)
            .list(&Default::default())
            .await
            .expect("pods")
            .items;
        pods.retain(predicate);
        let index = usize::try_from(index)
            .expect("the index is below 1000")
            .checked_rem(pods.len())?;
        Some(pods.swap_remove(index))
    }

    async fn delete_namespace(&mut self, namespace: &str) {
        ignore_gone(
            self.cluster
                .all::<Namespace>()
                .delete(namespace, &Default::default())
                .await,
        );
        self.desired
            .workloads
            .retain(|workload, _| workload.namespace != namespace);
        self.desired
            .exposed
            .retain(|workload| workload.namespace != namespace);
        self.desired
            .orphaned
            .retain(|workload| workload.namespace != namespace);
        self.desired.namespaces.remove(namespace);
    }

    fn operate(&self, operation: impl FnOnce(&Nodes) -> Result<(), UnknownNode>) {
        if self.running {
            operation(
                self.cluster
                    .cluster()
                    .nodes()
                    .expect("this cluster has nodes"),
            )
            .expect("actions name existing nodes");
        }
    }

    /// Applies an object and creates its namespace if necessary. Returns whether the object exists
    /// and is not terminating.
    async fn put(&mut self, namespace: &'static str, type_: (&str, &str), object: &Value) -> bool {
        if !self.ensure_namespace(namespace).await {
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
        let object = applied.unwrap_or_else(|error| panic!("cannot apply {object}: {error}"));
        object.metadata.deletion_timestamp.is_none()
    }

    /// Creates a namespace. Returns whether it is active.
    async fn ensure_namespace(&mut self, namespace: &'static str) -> bool {
        let applied = self
            .cluster
            .apply(json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": { "name": namespace },
            }))
            .await;
        let is_active = applied.metadata.deletion_timestamp.is_none();
        if is_active {
            self.desired.namespaces.insert(namespace);
        }
        is_active
    }

    async fn patch(&self, workload: Workload, patch: Value) {
        ignore_gone(
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
            self.cluster.client.clone(),
            namespace,
            &resource(group, version, kind),
        )
    }
}

/// Label value of released pods.
const RELEASED: &str = "released";

fn released() -> kube::api::ListParams {
    kube::api::ListParams::default().labels(&format!("app={RELEASED}"))
}

/// Ignores errors of objects that are gone.
fn ignore_gone<T>(result: kube::Result<T>) {
    match result {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => panic!("{error}"),
    }
}
