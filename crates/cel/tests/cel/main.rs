//! Expressions against recorded results, and against the limits.

mod bounds; // what is stopped
mod corpus; // what Kubernetes evaluates to
