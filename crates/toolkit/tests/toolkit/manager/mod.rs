//! The Manager: setup, start and stop, leader election, endpoints, namespaces.

mod endpoints; // metrics and probes over HTTP
mod leading; // leader election
mod namespaces; // which namespaces are watched
mod setup; // mistakes, and what needs no setup
mod stopping; // the order of start and stop

use std::sync::Arc;
use std::time::Duration;

use bellerophon::leader::LeaderElectionOptions;
use bellerophon::manager::ManagerOptions;
use bellerophon::prelude::*;
use bellerophon::testing;
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::sleep;

use crate::harness::{Log, TestServer, maps};

/// Options with a lease, for a candidate of this name.
fn candidate(identity: &str) -> ManagerOptions {
    ManagerOptions {
        leader_election: Some(LeaderElectionOptions {
            lease_namespace: "default".into(),
            identity: Some(identity.into()),
            ..LeaderElectionOptions::new("lock")
        }),
        ..testing::options(1)
    }
}

/// What the reconciler of [`logging_manager`] uses.
struct Worker {
    name: &'static str,
    log: Log,
    takes: Duration,
}

/// A Manager whose controller logs the start and the end of each reconcile.
fn logging_manager(
    server: &TestServer,
    options: ManagerOptions,
    name: &'static str,
    log: &Log,
    takes: Duration,
) -> Manager {
    let mut mgr = Manager::new(server.client(), options);
    let maps = maps(&mut mgr);
    let worker = Worker {
        name,
        log: log.clone(),
        takes,
    };
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(worker))
        .reconcile(async |worker: Arc<Worker>, req: Request<ConfigMap>| {
            let Worker { name, log, takes } = &*worker;
            log.push(format!("{name} starts {}", req.key().name()));
            sleep(*takes).await;
            log.push(format!("{name} ends {}", req.key().name()));
            Ok(Action::await_change())
        });
    mgr
}
