//! The operator on an embedded API server, with the model of the store and a kubelet of the test.
//!
//! The kubelet is a separate controller: it runs Pods as soon as their claims exist, ends backups
//! and restores, and removes Pods that are deleted.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bellerophon::{
    client::{ReconcileClient, WriteOptions},
    prelude::*,
    testing,
};
use bellerophon_hero::{
    Bellerophon, OPERATOR,
    crd::{BellerophonStatus, Phase},
    member_api::{AdminRequest, AdminResponse, MemberApi, MemberError, Target},
    names,
};
use bellerophon_store_client::api::Status;
use bellerophon_testkit::{Account, OperatorFixture, TestCluster, WriteCounter, wait_until};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::store_model::{Process, StoreModel};

pub(crate) const FIXTURE: OperatorFixture = OperatorFixture::new(OPERATOR);

/// The checksum of all backups of the test.
const CHECKSUM: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// The revision of all backups of the test.
pub(crate) const BACKUP_REVISION: u64 = 77;

thread_local! {
    /// The model and the kubelet of the current test cluster. A test has one thread.
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

struct Current {
    members: Arc<ModelMembers>,
    kubelet: Option<AbortOnDropHandle<()>>,
}

/// The members of the model, by the Pods that run.
pub(crate) struct ModelMembers {
    client: ReconcileClient,
    model: Mutex<StoreModel>,
    /// Requests that change the store are writes of the operator.
    writes: WriteCounter,
    /// The processes at an instant: the statuses of one observation share them.
    latest: Mutex<Option<(Instant, BTreeMap<String, Process>)>>,
    /// Whether Pods of backups and restores run without an end.
    are_tasks_held: AtomicBool,
}

impl ModelMembers {
    /// Lets Pods of backups and restores run without an end.
    pub(crate) fn hold_tasks(&self) {
        self.are_tasks_held.store(true, Ordering::Relaxed);
    }

    /// Lets later Pods of backups and restores end.
    pub(crate) fn release_tasks(&self) {
        self.are_tasks_held.store(false, Ordering::Relaxed);
    }

    /// Changes the model.
    pub(crate) fn with_model<T>(&self, change: impl FnOnce(&mut StoreModel) -> T) -> T {
        change(&mut self.model.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The processes of running Pods. Virtual time is paused during an observation.
    async fn processes(&self, namespace: &str) -> BTreeMap<String, Process> {
        let now = Instant::now();
        let latest = self
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((_, processes)) = latest.filter(|(at, _)| *at == now) {
            return processes;
        }
        let processes = self.list_processes(namespace).await;
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some((now, processes.clone()));
        processes
    }

    async fn list_processes(&self, namespace: &str) -> BTreeMap<String, Process> {
        let params = ListParams::default().labels(names::HERO_LABEL);
        let pods = self
            .client
            .list::<Pod>(Some(namespace), &params)
            .await
            .expect("a list");
        let claims = self
            .client
            .list::<PersistentVolumeClaim>(Some(namespace), &params)
            .await;
        let claims: BTreeMap<String, String> = claims
            .expect("a list")
            .iter()
            .map(|claim| (claim.name_any(), claim.uid().unwrap_or_default()))
            .collect();
        let is_running = |pod: &&Arc<Pod>| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            phase == Some("Running")
                && pod.labels()[names::COMPONENT_LABEL] == names::MEMBER_COMPONENT
        };
        let process = |pod: &Arc<Pod>| {
            let image = pod.spec.as_ref()?.containers.first()?.image.clone()?;
            let version = image.rsplit(':').next()?.to_owned();
            let level_max = if version.starts_with("1.0") { 1 } else { 2 };
            let claim = claims.get(&pod.name_any())?.clone();
            Some((
                pod.name_any(),
                Process {
                    claim,
                    version,
                    level_max,
                },
            ))
        };
        pods.iter().filter(is_running).filter_map(process).collect()
    }
}

impl MemberApi for ModelMembers {
    fn status<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Status, MemberError>> {
        Box::pin(async move {
            let processes = self.processes(&target.namespace).await;
            let process = processes.get(&target.pod);
            let process = process.ok_or_else(|| MemberError::new(target, "it does not run"))?;
            self.with_model(|model| {
                model.tick(&processes);
                model
                    .status(process)
                    .map_err(|error| MemberError::new(target, error))
            })
        })
    }

    fn send<'a>(
        &'a self,
        target: &'a Target,
        request: AdminRequest,
    ) -> BoxFuture<'a, Result<AdminResponse, MemberError>> {
        Box::pin(async move {
            let processes = self.processes(&target.namespace).await;
            let process = processes.get(&target.pod);
            let process = process.ok_or_else(|| MemberError::new(target, "it does not run"))?;
            let response = self.with_model(|model| {
                model
                    .send(process, &request, &processes)
                    .map_err(|error| MemberError::new(target, error))
            });
            if response.is_ok() {
                self.writes.count().await;
            }
            response
        })
    }
}

