//! API Priority and Fairness: how many requests are executed concurrently, and in which order.
//! In: authenticated requests, FlowSchemas and PriorityLevelConfigurations. Out: a [`Permit`] for
//! each request that is executed, or a [`Rejection`].
//! Guarantees: a flow that sends more than its share waits behind others, not the others behind it;
//! requests of the exempt level are neither queued nor rejected; a request waits for a bounded
//! time; the order of execution depends on requests and the clock alone.
//!
//! Seats and queues are those of kube-apiserver 1.36. One limit is added: of the requests that have
//! a seat, 16 per worker thread of the runtime are dispatched at a time. Handlers rarely wait, so
//! without it a flood of requests would wait for the processor, in the order of arrival, and not
//! for seats. A request whose handler waits no longer counts.

mod borrowing; // seats that levels lend each other
mod config; // the compiled configuration
mod dump; // the debug endpoints
mod level; // a priority level
mod matching; // which FlowSchema a request belongs to
mod metrics; // what a scrape shows
mod permit; // seats of a request that is executed
mod queue; // a queue, and what a level does beyond its limit
mod queue_set; // fair queuing within a priority level
mod request; // a request that waits or has seats
mod retry_after; // when rejected clients come back
mod seats; // seats of the levels
mod shuffle_sharding; // which queues a flow may use
mod state; // the requests of all levels
mod upkeep; // what is restored of the stored objects
mod watch_tracker; // how many watchers an event has
mod work_estimate; // how many seats a request takes

#[cfg(test)]
mod model; // fair queuing, written down plainly
#[cfg(test)]
mod tests;

pub(crate) use config::{Configuration, conditions_to_write};
pub(crate) use dump::dump;
pub(crate) use level::Load;
pub(crate) use metrics::FlowControlCollector;
pub(crate) use permit::Permit;
pub(crate) use upkeep::{Action, Upkeep, revisions};
pub(crate) use watch_tracker::WatchTracker;
pub(crate) use work_estimate::{Collections, Work};

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{Attributes, User},
    http::{
        query::Query,
        request_info::{CONNECT_SUBRESOURCES, RequestInfo},
    },
    limits::RequestLimits,
};
use level::LevelHandle;
use matching::{Distinguisher, Rule};
use metrics::FlowSchemaMetrics;
use queue::Queuing;
use request::{RequestDetails, RequestKind};
use retry_after::RejectedFlows;
use state::State;

const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// Dispatched requests per worker thread: with 100 µs each, 1.6 ms of work.
const PROCESSOR_SEATS_PER_WORKER: u64 = 16;

/// A FlowSchema in use.
#[derive(Debug)]
struct FlowSchema {
    name: String,
    uid: HeaderValue,
    level_uid: HeaderValue,
    level: Arc<LevelHandle>,
    exempt: bool,
    /// Whether flows are distinguished: there is more than one queue.
    queued: bool,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
    metrics: Arc<FlowSchemaMetrics>,
}

/// The flow of a request.
#[derive(Clone, Debug)]
pub(crate) struct Classified {
    schema: Arc<FlowSchema>,
    kind: Option<RequestKind>,
    watch: bool,
    details: Arc<RequestDetails>,
}

impl Classified {
    /// The headers by which a client can look up how it was classified.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        headers.insert(FLOW_SCHEMA_UID, self.schema.uid.clone());
        headers.insert(PRIORITY_LEVEL_UID, self.schema.level_uid.clone());
    }

    /// Identifies the flow among those that were rejected.
    fn flow(&self) -> u64 {
        let user = &self.details.user;
        shuffle_sharding::flow_hash(&self.schema.name, user)
    }
}

/// Flow control of one server.
#[derive(Debug)]
pub(crate) struct FlowControl {
    pub(crate) started: Instant,
    /// In the order in which they are matched; the last is the fallback.
    schemas: RwLock<Arc<[Arc<FlowSchema>]>>,
    state: Mutex<State>,
    /// Requests began to wait, or there is something to do earlier.
    timer: Notify,
    rejected: Mutex<RejectedFlows>,
    pub(crate) watches: Arc<WatchTracker>,
    pub(crate) upkeep: Upkeep,
}

impl FlowControl {
    /// Flow control with the mandatory objects.
    pub(crate) fn new(limits: RequestLimits) -> Self {
        let workers = tokio::runtime::Handle::try_current()
            .map_or(1, |runtime| runtime.metrics().num_workers().max(1));
        let processor_seats = PROCESSOR_SEATS_PER_WORKER * workers as u64;
        let seats = limits.reads_max.saturating_add(limits.writes_max).max(1);
        Self::with_seats(seats as u64, processor_seats)
    }

    fn with_seats(seats: u64, processor_seats: u64) -> Self {
        let now = Instant::now();
        let this = Self {
            started: now,
            schemas: RwLock::new(Vec::new().into()),
            state: Mutex::new(State::new(seats, processor_seats, now)),
            timer: Notify::new(),
            rejected: Mutex::default(),
            watches: Arc::default(),
            upkeep: Upkeep::default(),
        };
        this.configure(Configuration::compile(&[], &[]));
        this
    }

