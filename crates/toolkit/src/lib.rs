//! The controller toolkit: from what happens on a Kubernetes API to what a controller does about it.

mod clock; // the one source of randomness and of wall-clock time
mod key; // the name of an object