/// The members of the current test cluster.
pub(crate) fn members() -> Arc<ModelMembers> {
    CURRENT.with_borrow(|current| {
        current
            .as_ref()
            .expect("a cluster was set up")
            .members
            .clone()
    })
}

/// A Manager that runs the operator with the model.
pub(crate) fn operator(client: Client, options: ManagerOptions) -> Manager {
    let mut mgr = Manager::new(client, options);
    bellerophon_hero::setup(&mut mgr, members());
    mgr
}

/// A cluster with the CRDs, the operator's account, a model and a kubelet of the test.
pub(crate) async fn cluster() -> (TestCluster, Account) {
    let (cluster, account) = cluster_on(TestCluster::with_core_controllers().await).await;
    let options = ManagerOptions {
        clock: cluster.clock,
        ..testing::options(5)
    };
    let mut mgr = Manager::new(cluster.client.clone(), options);
    let kubelet = Kubelet { members: members() };
    mgr.controller::<Pod>().name("kubelet").reconcile(kubelet);
    let run = async move {
        // It ends with the cluster.
        _ = mgr.run_until(std::future::pending()).await;
    };
    let kubelet = AbortOnDropHandle::new(tokio::spawn(run));
    CURRENT.with_borrow_mut(|current| {
        current.as_mut().expect("a cluster was set up").kubelet = Some(kubelet);
    });
    (cluster, account)
}

/// A cluster with the CRDs, the operator's account and a model.
pub(crate) async fn cluster_on(cluster: TestCluster) -> (TestCluster, Account) {
    let account = FIXTURE.install_with_leader_election(&cluster).await;
    let members = Arc::new(ModelMembers {
        client: ReconcileClient::new(cluster.client.clone(), "test"),
        model: Mutex::new(StoreModel::new()),
        writes: account.write_counter(),
        latest: Mutex::default(),
        are_tasks_held: AtomicBool::new(false),
    });
    CURRENT.set(Some(Current {
        members,
        kubelet: None,
    }));
    (cluster, account)
}

/// Runs Pods.
struct Kubelet {
    members: Arc<ModelMembers>,
}

impl Reconciler<Pod> for Kubelet {
    async fn reconcile(&self, req: Request<Pod>) -> Result<Action, Error> {
        let Some(pod) = req.object() else {
            return Ok(Action::await_change());
        };
        if pod.metadata.deletion_timestamp.is_some() {
            let now = WriteOptions {
                grace_period_seconds: Some(0),
                precondition: Some(bellerophon::client::Precondition::Uid),
                ..WriteOptions::default()
            };
            req.client().with_options(now).delete(pod).await?;
            return Ok(Action::await_change());
        }
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if phase.is_some_and(|phase| phase != "Pending") {
            return Ok(Action::await_change());
        }
        let Some(status) = self.status_of(&req, pod).await? else {
            return Ok(Action::requeue_after(Duration::from_secs(1)));
        };
        let patch = Patch::Merge(json!({"status": status}));
        req.client()
            .subresource("status")
            .patch(pod, &patch)
            .await?;
        Ok(Action::await_change())
    }
}

