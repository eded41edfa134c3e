//! The controller toolkit: from what happens on a Kubernetes API to what a controller does about it.

mod clock; // the one source of randomness and of wall-clock time
mod key; // the name of an object
mod queue; // the border between noticing a change and acting on it

pub use clock::Entropy;
pub use key::ObjectKey;
pub use queue::{
    AddOpts, Backoff, Bucket, CAUSES_MAX, Cause, CauseEvent, Causes, Item, Priority, QueueObserver, QueueOptions, QueueStats, RateLimit,
    WorkQueue,
};
