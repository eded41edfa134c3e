//! The loads: GET, POST, LIST and watch fan-out.

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

use crate::common::{
    BenchError,
    client::{Connection, Target, config_map},
    process::now,
};

type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Result<usize, BenchError>> + Send + 'a>>;

/// The number of listed objects.
const LISTED: usize = 11_241;

/// A watch of the one ConfigMap that is patched.
const WATCH_PATH: &str = "/api/v1/namespaces/bench/configmaps?watch=true\
    &fieldSelector=metadata.name%3Dtarget\
    &sendInitialEvents=false&resourceVersionMatch=NotOlderThan";

/// Creates the namespace of the loads, and the object that GET reads.
pub(crate) async fn prepare(target: &Target) -> Result<(), BenchError> {
    let mut connection = target.connect().await?;
    connection
        .call(
            "POST",
            "/api/v1/namespaces",
            r#"{"metadata":{"name":"bench"}}"#,
        )
        .await?;
    let body = config_map("target", 0);
    connection
        .call("POST", "/api/v1/namespaces/bench/configmaps", &body)
        .await?;
    Ok(())
}

/// Creates policies with bindings that match no request of the loads: every other one is for
/// Deployments, and the rest for ConfigMaps with a label that none has.
pub(crate) async fn create_policies(target: &Target, count: usize) -> Result<(), BenchError> {
    let group = "/apis/admissionregistration.k8s.io/v1";
    let mut connection = target.connect().await?;
    for number in 0..count {
        let (group_name, resource) = match number % 2 {
            0 => ("apps", "deployments"),
            _ => ("", "configmaps"),
        };
        let policy = format!(
            r#"{{"metadata":{{"name":"p{number}"}},"spec":{{"validations":[{{"expression":"size(object.metadata.name) > 0"}}],
            "matchConstraints":{{"objectSelector":{{"matchLabels":{{"bench":"never"}}}},"resourceRules":[{{"apiGroups":["{group_name}"],
            "apiVersions":["v1"],"operations":["*"],"resources":["{resource}"]}}]}}}}}}"#
        );
        let policies = format!("{group}/validatingadmissionpolicies");
        connection.call("POST", &policies, &policy).await?;
        let binding = format!(
            r#"{{"metadata":{{"name":"p{number}"}},"spec":{{"policyName":"p{number}","validationActions":["Deny"]}}}}"#
        );
        let bindings = format!("{group}/validatingadmissionpolicybindings");
        connection.call("POST", &bindings, &binding).await?;
    }
    Ok(())
}

/// The result of repeated requests.
pub(crate) struct RequestResult {
    pub(crate) count: usize,
    pub(crate) per_second: f64,
    pub(crate) mean: Duration,
}

/// One GET of one ConfigMap.
pub(crate) fn get(connection: &mut Connection, _: usize) -> ResponseFuture<'_> {
    Box::pin(call(
        connection,
        "GET",
        "/api/v1/namespaces/bench/configmaps/target".into(),
        String::new(),
    ))
}

/// One POST of a new ConfigMap.
pub(crate) fn post(connection: &mut Connection, number: usize) -> ResponseFuture<'_> {
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
) -> Result<usize, BenchError> {
    connection.call(method, &path, &body).await
}

/// Repeats a request on several connections for a time.
pub(crate) async fn requests(
    target: &Target,
    connections: usize,
    time: Duration,
    request: for<'a> fn(&'a mut Connection, usize) -> ResponseFuture<'a>,
) -> Result<RequestResult, BenchError> {
    let number = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(target.connect().await?);
    }
    let start = now();
    for mut connection in open {
        let number = number.clone();
        tasks.push(tokio::spawn(async move {
            while start.elapsed() < time {
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
    let elapsed = start.elapsed();
    let count = number.load(Ordering::Relaxed);
    Ok(RequestResult {
        count,
        per_second: count as f64 / elapsed.as_secs_f64(),
        mean: elapsed * connections as u32 / count as u32,
    })
}

/// The result of repeated lists.
pub(crate) struct ListResult {
    pub(crate) median: Duration,
    pub(crate) bytes: usize,
}

/// Lists a namespace of the size that was measured with kube-apiserver.
pub(crate) async fn list(target: &Target) -> Result<ListResult, BenchError> {
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
        let start = now();
        bytes = connection
            .call("GET", "/api/v1/namespaces/listed/configmaps", "")
            .await?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(ListResult {
        median: times[times.len() / 2],
        bytes,
    })
}

/// The result of watch fan-out.
pub(crate) struct FanOutResult {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Sequential merge patches of one ConfigMap, watched on several connections.
pub(crate) async fn fan_out(
    target: &Target,
    watchers: usize,
    writes: usize,
) -> Result<FanOutResult, BenchError> {
    let ready = Arc::new(Barrier::new(watchers + 1));
    let mut tasks = Vec::new();
    for i in 0..watchers {
        let mut connection = target.connect().await?;
        connection.watch(WATCH_PATH).await?;
        let ready = ready.clone();
        tasks.push(tokio::spawn(async move {
            ready.wait().await;
            let mut received = Vec::with_capacity(if i == 0 { writes } else { 0 });
            let mut count = 0;
            while count < writes as isize {
                count += connection.events().await.map_err(|e| e.to_string())?;
                if i == 0 {
                    let events = usize::try_from(count).unwrap_or(0);
                    received.resize(events.max(received.len()), now());
                }
            }
            Ok::<_, String>(received)
        }));
    }
    let mut writer = target.connect().await?;
    ready.wait().await;
    let start = now();
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
        let received = task.await??;
        if !received.is_empty() {
            first = received;
        }
    }
    let elapsed = start.elapsed();
    let mut latencies: Vec<Duration> = first
        .iter()
        .zip(&sent)
        .map(|(received, sent)| received.saturating_duration_since(*sent))
        .collect();
    latencies.sort();
    Ok(FanOutResult {
        per_second: (watchers * writes) as f64 / elapsed.as_secs_f64(),
        p50: latencies[latencies.len() / 2],
        p99: latencies[latencies.len() * 99 / 100],
    })
}
