//! The `apiserver_flowcontrol_*` metrics, under the names and labels of kube-apiserver 1.36.
//! In: what happens to requests, by FlowSchema; the state of the priority levels. Out: the text of
//! a scrape.
//! Guarantees: series exist for the configured FlowSchemas, and for the levels that have requests.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram},
};

use super::{FlowControl, level::Level, queue::RejectReason};

/// The bounds of durations, in seconds.
const DURATION_SECONDS: [f64; 13] = [
    0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
];

/// The requests of a FlowSchema at a priority level.
#[derive(Debug)]
pub(super) struct FlowSchemaMetrics {
    pub(super) priority_level: String,
    pub(super) flow_schema: String,
    rejected: [AtomicU64; RejectReason::ALL.len()],
    dispatched: AtomicU64,
    waiting: AtomicU64,
    waiting_seats: AtomicU64,
    executing: AtomicU64,
    executing_seats: AtomicU64,
    waited_and_executed: Histogram,
    waited_and_rejected: Histogram,
    executed: Histogram,
    watches_started: Histogram,
}

impl FlowSchemaMetrics {
    pub(super) fn new(priority_level: &str, flow_schema: &str) -> Self {
        let durations = || Histogram::new(DURATION_SECONDS);
        Self {
            priority_level: priority_level.to_owned(),
            flow_schema: flow_schema.to_owned(),
            rejected: Default::default(),
            dispatched: AtomicU64::default(),
            waiting: AtomicU64::default(),
            waiting_seats: AtomicU64::default(),
            executing: AtomicU64::default(),
            executing_seats: AtomicU64::default(),
            waited_and_executed: durations(),
            waited_and_rejected: durations(),
            executed: durations(),
            watches_started: durations(),
        }
    }

    pub(super) fn rejected(&self, reason: RejectReason) {
        self.rejected[reason as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn enqueued(&self, width: u64) {
        self.waiting.fetch_add(1, Relaxed);
        self.waiting_seats.fetch_add(width, Relaxed);
    }

    pub(super) fn dequeued(&self, width: u64) {
        self.waiting.fetch_sub(1, Relaxed);
        self.waiting_seats.fetch_sub(width, Relaxed);
    }

    pub(super) fn dispatched(&self, width: u64) {
        self.dispatched.fetch_add(1, Relaxed);
        self.executing.fetch_add(1, Relaxed);
        self.executing_seats.fetch_add(width, Relaxed);
    }

    pub(super) fn finished(&self) {
        self.executing.fetch_sub(1, Relaxed);
    }

    pub(super) fn released(&self, width: u64) {
        self.executing_seats.fetch_sub(width, Relaxed);
    }

    pub(super) fn observe_wait(&self, waited: Duration, executed: bool) {
        let histogram = if executed {
            &self.waited_and_executed
        } else {
            &self.waited_and_rejected
        };
        histogram.observe(waited.as_secs_f64());
    }

    pub(super) fn observe_execution(&self, duration: Duration, watch: bool) {
        let histogram = if watch {
            &self.watches_started
        } else {
            &self.executed
        };
        histogram.observe(duration.as_secs_f64());
    }
}

/// Encodes the state of flow control at a scrape.
#[derive(Debug)]
pub(crate) struct FlowControlCollector(pub(crate) Arc<FlowControl>);

impl Collector for FlowControlCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let schemas = self.0.schema_metrics();
        encode_schemas(&mut encoder, &schemas)?;
        self.0.with_state(|state| {
            let levels: Vec<&Level> = state.levels().collect();
            encode_levels(&mut encoder, &levels)?;
            let fraction = ConstGauge::new(state.fair_fraction);
            let name = "apiserver_flowcontrol_seat_fair_frac";
            let help = "Proportion of its target that each priority level has seats for";
            let descriptor = encoder.encode_descriptor(name, help, None, fraction.metric_type())?;
            fraction.encode(descriptor)
        })
    }
}

