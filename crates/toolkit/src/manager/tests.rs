//! Promises of the manager, on the embedded server in paused time.

use std::sync::{Arc, Mutex};

use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use tokio::time::Instant;

use super::*;
use crate::{ControllerOptions, InformerOptions, Outcome, Request};

type Calls = Arc<Mutex<Vec<String>>>;

fn options(leader: Option<&str>) -> ManagerOptions {
    ManagerOptions {
        leader: leader.map(|identity| LeaderOptions::new("default", "lock", identity)),
        entropy: Entropy::seeded(1),
        clock: WallClock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap()),
        ..ManagerOptions::default()
    }
}

/// A manager with one controller that notes who works on what, and takes a while for each.
fn manager(
    server: &ApiServer,
    who: &'static str,
    options: ManagerOptions,
    calls: &Calls,
    takes: Duration,
) -> Manager {
    let maps = SharedInformer::<ConfigMap>::new(
        server.client(),
        (),
        InformerOptions {
            labels: Some("test".into()),
            ..InformerOptions::default()
        },
    );
    let calls = calls.clone();
    let of_controller = ControllerOptions {
        metrics: options.metrics.clone(),
        ..ControllerOptions::default()
    };
    let controller = Controller::of(&maps)
        .with_options(of_controller)
        .reconcile_with(move |request: Request<ConfigMap>| {
            let calls = calls.clone();
            async move {
                calls
                    .lock()
                    .unwrap()
                    .push(format!("{who} begins {}", request.key.name()));
                sleep(takes).await;
                calls
                    .lock()
                    .unwrap()
                    .push(format!("{who} ends {}", request.key.name()));
                Ok(Outcome::Done)
            }
        });
    Manager::new(server.client(), options)
        .cache(&maps)
        .controller(controller)
}

async fn create(server: &ApiServer, name: &str) {
    let map = serde_json::json!({ "metadata": { "name": name, "labels": { "test": "" } } });
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(map).unwrap(),
    )
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn stop_ends_what_was_begun_and_gives_the_lease_back() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (calls, stop) = (Calls::default(), CancellationToken::new());
    create(&server, "a").await;
    create(&server, "b").await;
    let manager = manager(
        &server,
        "one",
        options(Some("one")),
        &calls,
        Duration::from_secs(20),
    );
    let health = manager.health();
    assert!(!health.is_ready());
    let running = tokio::spawn(manager.run(stop.clone()));
    sleep(Duration::from_secs(5)).await;
    assert!(health.is_ready(), "{:?}", health.readiness());
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(*calls.lock().unwrap(), ["one begins a", "one ends a"]);
    let lease = Api::<Lease>::namespaced(server.client(), "default")
        .get("lock")
        .await
        .unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_end_is_cut_off_after_the_grace() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (calls, stop, start) = (Calls::default(), CancellationToken::new(), Instant::now());
    create(&server, "a").await;
    let manager = manager(
        &server,
        "one",
        options(None),
        &calls,
        Duration::from_secs(3600),
    );
    let running = tokio::spawn(manager.run(stop.clone()));
    sleep(Duration::from_secs(5)).await;
    stop.cancel();
    assert!(matches!(
        running.await.unwrap(),
        Err(ManagerError::Grace(_))
    ));
    assert_eq!(start.elapsed().as_secs(), 35);
}

