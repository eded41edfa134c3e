//! The read-your-writes gate: no reconcile on a cache older than the controller's own writes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bellerophon::client::WriteOptions;
use bellerophon::controller::ControllerHandle;
use bellerophon::informer::{InformerOptions, KubeListWatch, ListWatchFn};
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use tokio::time::{Instant, sleep, timeout};

use crate::harness::{
    Fault, Log, TestServer, api, create, faulty_client, fixture, is_watch, manager, maps, run,
    server, set_query, settle,
};

/// The delay of the lagging cache.
const LAG: Duration = Duration::from_secs(5);

/// How long an awaited cache may take to reconnect: shorter than the back-off after a minute.
const RECONNECT_MAX: Duration = Duration::from_secs(10);

/// A client whose watches end after a second and are resumed after [`LAG`].
fn lagging_client(server: &TestServer) -> Client {
    faulty_client(server, |request| {
        if !is_watch(request) {
            return Fault::None;
        }
        set_query(request, "timeoutSeconds", "1");
        let query = request.uri().query().unwrap_or_default();
        match query.contains("sendInitialEvents") {
            true => Fault::None,
            false => Fault::Delay(LAG),
        }
    })
}

/// Lists and watches Secrets through another client than that of the Manager.
fn secrets_of(client: Client, labels: Option<&'static str>) -> ListWatchFn {
    Arc::new(move |namespace| {
        let path = Secret::url_path(&(), namespace);
        let source = KubeListWatch::new(client.clone(), path);
        Arc::new(match labels {
            Some(labels) => source.labels(labels),
            None => source,
        })
    })
}

fn is_child(secret: &Secret) -> bool {
    secret.name_any().starts_with("child-")
}

/// What the reconciler below uses.
struct Context {
    log: Log,
    secrets: Lister<Secret>,
    start: Instant,
    write: Write,
}

/// How a child is created.
#[derive(Clone, Copy)]
enum Write {
    /// With the client of the reconcile.
    Recorded,
    /// With a plain client, and reported.
    Reported,
    /// With a plain client.
    Unreported,
}

/// Creates a child, whose name the server chooses, if the cache has none.
async fn create_child(ctx: Arc<Context>, req: Request<ConfigMap>) -> Result<Action, Error> {
    let secrets = ctx.secrets.list();
    let children = secrets.iter().filter(|secret| is_child(secret)).count();
    let seconds = ctx.start.elapsed().as_secs();
    ctx.log.push(format!("{children} at {seconds}"));
    if children > 0 {
        return Ok(Action::await_change());
    }
    let mut child = Secret::default();
    child.metadata.namespace = Some("default".into());
    child.metadata.generate_name = Some("child-".into());
    let client = req.client();
    if let Write::Recorded = ctx.write {
        client.create(&child).await?;
        return Ok(Action::await_change());
    }
    let secrets = api::<Secret>(client.kube());
    let created = secrets.create(&PostParams::default(), &child).await?;
    if let Write::Reported = ctx.write {
        client.record_write(&created);
    }
    Ok(Action::await_change())
}

/// The reconciles of a controller with a lagging cache, and the children that it created.
struct Observed {
    server: TestServer,
    reconciles: Vec<String>,
    children: usize,
}

async fn reconcile_on_a_lagging_cache(labels: Option<&'static str>, write: Write) -> Observed {
    let (server, client, log, mut mgr, maps) = fixture().await;
    let secrets = mgr.informer::<Secret>(InformerOptions {
        list_watch: Some(secrets_of(lagging_client(&server), labels)),
        ..InformerOptions::default()
    });
    let context = Context {
        log: log.clone(),
        secrets: secrets.lister(),
        start: Instant::now(),
        write,
    };
    let handle = mgr
        .controller::<ConfigMap>()
        .informer(&maps)
        .watches::<Secret>(|_| Vec::new())
        .informer(&secrets)
        .context(Arc::new(context))
        .reconcile(create_child);
    run(mgr, async {
        // Between two watches of the secrets.
        settle().await;
        create(&client, "owner").await;
        for _ in 0..40 {
            sleep(Duration::from_millis(250)).await;
            handle.enqueue(ObjectKey::namespaced("default", "owner"), "test");
        }
    })
    .await;
    let secrets = api::<Secret>(&client).list(&ListParams::default()).await;
    let secrets = secrets.unwrap().items;
    let children = secrets.iter().filter(|secret| is_child(secret)).count();
    Observed {
        server,
        reconciles: log.all(),
        children,
    }
}

