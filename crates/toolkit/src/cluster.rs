//! Cluster: what all components of a Manager share, as in controller-runtime: client, informers,
//! event recorders, metrics, trace and time.
//!
//! In: requests for informers, clients and recorders. Out: handles.
//! Guarantees: equal requests share one handle; every request to the API server is counted in
//! `rest_client_*`; informers are kept until the cluster is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use bellerophon_kinds::Kind;
use kube::Client;

use crate::client::RestMapper;
use crate::clock::{Clock, Rng};
use crate::events::{EventRecorder, EventWriter};
use crate::informer::{
    CacheMode, FactoryOptions, InformerHandle, InformerOptions, Namespaces, SetupErrors,
    SharedInformer, SharedInformerFactory,
};
use crate::metrics::{Metrics, client};
use crate::trace::Trace;

/// The clients of controllers by their names, for a Manager whose controllers act as different
/// users.
///
/// Informers are shared by controllers, so they use the client of the Manager.
///
/// ```
/// use bellerophon::client::connect;
/// use bellerophon::manager::{ControllerClients, ManagerOptions};
/// use kube::Config;
///
/// fn options(config: Config) -> ManagerOptions {
///     let clients = ControllerClients::new(move |controller| {
///         let mut config = config.clone();
///         let user = format!("system:serviceaccount:heroes:{controller}");
///         config.auth_info.impersonate = Some(user);
///         connect(config).expect("the configuration is valid")
///     });
///     ManagerOptions {
///         controller_clients: Some(clients),
///         ..ManagerOptions::default()
///     }
/// }
/// ```
#[derive(Clone)]
pub struct ControllerClients(Arc<dyn Fn(&str) -> Client + Send + Sync>);

impl ControllerClients {
    /// Clients that a function returns. It is called several times for a controller.
    pub fn new(client_of: impl Fn(&str) -> Client + Send + Sync + 'static) -> Self {
        Self(Arc::new(client_of))
    }

    fn of(&self, controller: &str) -> Client {
        (self.0)(controller)
    }
}

impl fmt::Debug for ControllerClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerClients").finish_non_exhaustive()
    }
}

/// Settings of a [`Cluster`].
pub(crate) struct ClusterOptions {
    /// The label of requests whose URL has no host.
    pub(crate) host: String,
    /// The `reportingInstance` of events.
    pub(crate) identity: String,
    pub(crate) namespaces: Namespaces,
    pub(crate) cache_mode: Option<CacheMode>,
    pub(crate) controller_clients: Option<ControllerClients>,
    pub(crate) metrics: Metrics,
    pub(crate) trace: Trace,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
}

/// A cluster, as the components of a Manager use it.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) factory: SharedInformerFactory,
    /// Kept so that informers run until the Manager stops.
    pub(crate) informers: Vec<Arc<InformerHandle>>,
    /// The writers of `recorders`.
    pub(crate) writers: Vec<EventWriter>,
    /// The mistakes of the setup.
    pub(crate) errors: SetupErrors,
    options: ClusterOptions,
    mapper: RestMapper,
    recorders: BTreeMap<(String, Option<String>), EventRecorder>,
}

impl Cluster {
    pub(crate) fn new(client: Client, options: ClusterOptions) -> Self {
        // Wrapped once, here: informers, controllers, recorders and the elector all use this
        // client.
        let client = client::counted(client, &options.metrics, options.host.clone());
        let errors = SetupErrors::collected();
        let factory_options = FactoryOptions {
            namespaces: options.namespaces.clone(),
            cache_mode: options.cache_mode,
            metrics: options.metrics.clone(),
            trace: options.trace.clone(),
            rng: options.rng.clone(),
        };
        let factory = SharedInformerFactory::new(client.clone(), factory_options, errors.clone());
        Self {
            mapper: RestMapper::new(client.clone()),
            client,
            factory,
            informers: Vec::new(),
            writers: Vec::new(),
            errors,
            options,
            recorders: BTreeMap::new(),
        }
    }

    /// The informer of a kind and selection, requested at this location.
    pub(crate) fn informer_at<K: Kind>(
        &mut self,
        options: InformerOptions<K>,
        location: &'static Location<'static>,
    ) -> SharedInformer<K> {
        let informer = self.factory.informer_at(options, location);
        self.keep(&informer.handle);
        informer
    }

    fn keep(&mut self, handle: &Arc<InformerHandle>) {
        if handle.informer.codec.resource().is_none() {
            // The resource of a dynamic informer is known from its options; writes of such objects
            // then need no discovery.
            self.mapper.add(&handle.informer.resource);
        }
        if !self.informers.iter().any(|kept| Arc::ptr_eq(kept, handle)) {
            self.informers.push(handle.clone());
        }
    }

    /// The client of a controller, by [`ControllerClients`]; default: that of the cluster.
    pub(crate) fn client_of(&self, controller: &str) -> Client {
        let options = &self.options;
        match &options.controller_clients {
            Some(clients) => {
                let client = clients.of(controller);
                client::counted(client, &options.metrics, options.host.clone())
            }
            None => self.client.clone(),
        }
    }

    /// The recorder of a controller, and of a user agent of its requests.
    pub(crate) fn recorder(&mut self, controller: &str, user_agent: Option<&str>) -> EventRecorder {
        let id = (controller.to_owned(), user_agent.map(str::to_owned));
        if let Some(recorder) = self.recorders.get(&id) {
            return recorder.clone();
        }
        let client = self.client_of(controller);
        let client = match user_agent {
            Some(agent) => client::with_user_agent(&client, agent),
            None => client,
        };
        let options = &self.options;
        let (recorder, writer) = EventRecorder::new(
            client,
            controller,
            &*options.identity,
            options.clock,
            options.rng.clone(),
        );
        options.metrics.track_recorder(&recorder);
        self.writers.push(writer);
        self.recorders.insert(id, recorder.clone());
        recorder
    }

    pub(crate) fn rest_mapper(&self) -> &RestMapper {
        &self.mapper
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.options.metrics
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.options.trace
    }

    pub(crate) fn clock(&self) -> Clock {
        self.options.clock
    }

    pub(crate) fn rng(&self) -> &Rng {
        &self.options.rng
    }
}