    /// Takes over the objects of a new cluster.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn use_defaults(&self) {
        let now = bellerophon_apimachinery::time::Time::from_timestamp(jiff::Timestamp::UNIX_EPOCH);
        let objects = bellerophon_resources::kinds::flow_control::default_objects(now);
        let (levels, schemas): (Vec<_>, Vec<_>) = objects
            .into_iter()
            .partition(|object| object.kind == "PriorityLevelConfiguration");
        self.configure(Configuration::compile(&levels, &schemas));
    }

    /// Replaces the configuration. Requests keep their seats and places in queues.
    pub(crate) fn configure(&self, configuration: Configuration) {
        let Configuration { levels, schemas } = configuration;
        let queuing: BTreeMap<String, (Queuing, HeaderValue)> = levels
            .iter()
            .map(|level| (level.name.clone(), (level.queuing, header(&level.uid))))
            .collect();
        let mut installed = self.schemas.write().unwrap_or_else(PoisonError::into_inner);
        let known: BTreeMap<(&str, &str), &Arc<FlowSchemaMetrics>> = installed
            .iter()
            .map(|schema| &schema.metrics)
            .map(|metrics| ((&*metrics.priority_level, &*metrics.flow_schema), metrics))
            .collect();
        let mut handles = self.with_state(|state| state.configure(levels, Instant::now()));
        let compiled = schemas.into_iter().filter_map(|schema| {
            let (queuing, level_uid) = queuing.get(&schema.level)?;
            let metrics = known.get(&(&*schema.level, &*schema.name)).map_or_else(
                || Arc::new(FlowSchemaMetrics::new(&schema.level, &schema.name)),
                |metrics| Arc::clone(metrics),
            );
            Some(Arc::new(FlowSchema {
                uid: header(&schema.uid),
                level_uid: level_uid.clone(),
                level: handles.get_mut(&schema.level)?.clone(),
                exempt: *queuing == Queuing::Exempt,
                queued: matches!(queuing, Queuing::Queue { dealer, .. } if dealer.queues() > 1),
                distinguisher: schema.distinguisher,
                rules: schema.rules,
                metrics,
                name: schema.name,
            }))
        });
        *installed = compiled.collect();
    }

    /// The flow of a request; `None` if it is not subject to flow control.
    pub(crate) fn classify(
        &self,
        request_info: &Arc<RequestInfo>,
        user: &User,
    ) -> Option<Classified> {
        let request = Attributes::of(request_info, user);
        if request_info.is_subresource(&CONNECT_SUBRESOURCES) {
            return None;
        }
        let schema = self.matching(&request);
        let flow_distinguisher = if schema.queued {
            schema.distinguisher.of(&request).into()
        } else {
            Box::default()
        };
        let kind = match request.verb {
            _ if !request_info.is_resource() => None,
            "get" | "list" | "watch" => Some(RequestKind::ReadOnly),
            _ => Some(RequestKind::Mutating),
        };
        Some(Classified {
            schema,
            kind,
            watch: request.verb == "watch",
            details: Arc::new(RequestDetails {
                user: user.name.clone(),
                request_info: Arc::clone(request_info),
                flow_distinguisher,
            }),
        })
    }

    fn matching(&self, request: &Attributes<'_>) -> Arc<FlowSchema> {
        let schemas = self.schemas.read().unwrap_or_else(PoisonError::into_inner);
        let matches = |schema: &&Arc<FlowSchema>| schema.rules.iter().any(|r| r.matches(request));
        // The catch-all schema has every user that can be authenticated; should one match nothing,
        // it belongs there too.
        let catch_all = || {
            schemas
                .iter()
                .find(|schema| schema.name == config::CATCH_ALL)
        };
        schemas
            .iter()
            .find(matches)
            .or_else(catch_all)
            .expect("the mandatory schemas are always there")
            .clone()
    }

    /// The work of a classified request.
    pub(crate) fn estimate(
        &self,
        classified: &Classified,
        attributes: &Attributes<'_>,
        query: &Query,
        collections: &dyn Collections,
    ) -> Work {
        let seats_max = classified.schema.level.seats_max();
        work_estimate::estimate(attributes, query, collections, seats_max)
    }

    /// Requests that read and those that mutate resources.
    pub(crate) fn load(&self) -> (Load, Load) {
        self.with_state(|state| state.load())
    }

    fn schema_metrics(&self) -> Vec<Arc<FlowSchemaMetrics>> {
        let schemas = self.schemas.read().unwrap_or_else(PoisonError::into_inner);
        schemas
            .iter()
            .map(|schema| schema.metrics.clone())
            .collect()
    }

    /// Calls `f` with the state as of now, and notifies the requests that it dispatched.
    fn with_state<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let (result, dispatched) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let result = f(&mut state);
            (result, state.take_dispatched())
        };
        for waiter in dispatched {
            // A dropped waiter releases its seats itself.
            let _gone = waiter.send(());
        }
        result
    }

    /// Does what is due while requests wait, until `stop` is cancelled and none waits. Without
    /// waiting requests no timer runs: the state is brought up to date by the next request.
    pub(crate) async fn run_timer(self: Arc<Self>, stop: CancellationToken) {
        while stop
            .run_until_cancelled(self.timer.notified())
            .await
            .is_some()
        {
            while let Some(due) = self.with_state(|state| state.next_event()) {
                tokio::select! {
                    () = tokio::time::sleep_until(due) => {
                        self.with_state(|state| state.advance(Instant::now()));
                    }
                    () = self.timer.notified() => {}
                    // The requests that waited when this sleep began may be served by now.
                    () = stop.cancelled(), if !stop.is_cancelled() => {}
                }
            }
        }
    }
}

fn header(uid: &str) -> HeaderValue {
    HeaderValue::try_from(uid).unwrap_or_else(|_| HeaderValue::from_static(""))
}
