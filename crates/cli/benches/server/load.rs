//! The loads.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Barrier;

use super::{
    client::{Connection, Target, config_map},
    process::now,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Answered<'a> = Pin<Box<dyn Future<Output = Result<usize, Failure>> + Send + 'a>>;

/// How many objects the list holds.
const LISTED: usize = 11_241;

/// What a load of requests did.
pub(crate) struct Requests {
    pub(crate) per_second: f64,
    pub(crate) mean: Duration,
}

/// One GET of one ConfigMap.
pub(crate) fn get(connection: &mut Connection, _: usize) -> Answered<'_> {
    Box::pin(call(
        connection,
        "GET",
        "/api/v1/namespaces/bench/configmaps/target".into(),
        String::new(),
    ))
}

/// One POST of a new ConfigMap.
pub(crate) fn post(connection: &mut Connection, number: usize) -> Answered<'_> {
    Box::pin(call(
        connection,
        "POST",
        "/api/v1/namespaces/bench/configmaps".into(),
        config_map(&format!("post-{number}"), 0),
    ))
}

async fn call(
    connection: &mut Connection,
    method: &str,
    path: String,
    body: String,
) -> Result<usize, Failure> {
    connection.call(method, &path, &body).await
}

/// Repeats a request on many connections for some time.
pub(crate) async fn requests(
    target: &Target,
    connections: usize,
    time: Duration,
    request: for<'a> fn(&'a mut Connection, usize) -> Answered<'a>,
) -> Result<Requests, Failure> {
    let number = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(target.connect().await?);
    }
    let begun = now();
    for mut connection in open {
        let number = number.clone();
        tasks.push(tokio::spawn(async move {
            while begun.elapsed() < time {
                let next = number.fetch_add(1, Ordering::Relaxed);
                request(&mut connection, next)
                    .await
                    .map_err(|e| e.to_string())?;
            }
            Ok::<_, String>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    let (taken, count) = (begun.elapsed(), number.load(Ordering::Relaxed));
    Ok(Requests {
        per_second: count as f64 / taken.as_secs_f64(),
        mean: taken * connections as u32 / count as u32,
    })
}

/// What lists did.
pub(crate) struct Lists {
    pub(crate) median: Duration,
    pub(crate) bytes: usize,
}

/// Lists a namespace of the size that was measured elsewhere.
pub(crate) async fn list(target: &Target) -> Result<Lists, Failure> {
    let mut connection = target.connect().await?;
    connection
        .call(
            "POST",
            "/api/v1/namespaces",
            r#"{"metadata":{"name":"listed"}}"#,
        )
        .await?;
    for i in 0..LISTED {
        connection
            .call(
                "POST",
                "/api/v1/namespaces/listed/configmaps",
                &config_map(&format!("item-{i}"), i),
            )
            .await?;
    }
    let mut times = Vec::new();
    let mut bytes = 0;
    for _ in 0..21 {
        let begun = now();
        bytes = connection
            .call("GET", "/api/v1/namespaces/listed/configmaps", "")
            .await?;
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(Lists {
        median: times[times.len() / 2],
        bytes,
    })
}

/// What watchers saw.
pub(crate) struct FanOut {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Sequential merge patches of one ConfigMap, seen by many watchers, each on a connection of its own.
pub(crate) async fn fan_out(
    target: &Target,
    watchers: usize,
    writes: usize,
) -> Result<FanOut, Failure> {
    let ready = Arc::new(Barrier::new(watchers + 1));
    let mut tasks = Vec::new();
    for i in 0..watchers {
        let mut connection = target.connect().await?;
        connection.watch("/api/v1/namespaces/bench/configmaps?watch=true&fieldSelector=metadata.name%3Dtarget&sendInitialEvents=false&resourceVersionMatch=NotOlderThan").await?;
        let ready = ready.clone();
        tasks.push(tokio::spawn(async move {
            ready.wait().await;
            let mut seen = Vec::with_capacity(if i == 0 { writes } else { 0 });
            let mut count = 0;
            while count < writes as isize {
                count += connection.events().await.map_err(|e| e.to_string())?;
                if i == 0 {
                    seen.resize(usize::try_from(count).unwrap_or(0).max(seen.len()), now());
                }
            }
            Ok::<_, String>(seen)
        }));
    }
    let mut writer = target.connect().await?;
    ready.wait().await;
    let begun = now();
    let mut sent = Vec::with_capacity(writes);
    for i in 0..writes {
        sent.push(now());
        writer
            .call(
                "PATCH",
                "/api/v1/namespaces/bench/configmaps/target",
                &format!(r#"{{"data":{{"version":"{watchers}-{i}"}}}}"#),
            )
            .await?;
    }
    let mut first = Vec::new();
    for task in tasks {
        let seen = task.await??;
        if !seen.is_empty() {
            first = seen;
        }
    }
    let taken = begun.elapsed();
    let mut latencies: Vec<Duration> = first
        .iter()
        .zip(&sent)
        .map(|(seen, sent)| seen.saturating_duration_since(*sent))
        .collect();
    latencies.sort();
    Ok(FanOut {
        per_second: (watchers * writes) as f64 / taken.as_secs_f64(),
        p50: latencies[latencies.len() / 2],
        p99: latencies[latencies.len() * 99 / 100],
    })
}
