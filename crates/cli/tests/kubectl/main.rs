//! kubectl against the binary: commands and their output.
//!
//! KUBECTL is a colon-separated list of programs; default: `kubectl`. Every test runs with each of
//! them and its own server. Tests are skipped if there is none, and fail then with
//! BELLEROPHON_REQUIRE_KUBECTL=1.

mod access; // RBAC, impersonation, tokens and kubeconfigs
mod applying; // apply, diff and validation
mod custom; // custom resources
mod deleting; // delete and cascades
mod driver; // a kubectl with a server
mod explaining; // api-resources and explain
mod nodes; // nodes, drain and pods on nodes
mod objects; // create, get, patch, replace, edit, watch
mod operators; // manifests, samples and reboots
#[path = "../binary/running.rs"]
mod running; // a `bellerophon up` process for one test
mod workloads; // scale, rollout and wait
