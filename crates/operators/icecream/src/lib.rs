//! The Icecream operator: owns a Deployment and reports the nodes its pods run on.
//!
//! ```text
//! Icecream ─ owns → Deployment ─ owns → ReplicaSet ─ owns → Pod ─ runs on → node
//!     └────────────────────────── status.nodes ←───────────────────────────────┘
//! ```
//!
//! Each reconcile reads its caches, makes a plan and applies it. Pods are found by who owns them, not by labels.

mod crd; // the kind
mod plan; // what is to be done

pub use crd::{Icecream, IcecreamSpec, IcecreamStatus};

use std::sync::Arc;

use bellerophon::{
    Controller, EventRecorder, EventType, Failure, IndexError, Lister, Note, ObjectKey, Outcome,
    Predicate, ReconcileResult, Request, WallClock, controller_of,
};
use bellerophon_operator::{
    BY_CONTROLLER, Operator, Place, Rights, Setup, SetupError, Step, allow,
};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{Api, Client, CustomResourceExt as _, Resource, ResourceExt as _};
use thiserror::Error;
use tracing::info;

use crate::plan::{Plan, View, plan};

/// The operator, for whoever runs it.
pub const OPERATOR: Operator = Operator {
    name: "icecream",
    summary: "an Icecream owns a Deployment and reports the nodes its pods run on",
    definitions: || vec![Icecream::crd()],
    rights: || {
        let group = "controller.nicoleh.io";
        vec![
            allow(Rights::CACHE, group, "icecreams"),
            allow(&["patch"], group, "icecreams/status"),
            allow(
                &["list", "watch", "patch", "create", "delete"],
                "apps",
                "deployments",
            ),
            allow(Rights::CACHE, "apps", "replicasets"),
            allow(Rights::CACHE, "", "pods"),
        ]
    },
    guards: Vec::new,
    place: Place::Anywhere,
    switches: &[],
    controllers: |setup| Ok(vec![controller(setup)?]),
};

fn controller(setup: &Setup) -> Result<Controller, SetupError> {
    let (icecreams, deployments) = (setup.informer::<Icecream>(), setup.informer::<Deployment>());
    let (sets, pods) = (setup.informer::<ReplicaSet>(), setup.informer::<Pod>());
    setup.index_by_controller(&deployments)?;
    setup.index_by_controller(&sets)?;
    setup.index_by_controller(&pods)?;
    let chain = Chain {
        deployments: deployments.lister(),
        sets: sets.lister(),
        pods: pods.lister(),
    };
    let (of_set, of_pod) = (chain.clone(), chain.clone());
    let events = setup.recorder(OPERATOR.name);
    let shop = Arc::new(Shop {
        client: setup.client.clone(),
        clock: setup.clock,
        events,
        chain,
    });
    let moved = Predicate::changed(|old: &Pod, new: &Pod| {
        node_of(old) != node_of(new) || is_going(old) != is_going(new)
    });
    Ok(Controller::of(&icecreams)
        .with_predicate(Predicate::generation_changed())
        .owns(&deployments)
        .watches(&sets, move |set| {
            of_set.icecream_of_set(set).into_iter().collect()
        })
        .watches_if(&pods, moved, move |pod| {
            of_pod.icecream_of_pod(pod).into_iter().collect()
        })
        .with_options(setup.options(OPERATOR.name))
        .reconcile_with(move |request| shop.clone().reconcile(request)))
}

/// The way from an Icecream to its pods and back, by who owns whom.
#[derive(Clone)]
struct Chain {
    deployments: Lister<Deployment>,
    sets: Lister<ReplicaSet>,
    pods: Lister<Pod>,
}

impl Chain {
    /// The Icecream that a pod belongs to.
    fn icecream_of_pod(&self, pod: &Pod) -> Option<ObjectKey> {
        let set = self.sets.get(&owner_of::<ReplicaSet, _>(pod)?)?;
        (controller_of(pod)?.uid == set.uid()?).then(|| self.icecream_of_set(&set))?
    }

    /// The Icecream that a ReplicaSet belongs to.
    fn icecream_of_set(&self, set: &ReplicaSet) -> Option<ObjectKey> {
        let deployment = self.deployments.get(&owner_of::<Deployment, _>(set)?)?;
        if controller_of(set)?.uid != deployment.uid()? {
            return None;
        }
        owner_of::<Icecream, _>(&*deployment)
    }

