//! The controller toolkit: from events of a Kubernetes API server to reconciles.
//!
//! ```text
//! API server → list and watch → reflector → delta FIFO → informer (store, indexes)
//!     ┌───────────────────────────────────────────────────┴────────────────┐
//! handlers → work queue → workers → your reconciler → API server        listers
//!                                          ↑                               │
//!                                          └──────────── reads ────────────┘
//! ```
//!
//! A [`Manager`](manager::Manager) owns client, informers, metrics, trace, clock and event
//! recorders. A controller, lister or recorder that it hands out needs nothing else:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use bellerophon::prelude::*;
//! use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
//!
//! struct Settings {
//!     deployments: Lister<Deployment>,
//! }
//!
//! impl Reconciler<ConfigMap> for Settings {
//!     async fn reconcile(&self, req: Request<ConfigMap>) -> Result<Action, Error> {
//!         let Some(map) = req.object() else { return Ok(Action::await_change()) };
//!         println!("{:?}: {} deployments", map.metadata.name, self.deployments.len());
//!         Ok(Action::requeue_after(Duration::from_secs(300)))
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), ManagerError> {
//!     let mut mgr = Manager::try_default().await?;
//!     let settings = Settings { deployments: mgr.lister() };
//!     mgr.controller::<ConfigMap>().owns::<Deployment>().concurrency(4).reconcile(settings);
//!     mgr.run().await
//! }
//! ```
//!
//! # What each part guarantees
//!
//! - [`SharedInformer`](informer::SharedInformer), [`Lister`](informer::Lister),
//!   [`Index`](index::Index): the cache follows the server through dropped watches and compacted
//!   versions; objects deleted in between are reported once; cached objects are shared and never
//!   change.
//! - [`WorkQueue`](queue::WorkQueue): a key is never with two workers, and is requeued once if it
//!   is added meanwhile; delays, back-off, priorities without starvation, fairness between
//!   namespaces; every entry carries its causes.
//! - [controllers](controller::ControllerBuilder): a change that passes its predicate leads to a
//!   reconcile that begins after it; a deletion always does; a failing, slow or panicking object
//!   delays no other.
//! - [`ReconcileClient`](client::ReconcileClient): the writes of a reconcile are in the caches
//!   before the same object is reconciled again; an object that is as desired is not written.
//! - [`Manager`](manager::Manager): starts and stops everything in order, and owns every task; a
//!   standby has filled caches.
//! - [leader election](leader): of several processes one works, and it stops before another may
//!   begin; each [`Term`](leader::Term) has a number that an external store can compare.
//! - [`EventRecorder`](events::EventRecorder): recording never blocks; repetitions become a series;
//!   one object cannot flood the cluster.
//! - webhooks (cargo feature `webhooks`): validated, mutated and converted objects keep every
//!   field; certificates are rotated without a failed call.
//! - [`Metrics`](metrics::Metrics): names and labels of client-go and controller-runtime.
//! - [`Trace`](trace::Trace): why an object was reconciled and what that wrote, across all
//!   controllers of a process.
//!
//! # Kinds
//!
//! Every type the toolkit caches, reads or writes is a [`Kind`]. Built-in kinds are, by a cargo
//! feature per API group; a custom resource derives it with `#[kube(…, derive = "Kind")]`;
//! `DynamicObject` is one for kinds known at run time, and `PartialObjectMeta<K>` for metadata
//! alone.
//!
//! # Tests that repeat
//!
//! Time is tokio's clock and randomness is one seeded [`Rng`](clock::Rng), so a test that pauses
//! the clock runs hours in milliseconds, and the same seed sends the same requests at the same
//! times. A `kube::Client` takes any tower service: an API server in the same process needs no
//! socket. [`testing::options`] sets this up.

// In the order in which a change passes through. A group of modules imports nothing of the groups
// below it.

// Values without IO.
pub mod clock; // time and randomness
pub mod conditions; // status conditions
mod error; // any error, and an error on one line
mod informer_stats; // statistics of caches
mod key; // the name of an object
mod locks; // locks, and in tests those of a scheduler that tries interleavings
pub mod owner; // owner references
mod scan; // members of JSON without decoding

// From lists and watches to deltas.
mod cached; // an object as a cache keeps it
mod fifo; // deltas, in order
mod list_watch; // where objects come from
mod reflector; // keeps a cache equal to a list on a server

// Between a change and the reconcile.
pub mod queue; // keys and their causes

// What components record.
pub mod events; // core Events
pub mod metrics; // Prometheus metrics
pub mod trace; // what happened, in one order

// Caches.
pub mod informer; // one cache of a resource, for all readers and handlers

// What a reconcile writes.
pub mod client; // reads and writes of a reconcile
mod gate; // the keys of a controller that wait for its own writes

// Controllers.
mod cluster; // what the components of a Manager share
pub mod controller; // from changes to reconciles
pub mod finalizer; // clean-up before an object is removed
pub mod leader; // of several processes, one works

// Processes.
mod http_server; // HTTP/1.1 for endpoints and runnables
pub mod manager; // owns and runs everything
pub mod testing; // options for tests
#[cfg(feature = "webhooks")]
pub mod webhook; // validates, changes and converts objects before they are stored

pub use bellerophon_kinds::Kind;
pub use bellerophon_kinds_derive::Kind;
pub use key::ObjectKey;

/// The trait [`Kind`](trait@Kind) and its codecs.
pub mod kinds {
    pub use bellerophon_kinds::{External, Kind, KindCodec, KindScope, decode, encode};
}

/// Finding objects by a value.
pub mod index {
    pub use crate::informer::{Index, controller_uid};
}

/// The names that nearly every controller needs.
pub mod prelude {
    pub use crate::controller::{Action, Error, Predicate, Reconciler, Request};
    pub use crate::events::Event;
    pub use crate::informer::Lister;
    pub use crate::manager::{Manager, ManagerError, ManagerOptions};
    pub use crate::owner::set_controller_reference;
    pub use crate::{Kind, ObjectKey};
}

/// The examples of these pages, compiled as doctests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/quick-start.md")]
    mod quick_start {}

    #[doc = include_str!("../../../docs/concepts.md")]
    mod concepts {}

    #[doc = include_str!("../../../docs/migrating.md")]
    mod migrating {}

    #[doc = include_str!("../../../docs/webhooks.md")]
    mod webhooks {}
}
