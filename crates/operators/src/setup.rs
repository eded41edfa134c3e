//! What the controllers of an operator are made with.
//!
//! In: a client and options. Out: shared caches, recorders of events, settings of controllers.
//! Holds: one informer a kind for all operators of a process, kept until the manager ends.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use bellerophon::{
    ControllerOptions, EventRecorder, EventWriter, FactoryNamespaces, FactoryOptions, IndexError,
    InformerOptions, Manager, SharedInformer, SharedInformerFactory, WallClock, controller_of,
};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use crate::operator::RunOptions;

/// Why an operator could not be set up.
pub type SetupError = Box<dyn std::error::Error + Send + Sync>;

/// The index of [`Setup::index_by_controller`].
pub const BY_CONTROLLER: &str = "controller-uid";

/// What every controller of a process shares.
pub struct Setup {
    /// Reads and writes.
    pub client: Client,
    /// The time of day that is written into objects.
    pub clock: WallClock,
    pub(crate) factory: SharedInformerFactory,
    identity: String,
    switches: BTreeSet<String>,
    options: ControllerOptions,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    leases: Vec<Box<dyn Any + Send>>,
    writers: Vec<(String, EventWriter)>,
}

impl Setup {
    pub(crate) fn new(client: Client, options: &RunOptions) -> Self {
        let namespaces = options.namespace.iter().cloned().collect();
        let namespaces = if options.namespace.is_some() {
            FactoryNamespaces::Named(namespaces)
        } else {
            FactoryNamespaces::All
        };
        let entropy = options.manager.entropy.clone();
        Self {
            factory: SharedInformerFactory::new(
                client.clone(),
                FactoryOptions {
                    namespaces,
                    entropy: entropy.clone(),
                    trace: options.trace.clone(),
                },
            ),
            client,
            clock: options.manager.clock,
            identity: options.identity.clone(),
            switches: options.switches.clone(),
            options: ControllerOptions {
                workers: options.workers,
                metrics: options.manager.metrics.clone(),
                trace: options.trace.clone(),
                entropy,
                ..ControllerOptions::default()
            },
            kept: Mutex::default(),
        }
    }

    /// The cache of a namespaced kind, in the namespaces that are watched: the same for everyone who asks.
    pub fn informer<K>(&self) -> SharedInformer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.keep(self.factory.informer((), InformerOptions::default()))
    }

    /// The cache of a cluster-scoped kind, or of a namespaced one wherever its objects are.
    pub fn cluster_informer<K>(&self) -> SharedInformer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.cluster_informer_with(InformerOptions::default())
    }

    /// The cache of some objects of a cluster-scoped kind. Those who ask with the same selectors share it.
    pub fn cluster_informer_with<K>(&self, options: InformerOptions<K>) -> SharedInformer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.keep(self.factory.cluster_informer((), options))
    }

    /// Lets objects be found by the uid of what controls them, under [`BY_CONTROLLER`]. Whoever asks first adds the index.
    ///
    /// # Errors
    /// The index cannot be added.
    pub fn index_by_controller<K: Resource + Send + Sync + 'static>(
        &self,
        informer: &SharedInformer<K>,
    ) -> Result<(), SetupError> {
        let uid = |object: &K| {
            controller_of(object)
                .map(|owner| owner.uid.clone())
                .into_iter()
                .collect()
        };
        match informer.add_index(BY_CONTROLLER, uid) {
            Ok(()) | Err(IndexError::Exists(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells people what a controller does.
    pub fn recorder(&self, controller: &str) -> EventRecorder {
        let entropy = self.options.entropy.clone();
        let (recorder, writer) = EventRecorder::new(
            self.client.clone(),
            controller,
            &self.identity,
            self.clock,
            entropy,
        );
        self.kept().writers.push((controller.to_owned(), writer));
        recorder
    }

    /// Whether a switch is on.
    pub fn is_on(&self, switch: &str) -> bool {
        self.switches.contains(switch)
    }

    /// The settings of a controller of that name.
    pub fn options(&self, name: &str) -> ControllerOptions {
        ControllerOptions {
            name: Some(name.to_owned()),
            ..self.options.clone()
        }
    }

    /// Gives the manager what else has to run, and what has to live as long as it.
    pub(crate) fn finish(self, manager: Manager) -> Manager {
        let Kept { leases, writers } = self
            .kept
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let manager = writers
            .into_iter()
            .fold(manager, |manager, (controller, writer)| {
                manager.background(format!("events of {controller}"), |stop| async move {
                    writer.run(stop).await;
                    Ok(())
                })
            });
        manager.background("caches", |stop| async move {
            stop.cancelled().await;
            drop(leases);
            Ok(())
        })
    }

    fn keep<K: Send + Sync + 'static>(
        &self,
        lease: bellerophon::InformerLease<K>,
    ) -> SharedInformer<K>
    where
        SharedInformer<K>: Clone,
    {
        let informer = SharedInformer::clone(&lease);
        self.kept().leases.push(Box::new(lease));
        informer
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
