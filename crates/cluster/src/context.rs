//! Context: what every loop is given.
//!
//! In: the settings of a cluster. Out: clients, shared caches, recorders of events, controller options.
//! Holds: one informer a kind for all loops, kept until the cluster stops; everything random comes from one seed.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use bellerophon::{
    CacheForm, Controller, ControllerOptions, Entropy, EventRecorder, FactoryOptions,
    InformerOptions, Metrics, SharedInformer, SharedInformerFactory, TraceBus, Transform,
    WallClock,
};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{component::Component, trim::trim_pod};

/// Why work in the background ended early.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Work that runs until its token is cancelled.
pub(crate) type Work =
    Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), BoxError>> + Send>;

/// One loop of the cluster.
pub(crate) enum Loop {
    /// A controller of the toolkit.
    Controller(Controller),
    /// A loop that is more than keys and reconciles. It starts when the shared caches are synced.
    Background { name: &'static str, work: Work },
}

impl Loop {
    /// A loop that is more than keys and reconciles.
    pub(crate) fn background<F>(
        name: &'static str,
        work: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self::Background {
            name,
            work: Box::new(move |stop| Box::pin(work(stop))),
        }
    }
}

impl From<Controller> for Loop {
    fn from(controller: Controller) -> Self {
        Self::Controller(controller)
    }
}

/// What every loop of one cluster shares.
pub(crate) struct Context {
    /// One informer a kind. Ask through [`Context::informer`], which keeps it alive.
    pub(crate) factory: SharedInformerFactory,
    /// The time of day that is written into objects.
    pub(crate) clock: WallClock,
    /// Where everything random comes from.
    pub(crate) entropy: Entropy,
    /// Where traces go.
    pub(crate) trace: TraceBus,
    /// Where metrics go.
    pub(crate) metrics: Metrics,
    /// What clients of the server trust, in PEM, for `kube-root-ca.crt`.
    pub(crate) root_ca: String,
    controller_manager: Client,
    scheduler: Client,
    kubelet: Client,
    kept: Mutex<Kept>,
}

/// What loops asked for while they were made.
#[derive(Default)]
pub(crate) struct Kept {
    /// Shares in informers, which end with the last of them.
    pub(crate) leases: Vec<Box<dyn Any + Send>>,
    /// Writers of events.
    pub(crate) writers: Vec<Loop>,
    /// What must be true before the cluster is ready, by name.
    pub(crate) awaited: Vec<(&'static str, watch::Receiver<bool>)>,
}

/// The settings of a cluster, which its builder gathers.
pub(crate) struct Settings {
    pub(crate) client: Client,
    pub(crate) clock: WallClock,
    pub(crate) entropy: Entropy,
    pub(crate) trace: TraceBus,
    pub(crate) metrics: Metrics,
    pub(crate) root_ca: String,
}

impl Context {
    pub(crate) fn new(settings: Settings) -> Self {
        let Settings {
            client,
            clock,
            entropy,
            trace,
            metrics,
            root_ca,
        } = settings;
        let controller_manager = Component::ControllerManager.client(&client);
        let options = FactoryOptions {
            entropy: entropy.clone(),
            ..FactoryOptions::default()
        };
        Self {
            factory: SharedInformerFactory::new(controller_manager.clone(), options),
            clock,
            entropy,
            trace,
            metrics,
            root_ca,
            scheduler: Component::Scheduler.client(&client),
            kubelet: Component::Kubelet.client(&client),
            controller_manager,
            kept: Mutex::default(),
        }
    }

    /// The client through which loops of a component write.
    pub(crate) fn client(&self, component: Component) -> Client {
        match component {
            Component::ControllerManager => &self.controller_manager,
            Component::Scheduler => &self.scheduler,
            Component::Kubelet => &self.kubelet,
        }
        .clone()
    }

    /// The cache of a kind, in all namespaces: the same for every loop that asks.
    pub(crate) fn informer<K>(&self) -> SharedInformer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.informer_with(InformerOptions::default())
    }

    /// The cache of all pods, without what no loop reads.
    pub(crate) fn pods(&self) -> SharedInformer<Pod> {
        self.informer_with(InformerOptions {
            transform: Transform::by(trim_pod),
            ..InformerOptions::default()
        })
    }

    /// The cache of some objects of a kind. Loops with the same selectors share it. Objects are kept decoded: loops read the same
    /// ones at every turn, and some read all pods of an owner or all nodes at once.
    pub(crate) fn informer_with<K>(&self, options: InformerOptions<K>) -> SharedInformer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        let lease = self.factory.cluster_informer::<K>(
            (),
            InformerOptions {
                cache: CacheForm::Decoded,
                ..options
            },
        );
        let informer = SharedInformer::clone(&lease);
        self.keep(|kept| kept.leases.push(Box::new(lease)));
        informer
    }

    /// Tells people what a loop does, under the name users know it by, such as `replicaset-controller`.
    pub(crate) fn recorder(&self, component: Component, source: &'static str) -> EventRecorder {
        let (recorder, writer) = EventRecorder::new(
            self.client(component),
            source,
            component.name(),
            self.clock,
            self.entropy.clone(),
        );
        let write = Loop::background(source, |stop| async move {
            writer.run(stop).await;
            Ok(())
        });
        self.keep(|kept| kept.writers.push(write));
        recorder
    }

    /// The settings of a controller of that name.
    pub(crate) fn options(&self, name: &str, workers: usize) -> ControllerOptions {
        ControllerOptions {
            name: Some(name.to_owned()),
            workers,
            metrics: self.metrics.clone(),
            trace: self.trace.clone(),
            entropy: self.entropy.clone(),
            ..ControllerOptions::default()
        }
    }

    /// One more thing that must be true before the cluster is ready; the loop sends `true` when it is.
    pub(crate) fn awaited(&self, name: &'static str) -> Arc<watch::Sender<bool>> {
        let (sender, receiver) = watch::channel(false);
        self.keep(|kept| kept.awaited.push((name, receiver)));
        Arc::new(sender)
    }

    /// What loops asked for so far, once.
    pub(crate) fn take_kept(&self) -> Kept {
        self.keep(std::mem::take)
    }

    fn keep<T>(&self, change: impl FnOnce(&mut Kept) -> T) -> T {
        change(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
