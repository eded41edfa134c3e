//! The controller toolkit: from what happens on a Kubernetes API to what a controller does about it.
//!
//! ```text
//! API server → source → reflector → fifo → informer (cache, indexes) ─→ listers ─────────┐
//!                                             └→ handlers → work queue → workers → your reconcile → API server
//! ```
//!
//! A [`SharedInformer`] keeps a cache of one kind equal to the server's list. A [`Controller`] turns its changes into keys
//! in a [`WorkQueue`], and its workers call your reconcile for one key at a time. A [`Manager`] starts and stops it all.
//!
//! ```no_run
//! use bellerophon::{Controller, InformerOptions, Manager, ManagerOptions, Outcome, Request, SharedInformer};
//! use k8s_openapi::api::core::v1::ConfigMap;
//!
//! # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let maps = SharedInformer::<ConfigMap>::new(client.clone(), (), InformerOptions::default());
//! let controller = Controller::of(&maps).workers(2).reconcile_with(async |request: Request<ConfigMap>| {
//!     println!("{} because {}", request.key, request.causes);
//!     Ok(Outcome::Done)
//! });
//! Manager::new(client, ManagerOptions::default()).cache(&maps).controller(controller).run_until_signal().await?;
//! # Ok(())
//! # }
//! ```

mod clock; // the one source of randomness and of wall-clock time
mod key; // the name of an object
mod locks; // those of the operating system, and in tests of a scheduler that tries interleavings

mod cached; // an object as a cache keeps it
mod factory; // one informer a kind, for a whole program
mod fifo; // what changed, in order
mod informer; // one cache of a kind, for all who read it and all who are told
mod reflector; // keeps a cache equal to a list on a server
mod source; // where the objects of a kind come from

mod queue; // the border between noticing a change and acting on it

mod controller; // from changes to reconciles

mod apply; // writes that are noted
mod conditions; // what is true of an object, and since when
mod finalizer; // cleaning up before an object goes
mod owner; // which object another one belongs to

mod leader; // of several processes, one works
mod manager; // starts and stops everything in order

mod events; // what people are told about an object
mod metrics; // what a scrape tells
mod trace; // what happened, in one order

pub use clock::{Entropy, WallClock};
pub use key::ObjectKey;

pub use factory::{FactoryNamespaces, FactoryOptions, InformerLease, SharedInformerFactory};
pub use informer::{
    AlreadyRun, CacheForm, EventHandler, HandlerHandle, HandlerOptions, IndexError, InformerOptions, InformerStats, Lister, Namespaces,
    SharedInformer, SyncError, Tombstone, Transform,
};
pub use reflector::InitialList;
pub use source::{
    EventStream, KubeListWatch, ListRequest, ListWatch, Page, Received, SourceError, SourceEvent, Undecodable, WatchFrom, WatchRequest,
};

pub use queue::{
    AddOpts, Backoff, Bucket, CAUSES_MAX, Cause, CauseEvent, Causes, Item, Line, Priority, QueueObserver, QueueOptions, QueueStats,
    RateLimit, WorkQueue,
};

pub use apply::{Done, WriteError, difference};
pub use conditions::{ConditionStatus, SetCondition, is_condition_true, remove_condition, set_condition};
pub use controller::{
    Controller, ControllerBuilder, ControllerError, ControllerOptions, Failure, Order, Outcome, Predicate, Reconcile, ReconcileResult,
    Request, Trigger, Writes,
};
pub use finalizer::Step;
pub use leader::{LeaderElector, LeaderError, LeaderOptions, Term};
pub use manager::{Check, Health, Manager, ManagerError, ManagerOptions};

pub use events::{EventRecorder, EventType, EventWriter, Note, WAITING_MAX};
pub use metrics::{CountRequests, Metrics};
pub use owner::{OwnerError, controller_of, set_controller_reference, set_controller_reference_of_kind, set_owner_reference};
pub use trace::{Because, TraceBatch, TraceBus, TraceEvent, TraceReader, TraceRecord, TracedReconcile, Why};
