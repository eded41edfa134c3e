//! The Bellerophon operator with real members, on `bellerophon up --runtime process`.
//!
//! Clients write, read and watch all the time; their history is checked for linearizability and
//! for lost writes.

use bellerophon_linearizability::{History, Options, check};
use bellerophon_store_client::{Client as StoreClient, ClientOptions, ListOptions};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::hero_stores::{KilledOperator, Stores, wait_for_writes};
use crate::store_load::Load;

/// Concurrent clients of the store.
const CLIENTS: u64 = 3;

fn assert_linearizable(history: &History) {
    let report = check(history, &Options::default());
    let report = report.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.operations > 0, "{report:?}");
    assert_eq!(report.unchecked_reads, 0, "{report:?}");
}

/// All keys and values.
async fn contents(options: ClientOptions) -> Vec<(String, Vec<u8>)> {
    let client = StoreClient::new(options);
    let mut list = ListOptions::default();
    let mut contents = Vec::new();
    loop {
        let page = client.list(&list).await.expect("the store serves");
        let items = page.items.into_iter();
        contents.extend(items.map(|item| (item.key.as_str().to_owned(), item.value)));
        match page.continue_from {
            Some(start) => list.start = Some(start),
            None => return contents,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_is_scaled_healed_and_restored_under_load() {
    let stores = Stores::start().await;
    stores.create("icarus", 1, Value::Null).await;
    stores.wait_until_running("icarus", 1).await;
    let options = stores.options("icarus").await;
    let load = Load::start(options.clone(), CLIENTS, 1);
    for voters in [3, 5, 3] {
        stores.scale("icarus", voters).await;
        stores.wait_until_running("icarus", voters as u64).await;
        wait_for_writes(&load).await;
    }

    // As a kill -9 of the leader: its Pod is deleted without a grace period.
    let hero = stores.heroes.get("icarus").await.expect("it exists").data;
    let leader = hero["status"]["leader"].as_str().expect("a leader");
    let pods: Api<Pod> = Api::default_namespaced(stores.client.clone());
    let without_grace = DeleteParams::default().grace_period(0);
    let killed = pods.delete(leader, &without_grace).await;
    killed.expect("the Pod is deleted");
    wait_for_writes(&load).await;
    stores.wait_until_running("icarus", 3).await;

    stores.scale("icarus", 1).await;
    stores.wait_until_running("icarus", 1).await;
    wait_for_writes(&load).await;
    assert_linearizable(&load.stop().await);

    let backup = json!({
        "apiVersion": "stable.bellerophon.io/v1beta7",
        "kind": "Backup",
        "metadata": {"name": "first"},
        "spec": {"hero": "icarus"},
    });
    let backup = serde_json::from_value(backup).expect("a custom resource");
    let created = stores.backups.create(&PostParams::default(), &backup).await;
    created.expect("it is created");
    let backup = stores.wait_for(&stores.backups, "first", |backup| {
        let phase = &backup["status"]["phase"];
        assert_ne!(phase, "Failed", "{backup:#}");
        phase == "Completed"
    });
    let backup = backup.await;
    assert_eq!(
        backup["status"]["checksum"].as_str().map(str::len),
        Some(64)
    );

    let restore = json!({"restore": {"backup": "first"}});
    stores.create("daedalus", 3, restore).await;
    let restored = stores.wait_until_running("daedalus", 3).await;
    let original = stores.heroes.get("icarus").await.expect("it exists").data;
    let cluster = |hero: &Value| hero["status"]["clusterId"].as_str().map(str::to_owned);
    assert_ne!(cluster(&restored), cluster(&original));
    let expected = contents(options).await;
    assert!(!expected.is_empty());
    assert_eq!(contents(stores.options("daedalus").await).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_is_scaled_and_upgraded_under_load_while_its_operator_is_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let images = directory.path().join("images.yaml");
    let table = json!({"images": [{
        "image": "bellerophon:0.2.0",
        "program": env!("CARGO_BIN_EXE_bellerophon"),
        "env": {"BELLEROPHON_STORE_VERSION": "0.2.0"},
    }]});
    std::fs::write(&images, table.to_string()).expect("a file");
    let images = images.to_str().expect("a path");
    let stores = Stores::start_without_operator(&["--images", images]).await;
    let operator = KilledOperator::start(&stores);
    stores.create("icarus", 1, Value::Null).await;
    let installed = stores.wait_until_running("icarus", 1).await;
    assert_eq!(installed["status"]["version"], "0.1.0");
    let load = Load::start(stores.options("icarus").await, CLIENTS, 2);
    for voters in [3, 5, 3] {
        stores.scale("icarus", voters).await;
        stores.wait_until_running("icarus", voters as u64).await;
        wait_for_writes(&load).await;
    }

    let image = json!({"image": "bellerophon:0.2.0"});
    stores.patch("icarus", image).await;
    stores
        .wait_for(&stores.heroes, "icarus", |hero| {
            let members = hero["status"]["members"].as_array();
            hero["status"]["phase"] == "Running"
                && hero["status"]["version"] == "0.2.0"
                && members.is_some_and(|all| all.iter().all(|one| one["version"] == "0.2.0"))
        })
        .await;
    wait_for_writes(&load).await;

    stores.scale("icarus", 1).await;
    stores.wait_until_running("icarus", 1).await;
    wait_for_writes(&load).await;
    assert_linearizable(&load.stop().await);
    let kills = operator.stop().await;
    assert!(kills >= 20, "{kills} kills");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_loses_no_write_when_nodes_lose_power() {
    let stores = Stores::start().await;
    stores.create("icarus", 5, Value::Null).await;
    let hero = stores.wait_until_running("icarus", 5).await;
    let load = Load::start(stores.options("icarus").await, CLIENTS, 3);
    wait_for_writes(&load).await;

    // The node of the leader: its members are killed with SIGKILL, and its kubelet stops.
    let pods: Api<Pod> = Api::default_namespaced(stores.client.clone());
    let leader = hero["status"]["leader"].as_str().expect("a leader");
    let leader = pods.get(leader).await.expect("a Pod");
    let node = leader.spec.and_then(|spec| spec.node_name).expect("a node");
    let nodes: Api<Node> = Api::all(stores.client.clone());
    set_power(&nodes, &node, json!("off")).await;
    wait_for_writes(&load).await;
    set_power(&nodes, &node, Value::Null).await;
    stores.wait_until_running("icarus", 5).await;
    wait_for_writes(&load).await;

    let all = nodes.list(&ListParams::default()).await.expect("nodes");
    assert!(all.items.len() > 1);
    for node in &all.items {
        set_power(&nodes, &node.name_any(), json!("off")).await;
    }
    for node in &all.items {
        set_power(&nodes, &node.name_any(), Value::Null).await;
    }
    wait_for_writes(&load).await;
    let after = stores.wait_until_running("icarus", 5).await;
    let voters = |hero: &Value| hero["status"]["voters"].clone();
    assert_eq!(voters(&after), voters(&hero), "no member was replaced");
    assert_linearizable(&load.stop().await);
}

/// Powers a node off, or on with null.
async fn set_power(nodes: &Api<Node>, name: &str, power: Value) {
    let annotations = json!({"sim.bellerophon.io/power": power});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let patched = nodes.patch(name, &PatchParams::default(), &patch).await;
    patched.expect("the Node is changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_without_quorum_is_reported_and_left_as_it_is() {
    let stores = Stores::start().await;
    stores.create("icarus", 3, Value::Null).await;
    let hero = stores.wait_until_running("icarus", 3).await;
    let members = hero["status"]["members"].as_array().expect("members");
    let names: Vec<&str> = members
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    let pods: Api<Pod> = Api::default_namespaced(stores.client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(stores.client.clone());
    let [kept, lost @ ..] = names.as_slice() else {
        panic!("no members: {hero:#}");
    };
    let kept_uid = pods.get(kept).await.expect("a Pod").uid();
    let without_grace = DeleteParams::default().grace_period(0);
    for name in lost {
        let deleted = claims.delete(name, &DeleteParams::default()).await;
        deleted.expect("the claim is deleted");
        let deleted = pods.delete(name, &without_grace).await;
        deleted.expect("the Pod is deleted");
    }
    let hero = stores
        .wait_for(&stores.heroes, "icarus", |hero| {
            let conditions = hero["status"]["conditions"].as_array();
            let is_lost = |one: &Value| one["type"] == "QuorumLost" && one["reason"] == "DataLost";
            hero["status"]["phase"] == "QuorumLost"
                && conditions.is_some_and(|all| all.iter().any(is_lost))
        })
        .await;
    let voters = hero["status"]["voters"].as_array().map(Vec::len);
    assert_eq!(voters, Some(3), "{hero:#}");
    let left = pods.list(&ListParams::default()).await.expect("Pods").items;
    let left: Vec<_> = left
        .into_iter()
        .map(|pod| (pod.name_any(), pod.uid()))
        .collect();
    assert_eq!(left, [((*kept).to_owned(), kept_uid)]);
}
