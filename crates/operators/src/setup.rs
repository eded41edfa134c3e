//! Informers, event recorders and options for the controllers of operators.
//!
//! Inputs: a client and options. Outputs: shared informers, event recorders, controller options.
//!
//! Guarantee: one informer per resource for all operators of a process, alive until the manager
//! ends.

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

/// What all controllers of a process share.
pub struct Setup {
    /// The client of all reads and writes.
    pub client: Client,
    /// The wall clock for timestamps in objects.
    pub clock: WallClock,
    pub(crate) factory: SharedInformerFactory,
    identity: String,
    feature_switches: BTreeSet<String>,
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
        let namespaces = match &options.namespace {
            Some(namespace) => FactoryNamespaces::Named([namespace.clone()].into()),
            None => FactoryNamespaces::All,
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
            feature_switches: options.feature_switches.clone(),
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

    /// The shared informer of a namespaced resource in the watched namespaces.
    pub fn informer<K>(&self) -> SharedInformer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.keep(self.factory.informer((), InformerOptions::default()))
    }

    /// The shared informer of a cluster-scoped resource, or of a namespaced one in all namespaces.
    pub fn cluster_informer<K>(&self) -> SharedInformer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.cluster_informer_with(InformerOptions::default())
    }

    /// As [`cluster_informer`](Self::cluster_informer), with options. Calls with equal selectors
    /// share one informer.
    pub fn cluster_informer_with<K>(&self, options: InformerOptions<K>) -> SharedInformer<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
    {
        self.keep(self.factory.cluster_informer((), options))
    }

    /// Indexes objects by the UID of their controller owner, as [`BY_CONTROLLER`]. Repeated calls
    /// add the index once.
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

    /// An event recorder for a controller.
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

    /// Whether a feature switch is on.
    pub fn is_enabled(&self, feature_switch: &str) -> bool {
        self.feature_switches.contains(feature_switch)
    }

    /// The options of a controller with this name.
    pub fn options(&self, name: &str) -> ControllerOptions {
        ControllerOptions {
            name: Some(name.to_owned()),
            ..self.options.clone()
        }
    }

    /// Adds the event writers to the manager, and keeps the informer leases until it ends.
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
