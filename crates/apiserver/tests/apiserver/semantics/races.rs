//! Concurrent writers: no write is lost or applied twice, and all watchers see one order.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bellerophon_apiserver::ApiServer;
use futures_util::{StreamExt as _, TryStreamExt as _, future::join_all};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::sync::mpsc;

const WRITERS: usize = 8;

async fn started() -> (ApiServer, Client) {
    let server = ApiServer::builder()
        .seed(7)
        .start()
        .await
        .expect("a server without a socket starts");
    let client = server.client();
    (server, client)
}

fn counter(name: &str, count: usize) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([("count".to_owned(), count.to_string())].into()),
        ..ConfigMap::default()
    }
}

fn count(object: &ConfigMap) -> usize {
    object
        .data
        .as_ref()
        .and_then(|data| data.get("count"))
        .and_then(|text| text.parse().ok())
        .expect("a count")
}

fn version(object: &ConfigMap) -> u64 {
    object
        .metadata
        .resource_version
        .as_ref()
        .and_then(|text| text.parse().ok())
        .expect("a resourceVersion")
}

/// Adds one, by reading and writing until there is no conflict. Returns the versions it made.
async fn increment(maps: &Api<ConfigMap>, name: &str, times: usize) -> Vec<u64> {
    let mut versions = Vec::new();
    while versions.len() < times {
        let mut object = maps.get(name).await.expect("it is there");
        let next = count(&object) + 1;
        object.data = Some([("count".to_owned(), next.to_string())].into());
        match maps.replace(name, &PostParams::default(), &object).await {
            Ok(written) => versions.push(version(&written)),
            Err(kube::Error::Api(status)) if status.code == 409 => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
    versions
}

async fn on_tasks<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    join_all(tasks.into_iter().map(tokio::spawn))
        .await
        .into_iter()
        .map(|done| done.expect("no task panics"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_update_is_lost() {
    const EACH: usize = 25;
    let (server, client) = started().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let first = maps
        .create(&PostParams::default(), &counter("c", 0))
        .await
        .expect("a free name");
    let watch = maps
        .watch(
            &WatchParams::default().timeout(290),
            first
                .metadata
                .resource_version
                .as_deref()
                .unwrap_or_default(),
        )
        .await
        .expect("a watch");
    let versions = on_tasks((0..WRITERS).map(|_| {
        let maps = maps.clone();
        async move { increment(&maps, "c", EACH).await }
    }))
    .await
    .concat();
    assert_eq!(
        count(&maps.get("c").await.expect("it is there")),
        WRITERS * EACH
    );
    let unique: BTreeSet<u64> = versions.iter().copied().collect();
    assert_eq!(
        unique.len(),
        WRITERS * EACH,
        "every write has its own version"
    );

    let seen: Vec<ConfigMap> = watch
        .map_ok(|event| match event {
            WatchEvent::Modified(object) => object,
            other => panic!("{other:?}"),
        })
        .take(WRITERS * EACH)
        .try_collect()
        .await
        .expect("no broken event");
    let counts: Vec<usize> = seen.iter().map(count).collect();
    assert_eq!(
        counts,
        (1..=WRITERS * EACH).collect::<Vec<_>>(),
        "watchers see every version in order"
    );
    assert!(
        seen.iter().map(version).eq(unique),
        "under the versions that were answered"
    );
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_of_different_objects_share_one_order() {
    const EACH: usize = 20;
    let (server, client) = started().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    for writer in 0..WRITERS {
        maps.create(&PostParams::default(), &counter(&format!("c{writer}"), 0))
            .await
            .expect("a free name");
    }
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(
            maps.watch(&WatchParams::default().timeout(290), "0")
                .await
                .expect("a watch"),
        );
    }
    let versions = on_tasks((0..WRITERS).map(|writer| {
        let maps = maps.clone();
        async move { increment(&maps, &format!("c{writer}"), EACH).await }
    }))
    .await;
    for made in &versions {
        assert!(
            made.is_sorted_by(|a, b| a < b),
            "a writer's versions grow: {made:?}"
        );
    }
    let all: BTreeSet<u64> = versions.concat().into_iter().collect();
    assert_eq!(all.len(), WRITERS * EACH);
    for watch in watches {
        let seen: Vec<u64> = watch
            .try_filter_map(|event| async move {
                Ok(if let WatchEvent::Modified(object) = event {
                    Some(version(&object))
                } else {
                    None
                })
            })
            .take(WRITERS * EACH)
            .try_collect()
            .await
            .expect("no broken event");
        assert!(seen.iter().eq(&all), "each once, in order");
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_creates_of_a_name_wins() {
    let (server, client) = started().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    for round in 0..20 {
        let outcomes = on_tasks((0..WRITERS).map(|writer| {
            let maps = maps.clone();
            async move {
                maps.create(
                    &PostParams::default(),
                    &counter(&format!("r{round}"), writer),
                )
                .await
            }
        }))
        .await;
        let (won, lost): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1);
        assert_eq!(lost.len(), WRITERS - 1);
        let stored = maps.get(&format!("r{round}")).await.expect("it is there");
        assert_eq!(
            count(&stored),
            count(won[0].as_ref().expect("it won")),
            "what is stored is what was answered"
        );
        assert!(lost.iter().all(|outcome| matches!(outcome, Err(kube::Error::Api(status)) if status.reason == "AlreadyExists")));
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn generated_names_never_collide() {
    const EACH: usize = 50;
    let (server, client) = started().await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let names = on_tasks((0..WRITERS).map(|_| {
        let maps = maps.clone();
        async move {
            let object = ConfigMap {
                metadata: ObjectMeta {
                    generate_name: Some("g-".to_owned()),
                    ..ObjectMeta::default()
                },
                ..ConfigMap::default()
            };
            let mut names = Vec::new();
            for _ in 0..EACH {
                names.push(
                    maps.create(&PostParams::default(), &object)
                        .await
                        .expect("a free name")
                        .metadata
                        .name
                        .expect("a name"),
                );
            }
            names
        }
    }))
    .await
    .concat();
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), WRITERS * EACH);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_address_of_a_service_is_its_own() {
    use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
    let (server, client) = started().await;
    let services: Api<Service> = Api::namespaced(client, "default");
    let made = on_tasks((0..64).map(|i| {
        let services = services.clone();
        async move {
            let service = Service {
                metadata: ObjectMeta {
                    name: Some(format!("s{i}")),
                    ..ObjectMeta::default()
                },
                spec: Some(ServiceSpec {
                    type_: Some("NodePort".to_owned()),
                    ports: Some(vec![ServicePort {
                        port: 80,
                        ..ServicePort::default()
                    }]),
                    ..ServiceSpec::default()
                }),
                ..Service::default()
            };
            let spec = services
                .create(&PostParams::default(), &service)
                .await
                .expect("an address is free")
                .spec
                .expect("a spec");
            (spec.cluster_ip, spec.ports.unwrap_or_default()[0].node_port)
        }
    }))
    .await;
    let addresses: BTreeSet<_> = made.iter().map(|(address, _)| address).collect();
    let ports: BTreeSet<_> = made.iter().map(|(_, port)| port).collect();
    assert_eq!(addresses.len(), 64);
    assert_eq!(ports.len(), 64);
    server.shutdown().await;
}

/// The delete marked the pod, the status of a kubelet completed the deletion, and the client
/// received 404.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn delete_that_a_kubelet_completes_succeeds() {
    let (to_kubelet, mut terminating) = mpsc::channel::<String>(1);
    let (done, written) = std::sync::mpsc::sync_channel(1);
    let written = Mutex::new(written);
    let server = ApiServer::builder()
        .observe_writes(move |write| {
            let pod: Pod = serde_json::from_slice(write.object()).unwrap_or_default();
            let is_marked = pod.metadata.deletion_timestamp.is_some() && !write.is_deletion;
            if *write.resource == *"/pods"
                && is_marked
                && to_kubelet.try_send(write.name().to_owned()).is_ok()
            {
                // The delete continues when the kubelet has written.
                let written = written.lock().expect("no thread panics");
                written.recv().expect("a kubelet");
            }
        })
        .start()
        .await
        .expect("a server without a socket starts");
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    let statuses = pods.clone();
    let kubelet = tokio::spawn(async move {
        let name = terminating.recv().await.expect("a terminating pod");
        let status = Patch::Merge(json!({"status": {"phase": "Failed"}}));
        statuses
            .patch_status(&name, &PatchParams::default(), &status)
            .await
            .expect("the pod is there");
        done.send(()).expect("the delete waits");
    });
    let account = json!({"metadata": {"name": "default"}});
    let account = serde_json::from_value(account).expect("a service account");
    Api::<ServiceAccount>::namespaced(server.client(), "default")
        .create(&PostParams::default(), &account)
        .await
        .expect("a free name");
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    pods.create(&PostParams::default(), &pod)
        .await
        .expect("a free name");
    pods.delete("p", &DeleteParams::default().grace_period(0))
        .await
        .expect("it was there");
    kubelet.await.expect("the kubelet does not panic");
    assert!(pods.get_opt("p").await.expect("an answer").is_none());
    server.shutdown().await;
}
