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
//!
//! # What each part promises
//!
//! | part | promise |
//! |---|---|
//! | [`SharedInformer`], [`Lister`] | the cache follows the server through cut watches and forgotten versions; what vanished meanwhile is reported once; objects are shared and never change |
//! | [`SharedInformerFactory`] | one informer a kind and selection for a whole program, in namespaces that may change |
//! | [`WorkQueue`] | a key is never with two workers, and what changes while it runs brings it back once; delays, back-off, priorities without starvation, [lines](Line) for tenants; every entry knows its [causes](Causes) |
//! | [`Controller`] | a change that passes its [predicate](Predicate) leads to a reconcile that begins after it; a deletion always does; one failing, slow or panicking object delays no other |
//! | [`Writes`] | what a reconcile wrote is in its caches before the same object is reconciled again; [finalizers](Writes::finalizer), [server-side apply](Writes::apply), [create or patch](Writes::create_or_patch) |
//! | [`Manager`] | starts and stops everything in order, and owns every task; a standby is warm |
//! | [`LeaderElector`] | of several processes one works, and it stops before another may begin; each [`Term`] has a number that a store can hold against late writes |
//! | [`EventRecorder`] | recording never waits; repetitions become a series; one object cannot flood the cluster |
//! | [`Metrics`] | the names and labels of client-go and controller-runtime |
//! | [`TraceBus`] | [why](TraceBus::why) an object was reconciled and what that did, across all controllers of a process |
//!
//! # Kinds known at run time
//!
//! Informers and controllers take types that know their kind, `PartialObjectMeta<K>` for metadata alone, and
//! `DynamicObject` with an `ApiResource` found by discovery. [`Writes::of_kind`] writes the latter.
//!
//! # Tests that repeat
//!
//! Time is tokio's clock and randomness is one seeded [`Entropy`], so a test that pauses the clock runs hours in
//! milliseconds, and the same seed makes the same requests at the same times. A `kube::Client` takes any tower service:
//! an API server in the same process needs no socket.

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
    AlreadyRun, CacheForm, EventHandler, HandlerHandle, HandlerOptions, IndexError,
    InformerOptions, InformerStats, KeyChange, Lister, Namespaces, SharedInformer, SyncError,
    Tombstone, Transform,
};
pub use reflector::InitialList;
pub use source::{
    EventStream, KubeListWatch, ListRequest, ListWatch, Page, Received, SourceError, SourceEvent,
    Undecodable, WatchFrom, WatchRequest,
};

pub use queue::{
    AddOpts, Backoff, Bucket, CAUSES_MAX, Cause, CauseEvent, Causes, Item, Line, Priority,
    QueueObserver, QueueOptions, QueueStats, RateLimit, WorkQueue,
};

pub use apply::{Done, WriteError, difference};
pub use conditions::{
    ConditionStatus, SetCondition, is_condition_true, remove_condition, set_condition,
};
pub use controller::{
    Controller, ControllerBuilder, ControllerError, ControllerOptions, Failure, Order, Outcome,
    Predicate, Reconcile, ReconcileResult, Request, Trigger, Writes,
};
pub use finalizer::Step;
pub use leader::{LeaderElector, LeaderError, LeaderOptions, Term};
pub use manager::{Check, Health, Manager, ManagerError, ManagerOptions};

pub use events::{EventRecorder, EventType, EventWriter, Note, WAITING_MAX};
pub use metrics::{CountRequests, Metrics};
pub use owner::{
    OwnerError, controller_of, set_controller_reference, set_controller_reference_of_kind,
    set_owner_reference,
};
pub use trace::{
    Because, TraceBatch, TraceBus, TraceEvent, TraceReader, TraceRecord, TracedReconcile, Why,
};
