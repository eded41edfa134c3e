//! The controller toolkit: from what happens on a Kubernetes API to what a controller does about it.

mod clock; // the one source of randomness and of wall-clock time
mod key; // the name of an object

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
    AlreadyRun, EventHandler, HandlerHandle, HandlerOptions, IndexError, InformerOptions, InformerStats, Lister, Namespaces,
    SharedInformer, SyncError, Tombstone, Transform,
};
pub use reflector::InitialList;
pub use source::{
    EventStream, KubeListWatch, ListRequest, ListWatch, Page, SourceError, SourceEvent, Undecodable, WatchFrom, WatchRequest,
};

pub use queue::{
    AddOpts, Backoff, Bucket, CAUSES_MAX, Cause, CauseEvent, Causes, Item, Priority, QueueObserver, QueueOptions, QueueStats, RateLimit,
    WorkQueue,
};

pub use apply::{Done, WriteError};
pub use conditions::{ConditionStatus, SetCondition, is_condition_true, remove_condition, set_condition};
pub use controller::{
    Controller, ControllerBuilder, ControllerError, ControllerOptions, Failure, Outcome, Predicate, Reconcile, ReconcileResult, Request,
    Trigger, Writes,
};
pub use finalizer::Step;
pub use leader::{LeaderElector, LeaderError, LeaderOptions, Term};
pub use manager::{Check, Health, Manager, ManagerError, ManagerOptions};

pub use events::{EventRecorder, EventType, EventWriter, Note, WAITING_MAX};
pub use metrics::Metrics;
pub use owner::{OwnerError, set_controller_reference, set_owner_reference};
pub use trace::{TraceBatch, TraceBus, TraceEvent, TraceRecord};
