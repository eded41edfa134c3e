//! Requests and data that members reject: tokens, certificates, foreign data directories, foreign
//! members.

use std::fs;

use bellerophon_store::api::{Consistency, Key, MemberState, Reason};
use bellerophon_store_client::{Client, ClientError, ClientTls};

use crate::{
    certificates::Authority,
    cluster::{ADMIN_TOKEN, CLIENT_TOKEN, Cluster, eventually},
};

fn key() -> Key {
    "a".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_tokens_are_rejected() {
    let cluster = Cluster::start(1, &[]).await;
    let addresses = cluster.members[0].setup.addresses.unwrap();
    let cases = [
        (ADMIN_TOKEN, None, None),
        (CLIENT_TOKEN, None, Some(Reason::Forbidden)),
        (
            "wrong",
            Some(Reason::Unauthorized),
            Some(Reason::Unauthorized),
        ),
        ("", Some(Reason::Unauthorized), Some(Reason::Unauthorized)),
    ];
    for (token, expected, expected_admin) in cases {
        let client = cluster.client_with(addresses, token);
        let read = client.get(&key(), Consistency::Linearizable).await;
        let status = client.status().await;
        let reason = read.err().and_then(|error| error.reason());
        assert_eq!(reason, expected, "{token:?}");
        let reason = status.err().and_then(|error| error.reason());
        assert_eq!(reason, expected_admin, "{token:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_token_is_accepted_without_restart() {
    let cluster = Cluster::start(1, &[]).await;
    let addresses = cluster.members[0].setup.addresses.unwrap();
    fs::write(cluster.directory.path().join("client-token"), "rotated").unwrap();
    let client = cluster.client_with(addresses, "rotated");
    eventually("the new token is in effect", async || {
        client.get(&key(), Consistency::Linearizable).await.is_ok()
    })
    .await;
    let old = cluster.client_with(addresses, CLIENT_TOKEN);
    let refused = old
        .get(&key(), Consistency::Linearizable)
        .await
        .unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Unauthorized));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_refuses_server_of_another_authority() {
    let cluster = Cluster::start(1, &[]).await;
    let other = Authority::new(cluster.directory.path().join("other"));
    let mut options = cluster.client_options();
    options.tls = Some(ClientTls::with_ca(other.ca_pem().as_bytes()).unwrap());
    options.request_timeout = std::time::Duration::from_secs(1);
    let error = Client::new(options)
        .get(&key(), Consistency::Linearizable)
        .await;
    let error = error.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_certificate_is_presented_without_restart() {
    let cluster = Cluster::start(1, &[]).await;
    let other = Authority::new(cluster.directory.path().join("other"));
    let files = other.issue("new", &cluster.id, 1);
    let current = &cluster.members[0].setup.tls;
    fs::copy(&files.ca, &current.ca).unwrap();
    fs::copy(&files.certificate, &current.certificate).unwrap();
    fs::copy(&files.key, &current.key).unwrap();
    let mut options = cluster.client_options();
    options.tls = Some(ClientTls::with_ca(other.ca_pem().as_bytes()).unwrap());
    options.request_timeout = std::time::Duration::from_secs(1);
    let client = Client::new(options);
    eventually("the new certificate is in effect", async || {
        client.get(&key(), Consistency::Linearizable).await.is_ok()
    })
    .await;
}

/// A member whose certificate names another member or another cluster is not reached by the
/// leader, and does not reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_without_its_certificate_cannot_join() {
    let mut cluster = Cluster::start(1, &[]).await;
    let admin = cluster.admin();
    let id = admin.allocate_member_id().await.unwrap();
    let mut setup = cluster.setup("impostor", id + 100, &[]);
    let process = setup.start().await;
    let joining = cluster.admin_of(process.addresses);
    joining.format(cluster.id.clone(), id).await.unwrap();
    let address = process.addresses.peer.to_string();
    admin.add_learner(id, &address).await.unwrap();
    let before = admin.status().await.unwrap();
    assert!(before.membership.learners.contains(&id));
    // Ten writes are replicated to members that can be reached.
    for number in 0..10 {
        let client = cluster.client();
        client.put(&key(), format!("{number}"), None).await.unwrap();
    }
    let status = joining.status().await.unwrap();
    assert_eq!(status.state, MemberState::Joining);
    assert_eq!(status.applied_index, 0, "{status:?}");
    // With its own certificate, the same data directory joins.
    process.kill().await;
    setup.tls = cluster.authority.issue("impostor", &cluster.id, id);
    let _process = setup.start().await;
    let applied = cluster.wait_for_leader().await.applied_index;
    eventually("the member joins", async || {
        joining
            .status()
            .await
            .is_ok_and(|status| status.applied_index >= applied)
    })
    .await;
    cluster.members.clear();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unformatted_member_serves_nothing_but_its_status() {
    let cluster = Cluster::start(1, &[]).await;
    let mut setup = cluster.setup("empty", 7, &[]);
    let process = setup.start().await;
    let admin = cluster.admin_of(process.addresses);
    assert_eq!(
        admin.status().await.unwrap().state,
        MemberState::Unformatted
    );
    let mut options = cluster.client_options();
    options.endpoints = vec![Cluster::endpoint(process.addresses)];
    // The last of the attempts, after 1.6 s, has time to be answered.
    options.request_timeout = std::time::Duration::from_secs(2);
    let error = Client::new(options)
        .put(&key(), "x", None)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Unformatted), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_process_on_data_directory_is_refused() {
    let cluster = Cluster::start(1, &[]).await;
    let mut setup = cluster.members[0].setup.clone();
    setup.addresses = None;
    let (status, stderr) = setup.start_refused().await;
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("data-1"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn formatting_again_with_another_identity_is_refused() {
    let cluster = Cluster::start(1, &[]).await;
    let admin = cluster.admin();
    let other = "another-cluster".parse().unwrap();
    let error = admin.format(other, 1).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::AlreadyFormatted), "{error}");
    let error = admin.format(cluster.id.clone(), 2).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::AlreadyFormatted), "{error}");
}
