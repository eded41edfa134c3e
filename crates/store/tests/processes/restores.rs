//! Snapshots over HTTP, restored into other members.

use bellerophon_store::{
    api::{Consistency, Identity, Key, Reason},
    verify_snapshot,
};
use bellerophon_store_client::RestoreRequest;

use crate::cluster::Cluster;

fn key() -> Key {
    "a".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_is_restored_as_another_cluster() {
    let mut cluster = Cluster::start(1, &[]).await;
    let client = cluster.client();
    for number in 0..5 {
        client
            .put(&key(), format!("value {number}"), None)
            .await
            .unwrap();
    }
    let mut snapshot = Vec::new();
    let download = cluster.admin().snapshot(&mut snapshot).await.unwrap();
    assert_eq!(download.bytes, snapshot.len() as u64);
    let header = verify_snapshot(snapshot.as_slice()).unwrap();
    assert_eq!(header.revision, 5);

    // The restored member is one of another cluster, which its certificate names.
    cluster.id = "restored".parse().unwrap();
    let mut setup = cluster.setup("restored", 1, &[]);
    let process = setup.start().await;
    let admin = cluster.admin_of(process.addresses);
    let mut request = RestoreRequest {
        identity: Identity {
            cluster_id: cluster.id.clone(),
            member_id: 1,
        },
        address: process.addresses.peer.to_string(),
        checksum: Some("0".repeat(64)),
        min_revision: 100,
    };
    let file = std::io::Cursor::new(snapshot.clone());
    let error = admin.restore(&request, file).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Invalid), "{error}");

    request.checksum = Some(header.checksum.clone());
    let half = std::io::Cursor::new(snapshot[..snapshot.len() / 2].to_vec());
    let error = admin.restore(&request, half).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Invalid), "{error}");

    let file = std::io::Cursor::new(snapshot.clone());
    let restored = admin.restore(&request, file).await.unwrap();
    assert_eq!(restored.checksum, header.checksum);
    assert_eq!(restored.snapshot_revision, 5);
    assert_eq!(restored.revision, 101);
    let found = admin.get(&key(), Consistency::Linearizable).await.unwrap();
    assert_eq!(found.item.unwrap().value, b"value 4");
    assert_eq!(found.revision, 101);
    let error = admin.watch("", Some(3)).next().await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Compacted), "{error}");

    let file = std::io::Cursor::new(snapshot);
    let error = admin.restore(&request, file).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::AlreadyFormatted), "{error}");
}
