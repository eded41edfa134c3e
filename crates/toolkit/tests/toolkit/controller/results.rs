//! Results of a reconcile: requeue, back-off, metrics.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bellerophon::controller::ControllerOptions;
use bellerophon::prelude::*;
use bellerophon::queue::{Backoff, RateLimit};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use tokio::time::{Instant, sleep};

use crate::harness::{
    Fault, Log, TestServer, assert_line, create, faulty_client, fixture, manager, maps, run,
    secret, server, set_data,
};

/// What the reconcilers below use.
#[derive(Clone, Default)]
struct Context {
    log: Log,
    /// The time of the first reconcile.
    start: Arc<OnceLock<Instant>>,
}

impl Context {
    fn new(log: &Log) -> Arc<Self> {
        Arc::new(Self {
            log: log.clone(),
            ..Self::default()
        })
    }

    /// The time since the first reconcile; zero before it.
    fn elapsed(&self) -> Duration {
        self.start.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Logs the name of the object and the seconds since the first reconcile.
    fn log_time(&self, req: &Request<ConfigMap>) {
        self.start.get_or_init(Instant::now);
        let seconds = self.elapsed().as_secs();
        self.log.push(format!("{} {seconds}", req.key().name()));
    }
}

/// Asserts the times of the reconciles of an object, in seconds. On a control plane they are not
/// earlier, and only some time later.
#[track_caller]
fn assert_times(server: &TestServer, log: &Log, name: &str, expected: &[u64]) {
    let calls = log.all();
    let calls = calls.iter().map(|call| call.split_once(' ').unwrap());
    let times: Vec<u64> = calls
        .filter(|(object, _)| *object == name)
        .map(|(_, at)| at.parse().unwrap())
        .collect();
    let late = server.time_without_timers().as_secs();
    let is_expected = times.len() == expected.len()
        && times
            .iter()
            .zip(expected)
            .all(|(time, expected)| (*expected..=expected + late).contains(time));
    assert!(is_expected, "{name}: {times:?} instead of {expected:?}");
}

/// A back-off of 1 s, 2 s, 4 s, …
fn options() -> ControllerOptions {
    let backoff = Backoff {
        first_delay: Duration::from_secs(1),
        ..Backoff::default()
    };
    ControllerOptions {
        concurrency: Some(8),
        reconcile_timeout: Some(Duration::from_secs(30)),
        rate_limit: Some(RateLimit {
            backoff: Some(backoff),
            bucket: None,
        }),
        ..ControllerOptions::default()
    }
}

async fn result_by_name(ctx: Arc<Context>, req: Request<ConfigMap>) -> Result<Action, Error> {
    ctx.log_time(&req);
    match (req.key().name(), req.attempt()) {
        ("again", _) if ctx.elapsed() < Duration::from_secs(20) => {
            Ok(Action::requeue_after(Duration::from_secs(10)))
        }
        ("broken", _) => Err(Error::permanent("spec.replicas must be 0 or more")),
        ("failing", 1..=3) => Err(Error::retry("not yet")),
        ("panicking", 1) => panic!("on purpose"),
        ("slow", 1) => std::future::pending().await,
        _ => Ok(Action::await_change()),
    }
}

#[tokio::test(start_paused = true)]
async fn each_result_has_its_consequence() {
    let (server, client, log, mut mgr, maps) = fixture().await;
    let metrics = mgr.metrics().clone();
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .with_options(options())
        .name("maps")
        .context(Context::new(&log))
        .reconcile(result_by_name);
    for name in ["again", "broken", "done", "failing", "panicking", "slow"] {
        create(&client, name).await;
    }
    run(mgr, async {
        sleep(Duration::from_secs(300)).await;
    })
    .await;
    for (name, expected) in [
        ("again", &[0, 10, 20][..]),
        ("broken", &[0]),
        ("done", &[0]),
        ("failing", &[0, 1, 3, 7]),
        ("panicking", &[0, 1]),
        ("slow", &[0, 31]),
    ] {
        assert_times(&server, &log, name, expected);
    }
    let text = metrics.encode();
    for line in [
        r#"controller_runtime_terminal_reconcile_errors_total{controller="maps"} 1"#,
        r#"controller_runtime_reconcile_panics_total{controller="maps"} 1"#,
        r#"controller_runtime_reconcile_timeouts_total{controller="maps"} 1"#,
        r#"controller_runtime_reconcile_errors_total{controller="maps"} 6"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="requeue_after"} 2"#,
        r#"controller_runtime_active_workers{controller="maps"} 0"#,
    ] {
        assert_line(&text, line);
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_delays_the_retry_and_not_the_back_off() {
    let (server, client, log, mut mgr, maps) = fixture().await;
    let metrics = mgr.metrics().clone();
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .with_options(options())
        .name("maps")
        .context(Context::new(&log))
        .reconcile(async |ctx: Arc<Context>, req: Request<ConfigMap>| {
            ctx.log_time(&req);
            match ctx.log.all().len() {
                1 | 2 => Err(Error::retry_after(Duration::from_secs(60), "rate limited")),
                3 | 4 => Err(Error::retry("not yet")),
                _ => Ok(Action::await_change()),
            }
        });
    create(&client, "icarus").await;
    run(mgr, async {
        sleep(Duration::from_secs(300)).await;
    })
    .await;
    assert_times(&server, &log, "icarus", &[0, 60, 120, 121, 123]);
    let text = metrics.encode();
    for line in [
        r#"controller_runtime_reconcile_errors_total{controller="maps"} 4"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="error"} 4"#,
        r#"controller_runtime_terminal_reconcile_errors_total{controller="maps"} 0"#,
    ] {
        assert_line(&text, line);
    }
}

/// Writes a version of the object that is not the newest one, at the first attempts.
async fn write_old_version(ctx: Arc<Context>, req: Request<ConfigMap>) -> Result<Action, Error> {
    ctx.log_time(&req);
    let Some(map) = req.object() else {
        return Ok(Action::await_change());
    };
    let client = req.client();
    if req.attempt() > 2 {
        return Ok(Action::await_change());
    }
    // Another client writes between the read and the write of this reconcile.
    set_data(
        client.kube(),
        req.key().name(),
        "a",
        &req.attempt().to_string(),
    )
    .await;
    if req.attempt() == 1 {
        client.update(map).await?;
    } else {
        let maps = Api::<ConfigMap>::namespaced(client.kube().clone(), "default");
        let params = PostParams::default();
        maps.replace(req.key().name(), &params, map).await?;
    }
    Ok(Action::await_change())
}

#[tokio::test(start_paused = true)]
async fn conflict_is_retried_and_counted_as_requeue() {
    let (server, client, log, mut mgr, maps) = fixture().await;
    let metrics = mgr.metrics().clone();
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .with_options(options())
        .name("maps")
        .predicate(Predicate::labels_changed())
        .context(Context::new(&log))
        .reconcile(write_old_version);
    create(&client, "icarus").await;
    run(mgr, async {
        sleep(Duration::from_secs(60)).await;
    })
    .await;
    // With back-off.
    assert_times(&server, &log, "icarus", &[0, 1, 3]);
    let text = metrics.encode();
    for line in [
        r#"controller_runtime_reconcile_total{controller="maps",result="requeue"} 2"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="error"} 0"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="success"} 1"#,
        r#"controller_runtime_reconcile_errors_total{controller="maps"} 0"#,
    ] {
        assert_line(&text, line);
    }
}

#[tokio::test(start_paused = true)]
async fn name_that_already_exists_is_counted_as_error() {
    let server = server().await;
    let client = server.client();
    let mut mgr = manager(&client);
    let metrics = mgr.metrics().clone();
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .name("maps")
        .reconcile(async |req: Request<ConfigMap>| {
            if let Some(map) = req.object()
                && req.attempt() == 1
            {
                let mut new = map.clone();
                new.metadata.resource_version = None;
                req.client().create(&new).await?;
            }
            Ok(Action::await_change())
        });
    create(&client, "icarus").await;
    run(mgr, async {
        sleep(Duration::from_secs(60)).await;
    })
    .await;
    let text = metrics.encode();
    for line in [
        r#"controller_runtime_reconcile_total{controller="maps",result="requeue"} 0"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="error"} 1"#,
    ] {
        assert_line(&text, line);
    }
}

/// The back-off of a key used to grow to 1,000 s while the API server was unreachable, and nothing
/// shortened it when the server was back.
#[tokio::test(start_paused = true)]
async fn reconcile_without_a_response_is_retried_every_five_seconds() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    let context = Context::new(&log);
    let times = context.clone();
    let faulty = faulty_client(&server, move |request| {
        let is_write = request.uri().path().ends_with("/secrets");
        match is_write && times.elapsed() < Duration::from_secs(60) {
            true => Fault::Disconnect,
            false => Fault::None,
        }
    });
    let mut mgr = manager(&faulty);
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .with_options(options())
        .context(context)
        .reconcile(async |ctx: Arc<Context>, req: Request<ConfigMap>| {
            ctx.log_time(&req);
            req.client().create(&secret("child")).await?;
            Ok(Action::await_change())
        });
    create(&client, "a").await;
    run(mgr, async {
        sleep(Duration::from_secs(120)).await;
    })
    .await;
    let expected = [0, 1, 3, 7, 12, 17, 22, 27, 32, 37, 42, 47, 52, 57, 62];
    assert_times(&server, &log, "a", &expected);
}
