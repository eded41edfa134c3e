//! Expressions against recorded results, and against the limits.

mod bounds; // limits
mod corpus; // recorded results of Kubernetes
