//! Requests and reconciles of one operator.
//!
//! In: the requests of a client, reconciles. Out: [`Counts`], printed as one JSON object per line.
//! Guarantee: a process that is killed has printed its counts at most one interval before.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{Method, Request};
use kube::client::{Body, ClientBuilder};
use serde::{Deserialize, Serialize};
use tokio::time::interval;
use tower::util::MapRequestLayer;

use crate::Failure;

/// The interval at which counts are printed.
const PRINT_INTERVAL: Duration = Duration::from_millis(100);

/// What one operator did.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Counts {
    pub(crate) reconciles: u64,
    /// GET requests that end.
    pub(crate) reads: u64,
    pub(crate) watches: u64,
    /// POST, PUT, PATCH and DELETE, without Events.
    pub(crate) writes: u64,
    /// Requests to members of a store.
    pub(crate) port_forwards: u64,
    /// Events that were recorded.
    pub(crate) events: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.reconciles += other.reconciles;
        self.reads += other.reads;
        self.watches += other.watches;
        self.writes += other.writes;
        self.port_forwards += other.port_forwards;
        self.events += other.events;
    }
}

/// Counts that threads share.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    watches: AtomicU64,
    writes: AtomicU64,
    port_forwards: AtomicU64,
    events: AtomicU64,
}

impl Counters {
    fn count(&self, request: &Request<Body>) {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        let counter = if path.ends_with("/portforward") {
            &self.port_forwards
        } else if request.method() != Method::GET {
            if path.contains("/events") {
                &self.events
            } else {
                &self.writes
            }
        } else if query.contains("watch=true") || query.contains("watch=1") {
            &self.watches
        } else {
            &self.reads
        };
        counter.fetch_add(1, Relaxed);
    }

    /// The counts by now, with the number of reconciles, which the runtimes count.
    fn counts(&self, reconciles: u64) -> Counts {
        Counts {
            reconciles,
            reads: self.reads.load(Relaxed),
            watches: self.watches.load(Relaxed),
            writes: self.writes.load(Relaxed),
            port_forwards: self.port_forwards.load(Relaxed),
            events: self.events.load(Relaxed),
        }
    }

    /// Prints the counts at intervals, without end.
    pub(crate) async fn print_at_intervals(&self, reconciles: impl Fn() -> u64) {
        let mut ticks = interval(PRINT_INTERVAL);
        loop {
            ticks.tick().await;
            let counts = serde_json::to_string(&self.counts(reconciles()))
                .expect("a struct of numbers can be encoded");
            // An error means that stdout is closed.
            let _written = writeln!(std::io::stdout(), "{counts}");
        }
    }
}

/// A client with the current kubeconfig whose requests are counted.
pub(crate) async fn counted_client(counters: Arc<Counters>) -> Result<kube::Client, Failure> {
    let config = kube::Config::infer().await?;
    let layer = MapRequestLayer::new(move |request: Request<Body>| {
        counters.count(&request);
        request
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}