fn assert_gated(observed: &Observed) {
    let Observed {
        server,
        reconciles,
        children,
    } = observed;
    assert_eq!(*children, 1);
    match server.has_virtual_time() {
        true => assert_eq!(reconciles[0], "0 at 2"),
        false => assert!(reconciles[0].starts_with("0 at "), "{reconciles:?}"),
    }
    for reconcile in &reconciles[1..] {
        assert!(reconcile.starts_with("1 at "), "{reconciles:?}");
    }
    assert!(
        reconciles.len() > 2,
        "it continues once the cache shows the child: {reconciles:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn controller_does_not_act_on_a_cache_older_than_its_write() {
    assert_gated(&reconcile_on_a_lagging_cache(None, Write::Recorded).await);
}

#[tokio::test(start_paused = true)]
async fn gate_respects_a_recorded_write_of_a_plain_client() {
    assert_gated(&reconcile_on_a_lagging_cache(None, Write::Reported).await);
}

/// Why the gate exists: without it, each reconcile on the old cache creates another child.
#[tokio::test(start_paused = true)]
async fn write_that_is_not_recorded_is_repeated_on_an_old_cache() {
    let observed = reconcile_on_a_lagging_cache(None, Write::Unreported).await;
    assert!(observed.children > 1, "{}", observed.children);
}

/// The cache selects by a label that the child does not have. It never shows the child, and the
/// owner must be reconciled nevertheless.
#[tokio::test(start_paused = true)]
async fn write_that_the_cache_does_not_select_is_not_awaited_for_long() {
    for write in [Write::Recorded, Write::Reported] {
        let observed = reconcile_on_a_lagging_cache(Some("other"), write).await;
        let times: Vec<u64> = observed
            .reconciles
            .iter()
            .map(|call| call.split(' ').next_back().unwrap().parse().unwrap())
            .collect();
        assert!(
            times.windows(2).all(|pair| pair[1] - pair[0] <= 8),
            "{times:?}"
        );
    }
}

/// A cache whose server was unreachable for a minute used to retry only after its back-off, while
/// the controller waited for its write.
#[tokio::test(start_paused = true)]
async fn awaited_cache_reconnects_within_seconds() {
    let (server, client, log, mut mgr, maps) = fixture().await;
    let is_unreachable = Arc::new(AtomicBool::new(false));
    let fault = is_unreachable.clone();
    let faulty = faulty_client(&server, move |request| {
        set_query(request, "timeoutSeconds", "2");
        match fault.load(Relaxed) {
            true => Fault::Disconnect,
            false => Fault::None,
        }
    });
    let secrets = mgr.informer::<Secret>(InformerOptions {
        list_watch: Some(secrets_of(faulty, None)),
        ..InformerOptions::default()
    });
    let context = Context {
        log: log.clone(),
        secrets: secrets.lister(),
        start: Instant::now(),
        write: Write::Recorded,
    };
    let handle = mgr
        .controller::<ConfigMap>()
        .informer(&maps)
        .watches::<Secret>(|_| Vec::new())
        .informer(&secrets)
        .context(Arc::new(context))
        .reconcile(create_child);
    run(mgr, async {
        settle().await;
        is_unreachable.store(true, Relaxed);
        sleep(Duration::from_secs(60)).await;
        is_unreachable.store(false, Relaxed);
        create(&client, "owner").await;
        log.wait_for(|lines| lines.len() == 1).await;
        handle.enqueue(ObjectKey::namespaced("default", "owner"), "test");
        let second = log.wait_for(|lines| lines.len() == 2);
        let second = timeout(RECONNECT_MAX, second).await;
        assert!(second.is_ok(), "{:?}", log.all());
        settle().await;
        let mut lines = log.all();
        if !server.has_virtual_time() {
            // A control plane takes some time besides timers.
            let children = |line: &String| line.split_once("at").unwrap().0.to_owned();
            lines = lines.iter().map(|line| children(line) + "at 62").collect();
        }
        assert_eq!(lines, ["0 at 62", "1 at 62"]);
    })
    .await;
}

/// A reconciler that enqueues its own key right after its write, before the cache can show it.
#[tokio::test(start_paused = true)]
async fn own_write_is_cached_before_the_next_reconcile() {
    struct Enqueues {
        log: Log,
        secrets: Lister<Secret>,
        handle: OnceLock<ControllerHandle>,
    }
    let server = server().await;
    let client = server.client();
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    let context = Arc::new(Enqueues {
        log: Log::default(),
        secrets: mgr.lister(),
        handle: OnceLock::new(),
    });
    let handle = mgr
        .controller::<ConfigMap>()
        .informer(&maps)
        .watches::<Secret>(|_| Vec::new())
        .concurrency(2)
        .context(context.clone())
        .reconcile(async |ctx: Arc<Enqueues>, req: Request<ConfigMap>| {
            let secrets = ctx.secrets.list();
            let children = secrets.iter().filter(|secret| is_child(secret)).count();
            ctx.log.push(children.to_string());
            if children == 0 {
                let mut child = Secret::default();
                child.metadata.generate_name = Some("child-".into());
                let secrets = api::<Secret>(req.client().kube());
                let created = secrets.create(&PostParams::default(), &child).await?;
                req.client().record_write(&created);
                let handle = ctx.handle.get().expect("it was set before the start");
                handle.enqueue(req.key().clone(), "its own write");
            }
            Ok(Action::await_change())
        });
    context.handle.set(handle).unwrap();
    create(&client, "owner").await;
    run(mgr, settle()).await;
    assert_eq!(context.log.all(), ["0", "1"]);
}

/// A deletion of a plain client that is reported is awaited as well.
#[tokio::test(start_paused = true)]
async fn recorded_deletion_is_awaited() {
    let (server, client, log, mut mgr, maps) = fixture().await;
    let secrets = mgr.informer::<Secret>(InformerOptions {
        list_watch: Some(secrets_of(lagging_client(&server), None)),
        ..InformerOptions::default()
    });
    let context = (log.clone(), secrets.lister());
    let handle = mgr
        .controller::<ConfigMap>()
        .informer(&maps)
        .watches::<Secret>(|_| Vec::new())
        .informer(&secrets)
        .context(Arc::new(context))
        .reconcile(
            async |ctx: Arc<(Log, Lister<Secret>)>, req: Request<ConfigMap>| {
                let key = ObjectKey::namespaced("default", "child");
                let exists = ctx.1.get(&key).is_some();
                ctx.0.push(exists.to_string());
                if exists {
                    let secrets = api::<Secret>(req.client().kube());
                    secrets.delete("child", &Default::default()).await?;
                    req.client().record_delete::<Secret>(&key);
                }
                Ok(Action::await_change())
            },
        );
    let child = crate::harness::secret("child");
    let created = api::<Secret>(&client)
        .create(&PostParams::default(), &child)
        .await;
    created.unwrap();
    run(mgr, async {
        settle().await;
        create(&client, "owner").await;
        for _ in 0..40 {
            sleep(Duration::from_millis(250)).await;
            handle.enqueue(ObjectKey::namespaced("default", "owner"), "test");
        }
    })
    .await;
    let calls = log.all();
    assert_eq!(calls[0], "true");
    assert!(calls.len() > 2, "{calls:?}");
    for call in &calls[1..] {
        assert_eq!(call, "false", "{calls:?}");
    }
}

/// A dry run deletes nothing, so that the next reconcile has nothing to wait for.
#[tokio::test(start_paused = true)]
async fn dry_run_of_a_deletion_is_not_awaited() {
    let (server, client, log, mut mgr, maps) = fixture().await;
    let secrets = mgr.informer::<Secret>(InformerOptions::default());
    let context = (log.clone(), secrets.lister());
    let handle = mgr
        .controller::<ConfigMap>()
        .informer(&maps)
        .watches::<Secret>(|_| Vec::new())
        .informer(&secrets)
        .context(Arc::new(context))
        .reconcile(
            async |ctx: Arc<(Log, Lister<Secret>)>, req: Request<ConfigMap>| {
                let key = ObjectKey::namespaced("default", "child");
                let child = ctx.1.get(&key).expect("it is not deleted");
                let dry_run = req.client().with_options(WriteOptions {
                    dry_run: Some(true),
                    ..WriteOptions::default()
                });
                dry_run.delete(&*child).await?;
                ctx.0.push("reconciled");
                Ok(Action::await_change())
            },
        );
    let child = crate::harness::secret("child");
    let created = api::<Secret>(&client)
        .create(&PostParams::default(), &child)
        .await;
    created.unwrap();
    run(mgr, async {
        create(&client, "owner").await;
        settle().await;
        let before = log.all().len();
        assert!(before > 0);
        handle.enqueue(ObjectKey::namespaced("default", "owner"), "test");
        let limit = Duration::from_millis(100).max(server.time_without_timers());
        timeout(limit, async {
            while log.all().len() == before {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .expect("the key is not held back");
    })
    .await;
}