/// Tasks that were cut off used to be on their way out still when the manager had returned.
#[tokio::test(start_paused = true)]
async fn nothing_runs_any_more_when_the_manager_returns() {
    struct Ends(Calls, &'static str);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.lock().unwrap().push(format!("{} ended", self.1));
        }
    }
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (calls, stop, closing) = (
        Calls::default(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    create(&server, "a").await;
    let maps = SharedInformer::<ConfigMap>::new(server.client(), (), InformerOptions::default());
    let (worker, background) = (calls.clone(), Ends(calls.clone(), "background"));
    let controller = Controller::of(&maps).reconcile_with(move |_: Request<ConfigMap>| {
        let ends = Ends(worker.clone(), "worker");
        async move {
            std::future::pending::<()>().await;
            drop(ends);
            Ok(Outcome::Done)
        }
    });
    let options = ManagerOptions {
        grace: Duration::ZERO,
        ..options(None)
    };
    let manager = Manager::new(server.client(), options)
        .controller(controller)
        .background("for ever", async move |_| {
            std::future::pending::<()>().await;
            drop(background);
            Ok(())
        });
    let cache = tokio::spawn({
        let closing = closing.clone();
        async move { maps.run(closing).await }
    });
    let (ran, ()) = tokio::join!(
        async {
            let ran = manager.run(stop.clone()).await;
            assert_eq!(
                calls.lock().unwrap().len(),
                2,
                "{:?}",
                calls.lock().unwrap()
            );
            ran
        },
        async {
            sleep(Duration::from_secs(5)).await;
            stop.cancel();
        }
    );
    assert!(matches!(ran, Err(ManagerError::Grace(_))));
    closing.cancel();
    cache.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn standby_is_warm_and_takes_over() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let calls = Calls::default();
    let (first_stop, second_stop) = (CancellationToken::new(), CancellationToken::new());
    let first = manager(
        &server,
        "first",
        options(Some("first")),
        &calls,
        Duration::ZERO,
    );
    let first = tokio::spawn(first.run(first_stop.clone()));
    sleep(Duration::from_secs(5)).await;
    let second = manager(
        &server,
        "second",
        options(Some("second")),
        &calls,
        Duration::ZERO,
    );
    let warm = second.health();
    let second = tokio::spawn(second.run(second_stop.clone()));
    create(&server, "a").await;
    sleep(Duration::from_secs(30)).await;
    assert!(warm.is_ready(), "the standby's caches are synced");
    assert_eq!(
        *calls.lock().unwrap(),
        ["first begins a", "first ends a"],
        "only the leader works"
    );
    first_stop.cancel();
    first.await.unwrap().unwrap();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(
        calls.lock().unwrap()[2..],
        ["second begins a", "second ends a"]
    );
    second_stop.cancel();
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn failing_part_stops_the_others_in_order() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let calls = Calls::default();
    create(&server, "a").await;
    let manager = manager(
        &server,
        "one",
        options(None),
        &calls,
        Duration::from_secs(10),
    )
    .background("the clock", async |_| {
        sleep(Duration::from_secs(5)).await;
        Err("it broke".into())
    });
    let error = manager.run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "the clock failed: it broke");
    assert_eq!(
        *calls.lock().unwrap(),
        ["one begins a", "one ends a"],
        "what was begun came to its end"
    );
}

async fn page(address: SocketAddr, path: &str) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

#[tokio::test]
async fn pages_are_served_before_the_caches_are_synced() {
    let address = free_address().await;
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<String>, std::convert::Infallible>>()
    });
    let client = Client::new(silent, "default");
    let maps = SharedInformer::<ConfigMap>::new(client.clone(), (), InformerOptions::default());
    let stop = CancellationToken::new();
    let manager = Manager::new(
        client,
        ManagerOptions {
            pages: Some(address),
            ..options(None)
        },
    )
    .cache(&maps);
    let running = tokio::spawn(manager.run(stop.clone()));
    let ready = loop {
        match page(address, "/readyz").await {
            Ok(ready) => break ready,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert!(
        ready.contains("500 Internal Server Error") && ready.contains("failed: not synced"),
        "{ready}"
    );
    assert!(page(address, "/healthz").await.unwrap().contains("200 OK"));
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn pages_are_served_while_it_runs() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let address = free_address().await;
    let stop = CancellationToken::new();
    let manager = manager(
        &server,
        "one",
        ManagerOptions {
            pages: Some(address),
            ..options(None)
        },
        &Calls::default(),
        Duration::ZERO,
    );
    let health = manager.health();
    let running = tokio::spawn(manager.run(stop.clone()));
    while !health.is_ready() {
        tokio::task::yield_now().await;
    }
    for (path, words) in [
        ("/healthz", "200 OK"),
        ("/readyz", "readyz check passed"),
        ("/metrics", "workqueue_depth"),
    ] {
        let answer = page(address, path).await.unwrap();
        assert!(answer.contains(words), "{path}: {answer}");
    }
    stop.cancel();
    running.await.unwrap().unwrap();
}
