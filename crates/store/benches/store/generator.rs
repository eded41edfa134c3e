//! The load: N clients, each with one request at a time, over shared HTTP/2 connections.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::target::{BenchError, Connection, Target, connect};

/// Clients per connection, as in etcd's benchmark tool (1000 clients on 100 connections).
const CLIENTS_PER_CONNECTION: usize = 8;

const VALUE_BYTES: usize = 256;
const KEYS: usize = 10_000;

/// Concurrent puts while the keys are filled.
const FILL_CLIENTS: usize = 64;

/// A request that takes longer is an error.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Put,
    Get,
}

/// What is sent.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) operation: Operation,
    pub(crate) clients: usize,
    pub(crate) time: Duration,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// Successful requests per second, after the warm-up.
    pub(crate) rate: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Successful requests with the warm-up.
    pub(crate) all: u64,
    pub(crate) errors: u64,
}

/// The requests of one client.
struct Samples {
    seconds: Vec<f32>,
    all: u64,
    errors: u64,
}

/// Puts all keys that are loaded later.
pub(crate) async fn fill(target: &impl Target) -> Result<(), BenchError> {
    let requests = Arc::new(requests(target, Operation::Put));
    let connection = connect(target.address()).await?;
    let mut writers = JoinSet::new();
    for first in 0..FILL_CLIENTS {
        let mut sender = connection.clone();
        let requests = requests.clone();
        writers.spawn(async move {
            for request in requests.iter().skip(first).step_by(FILL_CLIENTS) {
                exchange(&mut sender, request.clone()).await?;
            }
            Ok::<_, BenchError>(())
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(())
}

fn requests(target: &impl Target, operation: Operation) -> Vec<Request<Full<Bytes>>> {
    let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
    let request = |number| {
        let key = format!("bench/{number:08}");
        match operation {
            Operation::Put => target.put(&key, &value),
            Operation::Get => target.get(&key),
        }
    };
    (0..KEYS).map(request).collect()
}

/// Loads a target.
pub(crate) async fn run(target: &impl Target, load: &Load) -> Result<Measured, BenchError> {
    let requests = Arc::new(requests(target, load.operation));
    let start = Instant::now() + load.time / 10;
    let end = start + load.time;
    let mut clients = JoinSet::new();
    let mut connection = None;
    for client in 0..load.clients {
        if client % CLIENTS_PER_CONNECTION == 0 {
            connection = Some(connect(target.address()).await?);
        }
        let sender = connection.clone().expect("the first client connects");
        clients.spawn(run_client(client, sender, requests.clone(), start, end));
    }
    let mut total = Samples {
        seconds: Vec::new(),
        all: 0,
        errors: 0,
    };
    while let Some(ended) = clients.join_next().await {
        let samples = ended?;
        total.seconds.extend(samples.seconds);
        total.all += samples.all;
        total.errors += samples.errors;
    }
    total.seconds.sort_by(f32::total_cmp);
    let percentile = |share: f64| {
        let index = (total.seconds.len() as f64 * share) as usize;
        let sample = total
            .seconds
            .get(index.min(total.seconds.len().saturating_sub(1)));
        f64::from(sample.copied().unwrap_or(f32::NAN)) * 1000.0
    };
    Ok(Measured {
        rate: total.seconds.len() as f64 / load.time.as_secs_f64(),
        p50_ms: percentile(0.50),
        p99_ms: percentile(0.99),
        all: total.all,
        errors: total.errors,
    })
}

async fn run_client(
    client: usize,
    mut sender: Connection,
    requests: Arc<Vec<Request<Full<Bytes>>>>,
    start: Instant,
    end: Instant,
) -> Samples {
    let mut samples = Samples {
        seconds: Vec::new(),
        all: 0,
        errors: 0,
    };
    // Each client begins elsewhere, so that they write different keys.
    let mut next = client * 157 % requests.len();
    loop {
        let sent = Instant::now();
        if sent >= end {
            return samples;
        }
        let result = timeout(
            REQUEST_TIMEOUT,
            exchange(&mut sender, requests[next].clone()),
        )
        .await;
        if !matches!(result, Ok(Ok(()))) {
            samples.errors += 1;
            continue;
        }
        samples.all += 1;
        if sent >= start {
            samples.seconds.push(sent.elapsed().as_secs_f32());
        }
        next = (next + 1) % requests.len();
    }
}

/// A request is successful if its response is complete and neither HTTP nor gRPC reports an error.
async fn exchange(
    sender: &mut Connection,
    request: Request<Full<Bytes>>,
) -> Result<(), BenchError> {
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    let is_success = response.status().is_success();
    let body = response.into_body().collect().await?;
    let grpc_status = body
        .trailers()
        .and_then(|trailers| trailers.get("grpc-status"));
    if !is_success || grpc_status.is_some_and(|status| status != "0") {
        return Err("the request failed".into());
    }
    Ok(())
}
