//! Promises of controllers, on the embedded server in paused time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::{Backoff, InformerOptions};

/// A server, two informers, and what they run on.
struct World {
    _server: ApiServer,
    client: Client,
    maps: SharedInformer<ConfigMap>,
    secrets: SharedInformer<Secret>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    calls: Calls,
}

/// What was reconciled, in order.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn push(&self, call: impl Into<String>) {
        self.0.lock().unwrap().push(call.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl World {
    async fn new() -> Self {
        let server = ApiServer::builder().seed(1).start().await.unwrap();
        let client = server.client();
        let options = || Entropy::seeded(1);
        let maps = SharedInformer::new(
            client.clone(),
            (),
            InformerOptions {
                entropy: options(),
                labels: Some("test".into()),
                ..InformerOptions::default()
            },
        );
        let secrets = SharedInformer::new(
            client.clone(),
            (),
            InformerOptions {
                entropy: options(),
                ..InformerOptions::default()
            },
        );
        Self {
            _server: server,
            client,
            maps,
            secrets,
            stop: CancellationToken::new(),
            tasks: Vec::new(),
            calls: Calls::default(),
        }
    }

    fn start(&mut self, controller: Controller) {
        let stop = &self.stop;
        let (maps, secrets) = (self.maps.clone(), self.secrets.clone());
        let (a, b, c) = (stop.clone(), stop.clone(), stop.clone());
        self.tasks
            .push(tokio::spawn(async move { maps.run(a).await.unwrap() }));
        self.tasks
            .push(tokio::spawn(async move { secrets.run(b).await.unwrap() }));
        self.tasks.push(tokio::spawn(
            async move { controller.run(c).await.unwrap() },
        ));
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create_map(&self, name: &str) -> ConfigMap {
        let map = json!({ "metadata": { "name": name, "labels": { "test": "" } } });
        self.maps()
            .create(
                &PostParams::default(),
                &serde_json::from_value(map).unwrap(),
            )
            .await
            .unwrap()
    }

    async fn end(self) {
        self.stop.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

/// Lets everything happen that needs no more than this time.
async fn settle() {
    sleep(Duration::from_secs(2)).await;
}

fn word(request: &Request<ConfigMap>) -> String {
    format!(
        "{} {}",
        request.key.name(),
        if request.object.is_some() {
            "there"
        } else {
            "gone"
        }
    )
}

#[tokio::test(start_paused = true)]
async fn every_change_leads_to_a_reconcile_on_its_state() {
    let mut world = World::new().await;
    let calls = world.calls.clone();
    world.create_map("early").await;
    let controller =
        Controller::of(&world.maps).reconcile_with(move |request: Request<ConfigMap>| {
            calls.push(format!(
                "{} because {}",
                word(&request),
                request
                    .causes
                    .iter()
                    .map(|cause| cause.event.as_str())
                    .collect::<Vec<_>>()
                    .join("+")
            ));
            async { Ok(Outcome::Done) }
        });
    world.start(controller);
    settle().await;
    world.create_map("late").await;
    settle().await;
    world
        .maps()
        .patch(
            "late",
            &PatchParams::default(),
            &Patch::Merge(json!({ "data": { "a": "b" } })),
        )
        .await
        .unwrap();
    settle().await;
    world
        .maps()
        .delete("late", &DeleteParams::default())
        .await
        .unwrap();
    settle().await;
    let expected = [
        "early there because added",
        "late there because added",
        "late there because updated",
        "late gone because deleted",
    ];
    assert_eq!(world.calls.all(), expected);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn change_of_a_child_brings_its_owner() {
    let mut world = World::new().await;
    let calls = world.calls.clone();
    let owner = world.create_map("owner").await;
    let controller = Controller::of(&world.maps)
        .owns(&world.secrets)
        .reconcile_with(move |request: Request<ConfigMap>| {
            calls.push(format!("{} because {}", request.key.name(), request.causes));
            async { Ok(Outcome::Done) }
        });
    world.start(controller);
    settle().await;
    world.calls.take();
    for (name, controls) in [("child", true), ("ward", false)] {
        let mut child = Secret::default();
        child.metadata.name = Some(name.into());
        child.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: owner.name_any(),
            uid: owner.uid().unwrap(),
            controller: Some(controls),
            ..OwnerReference::default()
        }]);
        world
            .secrets()
            .create(&PostParams::default(), &child)
            .await
            .unwrap();
        settle().await;
    }
    world
        .secrets()
        .delete("child", &DeleteParams::default())
        .await
        .unwrap();
    settle().await;
    let causes: Vec<_> = world
        .calls
        .take()
        .iter()
        .map(|call| call.split(" at ").next().unwrap().to_string())
        .collect();
    assert_eq!(
        causes,
        [
            "owner because Secret default/child added",
            "owner because Secret default/child deleted"
        ]
    );
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn predicate_never_hides_a_deletion() {
    let mut world = World::new().await;
    let calls = world.calls.clone();
    let controller = Controller::of(&world.maps)
        .with_predicate(Predicate::concerns(|map: &ConfigMap| {
            map.name_any() != "boring"
        }))
        .with_predicate(Predicate::labels_changed())
        .reconcile_with(move |request: Request<ConfigMap>| {
            calls.push(word(&request));
            async { Ok(Outcome::Done) }
        });
    world.start(controller);
    for name in ["boring", "other"] {
        world.create_map(name).await;
        settle().await;
        world
            .maps()
            .patch(
                name,
                &PatchParams::default(),
                &Patch::Merge(json!({ "data": { "a": "b" } })),
            )
            .await
            .unwrap();
        settle().await;
        world
            .maps()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
        settle().await;
    }
    assert_eq!(
        world.calls.all(),
        ["boring gone", "other there", "other gone"]
    );
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_answer_has_its_consequence() {
    let mut world = World::new().await;
    let (calls, start) = (world.calls.clone(), Instant::now());
    let options = ControllerOptions {
        workers: 8,
        reconcile_timeout: Some(Duration::from_secs(30)),
        rate_limit: RateLimit {
            backoff: Some(Backoff {
                first_delay: Duration::from_secs(1),
                ..Backoff::default()
            }),
            bucket: None,
        },
        ..ControllerOptions::default()
    };
    let metrics = options.metrics.clone();
    let controller = Controller::of(&world.maps)
        .with_options(options)
        .named("maps")
        .reconcile_with(move |request: Request<ConfigMap>| {
            calls.push(format!(
                "{} {}",
                request.key.name(),
                start.elapsed().as_secs()
            ));
            async move {
                match (request.key.name(), request.attempt) {
                    ("again", _) if start.elapsed() < Duration::from_secs(20) => {
                        Ok(Outcome::RequeueAfter(Duration::from_secs(10)))
                    }
                    ("broken", _) => Err(Failure::permanent("the spec makes no sense")),
                    ("failing", 1..=3) => Err(Failure::retry("not yet")),
                    ("panicking", 1) => panic!("on purpose"),
                    ("slow", 1) => std::future::pending().await,
                    _ => Ok(Outcome::Done),
                }
            }
        });
    for name in ["again", "broken", "done", "failing", "panicking", "slow"] {
        world.create_map(name).await;
    }
    world.start(controller);
    sleep(Duration::from_secs(300)).await;
    let mut times = BTreeMap::<String, Vec<String>>::new();
    for call in world.calls.all() {
        let (name, at) = call.split_once(' ').unwrap();
        times.entry(name.into()).or_default().push(at.into());
    }
    for (name, expected) in [
        ("again", "0 10 20"),
        ("broken", "0"),
        ("done", "0"),
        ("failing", "0 1 3 7"),
        ("panicking", "0 1"),
        ("slow", "0 31"),
    ] {
        assert_eq!(times[name].join(" "), expected, "{name}");
    }
    let page = metrics.page();
    for line in [
        r#"controller_runtime_terminal_reconcile_errors_total{controller="maps"} 1"#,
        r#"controller_runtime_reconcile_panics_total{controller="maps"} 1"#,
        r#"controller_runtime_reconcile_timeouts_total{controller="maps"} 1"#,
        r#"controller_runtime_reconcile_errors_total{controller="maps"} 6"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="requeue_after"} 2"#,
        r#"controller_runtime_active_workers{controller="maps"} 0"#,
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "no line {line} in\n{page}"
        );
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_key_is_never_with_two_workers() {
    let mut world = World::new().await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (calls, most_seen) = (world.calls.clone(), most.clone());
    let controller = Controller::of(&world.maps).workers(4).reconcile_with(
        move |request: Request<ConfigMap>| {
            let (running, most, calls) = (running.clone(), most.clone(), calls.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_secs(5)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                calls.push(request.key.name());
                Ok(Outcome::Done)
            }
        },
    );
    let trigger = controller.trigger();
    world.start(controller);
    settle().await;
    for _ in 0..10 {
        trigger.reconcile(ObjectKey::namespaced("default", "one"));
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(most_seen.load(Ordering::SeqCst), 1);
    assert_eq!(
        world.calls.all(),
        ["one", "one"],
        "what came meanwhile brings it back once"
    );
    world.end().await;
}

/// The reconciler creates a child when the cache shows none. On a cache older than its write it would create another.
#[tokio::test(start_paused = true)]
async fn own_write_is_seen_before_the_next_reconcile() {
    let mut world = World::new().await;
    let (calls, client, secrets) = (
        world.calls.clone(),
        world.client.clone(),
        world.secrets.lister(),
    );
    let controller = Controller::of(&world.maps)
        .watches(&world.secrets, |_| Vec::new())
        .workers(2)
        .reconcile_with(move |request: Request<ConfigMap>| {
            let (calls, client, secrets) = (calls.clone(), client.clone(), secrets.clone());
            async move {
                let children = secrets
                    .list()
                    .into_iter()
                    .filter(|secret| secret.name_any().starts_with("child-"))
                    .count();
                if children == 0 {
                    let mut secret = Secret::default();
                    secret.metadata.generate_name = Some("child-".into());
                    let made = Api::<Secret>::namespaced(client, "default")
                        .create(&PostParams::default(), &secret)
                        .await?;
                    request.writes().wrote(&made);
                    // A change of its own comes while the child is not in the cache yet.
                    request.writes().core.queue.add(request.key.clone());
                }
                calls.push(format!("{children}"));
                Ok(Outcome::Done)
            }
        });
    world.create_map("owner").await;
    world.start(controller);
    settle().await;
    assert_eq!(world.calls.all(), ["0", "1"]);
    world.end().await;
}

/// A standby used to queue every key it ever heard of, deleted ones included, for as long as it waited.
#[tokio::test(start_paused = true)]
async fn standby_remembers_no_more_than_there_is() {
    let mut world = World::new().await;
    let (calls, maps, stop) = (world.calls.clone(), world.maps.clone(), world.stop.clone());
    let controller =
        Controller::of(&world.maps).reconcile_with(move |request: Request<ConfigMap>| {
            calls.push(word(&request));
            async { Ok(Outcome::Done) }
        });
    world
        .tasks
        .push(tokio::spawn(async move { maps.run(stop).await.unwrap() }));
    for name in ["comes", "goes", "stays"] {
        world.create_map(name).await;
        settle().await;
    }
    world
        .maps()
        .delete("goes", &DeleteParams::default())
        .await
        .unwrap();
    settle().await;
    assert_eq!(
        (controller.core.queue.len(), world.maps.stats().backlog),
        (0, 0),
        "nobody works yet, so nothing is late"
    );
    let stop = world.stop.clone();
    world.tasks.push(tokio::spawn(
        async move { controller.run(stop).await.unwrap() },
    ));
    settle().await;
    world
        .maps()
        .delete("comes", &DeleteParams::default())
        .await
        .unwrap();
    settle().await;
    assert_eq!(
        world.calls.all(),
        ["comes there", "stays there", "comes gone"]
    );
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn stop_waits_for_the_reconcile_under_way() {
    let mut world = World::new().await;
    let calls = world.calls.clone();
    let controller = Controller::of(&world.maps).reconcile_with(move |_: Request<ConfigMap>| {
        let calls = calls.clone();
        async move {
            calls.push("begun");
            sleep(Duration::from_secs(30)).await;
            calls.push("ended");
            Ok(Outcome::Done)
        }
    });
    world.create_map("a").await;
    world.create_map("b").await;
    world.start(controller);
    settle().await;
    let calls = world.calls.clone();
    world.end().await;
    assert_eq!(calls.all(), ["begun", "ended"]);
}

#[tokio::test(start_paused = true)]
async fn trace_tells_why_and_what() {
    let mut world = World::new().await;
    let trace = TraceBus::new(1000);
    let client = world.client.clone();
    let traced = InformerOptions {
        labels: Some("test".into()),
        trace: trace.clone(),
        ..InformerOptions::default()
    };
    world.maps = SharedInformer::new(client.clone(), (), traced);
    let options = ControllerOptions {
        trace: trace.clone(),
        ..ControllerOptions::default()
    };
    let controller = Controller::of(&world.maps)
        .with_options(options)
        .reconcile_with(move |request: Request<ConfigMap>| {
            let client = client.clone();
            async move {
                let Some(map) = &request.object else {
                    return Ok(Outcome::Done);
                };
                if map.data.is_none() {
                    let maps = Api::<ConfigMap>::namespaced(client, "default");
                    let answer = maps
                        .patch(
                            request.key.name(),
                            &PatchParams::default(),
                            &Patch::Merge(json!({ "data": { "a": "b" } })),
                        )
                        .await?;
                    request.writes().wrote(&answer);
                }
                Ok(Outcome::Done)
            }
        });
    world.start(controller);
    settle().await;
    world.create_map("one").await;
    settle().await;
    let records = trace.since(0).records;
    let version = records.iter().find_map(|record| match &record.event {
        crate::TraceEvent::Wrote {
            resource_version, ..
        } => resource_version.clone(),
        _ => None,
    });
    let words: Vec<_> = records
        .iter()
        .map(|record| match &record.event {
            crate::TraceEvent::Listed { objects, .. } => {
                assert_eq!(*objects, 0);
                "listed"
            }
            crate::TraceEvent::Cached {
                resource_version, ..
            } if *resource_version == version => "cached own write",
            crate::TraceEvent::Cached { .. } => "cached",
            crate::TraceEvent::Noticed {
                resource_version, ..
            } if *resource_version == version => "noticed own write",
            crate::TraceEvent::Noticed { .. } => "noticed",
            crate::TraceEvent::Enqueued { .. } => "enqueued",
            crate::TraceEvent::Started { .. } => "started",
            crate::TraceEvent::Wrote { .. } | crate::TraceEvent::Called { .. } => "wrote",
            crate::TraceEvent::Ended { .. } => "ended",
        })
        .collect();
    let mut sorted = words.clone();
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        [
            "cached",
            "cached own write",
            "ended",
            "ended",
            "enqueued",
            "enqueued",
            "listed",
            "noticed",
            "noticed own write",
            "started",
            "started",
            "wrote"
        ],
        "{words:?}"
    );
    let place = |wanted| words.iter().position(|word| *word == wanted);
    assert!(
        place("cached") < place("noticed")
            && place("cached own write") < place("noticed own write"),
        "{words:?}"
    );
    world.end().await;
}