fn encode_schemas(
    encoder: &mut DescriptorEncoder<'_>,
    schemas: &[Arc<FlowSchemaMetrics>],
) -> fmt::Result {
    let labels = |schema: &FlowSchemaMetrics| {
        [
            ("priority_level", schema.priority_level.clone()),
            ("flow_schema", schema.flow_schema.clone()),
        ]
    };
    let with = |schema: &FlowSchemaMetrics, key: &'static str, value: &str| {
        let mut all = labels(schema).to_vec();
        all.push((key, value.to_owned()));
        all
    };
    let rejected = schemas.iter().flat_map(|schema| {
        RejectReason::ALL.map(|reason| {
            let count = schema.rejected[reason as usize].load(Relaxed);
            (
                with(schema, "reason", reason.label()),
                ConstCounter::new(count),
            )
        })
    });
    encode_family(
        encoder,
        "rejected_requests",
        "Requests that were rejected, by reason",
        MetricType::Counter,
        rejected,
    )?;
    let dispatched = schemas.iter().map(|schema| {
        let count = schema.dispatched.load(Relaxed);
        (labels(schema), ConstCounter::new(count))
    });
    encode_family(
        encoder,
        "dispatched_requests",
        "Requests that were executed",
        MetricType::Counter,
        dispatched,
    )?;
    type Value = fn(&FlowSchemaMetrics) -> &AtomicU64;
    let gauges: [(&str, &str, Value); 4] = [
        ("current_inqueue_requests", "Requests that wait", |m| {
            &m.waiting
        }),
        (
            "current_inqueue_seats",
            "Seats that requests wait for",
            |m| &m.waiting_seats,
        ),
        (
            "current_executing_requests",
            "Requests that are executed",
            |m| &m.executing,
        ),
        ("current_executing_seats", "Seats in use", |m| {
            &m.executing_seats
        }),
    ];
    for (name, help, value) in gauges {
        let values = schemas
            .iter()
            .map(|schema| (labels(schema), gauge(value(schema).load(Relaxed))));
        encode_family(encoder, name, help, MetricType::Gauge, values)?;
    }
    let waits = schemas.iter().flat_map(|schema| {
        [
            (
                with(schema, "execute", "true"),
                schema.waited_and_executed.clone(),
            ),
            (
                with(schema, "execute", "false"),
                schema.waited_and_rejected.clone(),
            ),
        ]
    });
    encode_family(
        encoder,
        "request_wait_duration_seconds",
        "How long requests waited in their queue, in seconds",
        MetricType::Histogram,
        waits,
    )?;
    let executions = schemas.iter().flat_map(|schema| {
        [
            (with(schema, "type", "regular"), schema.executed.clone()),
            (
                with(schema, "type", "watch"),
                schema.watches_started.clone(),
            ),
        ]
    });
    encode_family(
        encoder,
        "request_execution_seconds",
        "How long requests were executed, in seconds; of watches, until they are started",
        MetricType::Histogram,
        executions,
    )
}

fn encode_levels(encoder: &mut DescriptorEncoder<'_>, levels: &[&Level]) -> fmt::Result {
    type Value = fn(&Level) -> f64;
    let gauges: [(&str, &str, Value); 8] = [
        (
            "nominal_limit_seats",
            "Seats by the shares of the level",
            |l| l.range.nominal as f64,
        ),
        (
            "lower_limit_seats",
            "Seats that the level does not lend",
            |l| l.range.min as f64,
        ),
        (
            "upper_limit_seats",
            "Seats with all that the level may borrow",
            |l| l.range.max as f64,
        ),
        ("current_limit_seats", "Seats that the level has now", |l| {
            l.queues.limit() as f64
        }),
        (
            "demand_seats_high_watermark",
            "Most seats used or waited for in the last period",
            |l| l.demand_stats.high_watermark as f64,
        ),
        (
            "demand_seats_average",
            "Mean of seats used or waited for in the last period",
            |l| l.demand_stats.average,
        ),
        (
            "demand_seats_stdev",
            "Deviation of seats used or waited for in the last period",
            |l| l.demand_stats.deviation,
        ),
        (
            "demand_seats_smoothed",
            "Smoothed seats used or waited for",
            |l| l.demand_stats.smoothed,
        ),
    ];
    for (name, help, value) in gauges {
        let values = levels.iter().map(|level| {
            let labels = [("priority_level", level.config.name.clone())];
            (labels, ConstGauge::new(value(level)))
        });
        encode_family(encoder, name, help, MetricType::Gauge, values)?;
    }
    Ok(())
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

fn encode_family<L: EncodeLabelSet, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric_type: MetricType,
    series: impl Iterator<Item = (L, M)>,
) -> fmt::Result {
    let name = format!("apiserver_flowcontrol_{name}");
    let mut descriptor = encoder.encode_descriptor(&name, help, None, metric_type)?;
    for (labels, metric) in series {
        metric.encode(descriptor.encode_family(&labels)?)?;
    }
    Ok(())
}