    /// The pods of a Deployment.
    fn pods_of(&self, deployment: &Deployment) -> Result<Vec<Arc<Pod>>, IndexError> {
        let mut pods = Vec::new();
        for set in self
            .sets
            .by_index(BY_CONTROLLER, &deployment.uid().unwrap_or_default())?
        {
            pods.extend(
                self.pods
                    .by_index(BY_CONTROLLER, &set.uid().unwrap_or_default())?,
            );
        }
        Ok(pods)
    }
}

/// The key of what controls an object, if that is of the kind `O`.
fn owner_of<O: Resource<DynamicType = ()>, C: Resource>(child: &C) -> Option<ObjectKey> {
    let owner = controller_of(child)
        .filter(|owner| owner.kind == O::kind(&()) && owner.api_version == O::api_version(&()))?;
    Some(ObjectKey::beside(child, &owner.name))
}

/// The node a pod was scheduled on.
fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|node| !node.is_empty())
}

fn is_going(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The wanted name belongs to somebody else.
#[derive(Debug, Error)]
#[error("Resource {0:?} already exists and is not managed by Icecream")]
struct Taken(String);

/// Reads, plans, applies.
struct Shop {
    client: Client,
    clock: WallClock,
    events: EventRecorder,
    chain: Chain,
}

impl Shop {
    async fn reconcile(self: Arc<Self>, request: Request<Icecream>) -> ReconcileResult {
        // What an Icecream owned goes with it, by the owner reference.
        let Some(icecream) = request
            .object
            .clone()
            .filter(|icecream| icecream.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        if icecream.spec.deployment_name.is_empty() {
            // No other try helps until somebody names one.
            return Err(Failure::permanent(format!(
                "{}: deployment name must be specified",
                request.key
            )));
        }
        let (view, pods) = self.view(&icecream)?;
        let plan = plan(&view, self.clock.now()).map_err(Failure::permanent)?;
        self.apply(&request, &icecream, &plan).await?;
        if plan.writes() {
            tell_of(&pods);
            self.tell(
                &icecream,
                EventType::Normal,
                "Synced",
                "Icecream synced successfully".into(),
            );
        }
        info!("Successfully synced '{}'", request.key);
        Ok(Outcome::Done)
    }

    fn view<'a>(&self, icecream: &'a Icecream) -> Result<(View<'a>, Vec<Arc<Pod>>), IndexError> {
        let key = ObjectKey::beside(icecream, &icecream.spec.deployment_name);
        let owned = self
            .chain
            .deployments
            .by_index(BY_CONTROLLER, &icecream.uid().unwrap_or_default())?;
        let mut pods = Vec::new();
        for deployment in &owned {
            pods.extend(self.chain.pods_of(deployment)?);
        }
        pods.retain(|pod| !is_going(pod));
        let nodes = pods
            .iter()
            .filter_map(|pod| node_of(pod))
            .map(str::to_owned)
            .collect();
        Ok((
            View {
                icecream,
                named: self.chain.deployments.get(&key),
                owned,
                nodes,
            },
            pods,
        ))
    }

    async fn apply(
        &self,
        request: &Request<Icecream>,
        icecream: &Icecream,
        plan: &Plan,
    ) -> Result<(), Failure> {
        let namespace = icecream.namespace().unwrap_or_default();
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), &namespace);
        let writes = request.writes();
        if let Step::Apply(wanted) = &plan.step {
            writes.apply(&deployments, wanted).await?;
        }
        for former in &plan.remove {
            writes.delete(&deployments, &**former).await?;
        }
        if let Some(status) = &plan.status {
            let told = Icecream {
                status: Some(status.clone()),
                ..icecream.clone()
            };
            writes
                .apply_status(&Api::namespaced(self.client.clone(), &namespace), &told)
                .await?;
        }
        if plan.step == Step::Taken {
            let taken = Taken(icecream.spec.deployment_name.clone());
            self.tell(
                icecream,
                EventType::Warning,
                "ErrResourceExists",
                taken.to_string(),
            );
            return Err(Failure::retry(taken));
        }
        Ok(())
    }

    fn tell(&self, icecream: &Icecream, type_: EventType, reason: &str, note: String) {
        self.events.event(
            icecream,
            Note {
                type_,
                reason: reason.into(),
                action: "Synced".into(),
                note,
            },
        );
    }
}

/// Says on which node each pod runs.
fn tell_of(pods: &[Arc<Pod>]) {
    for pod in pods {
        match node_of(pod) {
            Some(node) => info!("Pod {} runs on node {node}", pod.name_any()),
            None => info!("Pod {} is not scheduled yet", pod.name_any()),
        }
    }
}
