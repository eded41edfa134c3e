//! The controller toolkit: from what happens on a Kubernetes API to what a controller does about it.

mod clock; // the one source of randomness and of wall-clock time
mod key; // the name of an object

mod fifo; // what changed, in order
mod informer; // one cache of a kind, for all who read it and all who are told
mod reflector; // keeps a cache equal to a list on a server
mod source; // where the objects of a kind come from

mod queue; // the border between noticing a change and acting on it

mod controller; // from changes to reconciles

mod leader; // of several processes, one works

mod metrics; // what a scrape tells
mod trace; // what happened, in one order

pub use clock::{Entropy, WallClock};
pub use key::ObjectKey;

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

pub use controller::{
    Controller, ControllerBuilder, ControllerError, ControllerOptions, Failure, Outcome, Predicate, Reconcile, ReconcileResult, Request,
    Trigger, Writes,
};
pub use leader::{LeaderElector, LeaderError, LeaderOptions, Term};

pub use metrics::Metrics;
pub use trace::{TraceBatch, TraceBus, TraceEvent, TraceRecord};