impl Kubelet {
    /// The status of a Pod that can run; `None` if its claims do not exist.
    async fn status_of(&self, req: &Request<Pod>, pod: &Pod) -> Result<Option<Value>, Error> {
        let volumes = pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        let mut claims = BTreeMap::new();
        for volume in volumes {
            let Some(source) = &volume.persistent_volume_claim else {
                continue;
            };
            let key = ObjectKey::in_namespace_of(pod, &source.claim_name);
            let Some(claim) = req.client().get::<PersistentVolumeClaim>(&key).await? else {
                return Ok(None);
            };
            claims.insert(volume.name.clone(), claim.uid().unwrap_or_default());
        }
        let running = json!({"phase": "Running", "podIP": "10.0.0.1"});
        let ended = |message: &str| {
            let terminated = json!({"exitCode": 0, "message": message});
            json!({"phase": "Succeeded", "containerStatuses": [{
                "name": "backup", "image": "store", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": terminated},
            }]})
        };
        let is_held = self.members.are_tasks_held.load(Ordering::Relaxed);
        let status = match pod.labels().get(names::COMPONENT_LABEL).map(String::as_str) {
            Some(_) if is_held => running,
            Some(names::BACKUP_COMPONENT) => {
                let result = json!({"checksum": CHECKSUM, "revision": BACKUP_REVISION, "bytes": 1});
                ended(&result.to_string())
            }
            Some(names::RESTORE_COMPONENT) => {
                self.restore(pod, &claims["data"]);
                ended("")
            }
            _ => running,
        };
        Ok(Some(status))
    }

    /// Writes a data directory, as the command of the Pod does.
    fn restore(&self, pod: &Pod, claim: &str) {
        let arguments = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.containers[0].args.clone());
        let arguments = arguments.expect("a command");
        let value = |name: &str| {
            let position = arguments.iter().position(|argument| argument == name);
            arguments[position.unwrap_or_else(|| panic!("no {name}")) + 1].clone()
        };
        assert_eq!(value("--checksum"), CHECKSUM);
        let revision: u64 = value("--min-revision").parse().expect("a number");
        let id: u64 = value("--member-id").parse().expect("a number");
        self.members.with_model(|model| {
            model.restore(
                claim,
                &value("--cluster-id"),
                id,
                &value("--address"),
                revision,
            );
        });
    }
}

/// A Bellerophon.
pub(crate) fn hero(spec: Value) -> Value {
    named("icarus", spec)
}

/// A Bellerophon with a name.
pub(crate) fn named(name: &str, mut spec: Value) -> Value {
    spec["winged_horse_name"] = json!("pegasus");
    if spec["image"].is_null() {
        spec["image"] = json!("store:1.0.0");
    }
    json!({
        "apiVersion": "stable.bellerophon.io/v1beta7", "kind": "Bellerophon",
        "metadata": {"name": name},
        "spec": spec,
    })
}

/// Waits until the status of `icarus` meets a condition.
pub(crate) async fn wait_for(
    client: &Client,
    what: &str,
    condition: impl Fn(&BellerophonStatus) -> bool,
) -> BellerophonStatus {
    wait_for_named(client, "icarus", what, condition).await
}

/// Waits until the status of a store meets a condition.
pub(crate) async fn wait_for_named(
    client: &Client,
    name: &str,
    what: &str,
    condition: impl Fn(&BellerophonStatus) -> bool,
) -> BellerophonStatus {
    let heroes = Api::<Bellerophon>::namespaced(client.clone(), "default");
    let found = wait_until(&heroes, what, |heroes| {
        heroes.iter().any(|hero| {
            let status = hero.status.as_ref();
            let is_observed =
                status.is_some_and(|status| status.observed_generation == hero.metadata.generation);
            hero.name_any() == name && is_observed && status.is_some_and(&condition)
        })
    })
    .await;
    let hero = found.into_iter().find(|hero| hero.name_any() == name);
    hero.and_then(|hero| hero.status).expect("a status")
}

/// Waits until `icarus` runs with this many voters.
pub(crate) async fn wait_until_running(client: &Client, voters: usize) -> BellerophonStatus {
    wait_for(client, &format!("{voters} voters run"), |status| {
        is_running(status, voters)
    })
    .await
}

/// Whether a store runs with this many voters, and nothing else.
pub(crate) fn is_running(status: &BellerophonStatus, voters: usize) -> bool {
    status.phase == Phase::Running
        && status.members.len() == voters
        && status.voters.len() == voters
}

/// Panics if the model has recorded a violation.
pub(crate) fn check_model() {
    members().with_model(|model| assert_eq!(model.violations, [""; 0]));
}
