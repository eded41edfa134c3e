//! The SecSynch operator on a test cluster, with exactly its permissions, in virtual time.

use std::{collections::BTreeSet, time::Duration};

use bellerophon::ObjectKey;
use bellerophon::informer::{InformerOptions, Namespaces};
use bellerophon::manager::{Manager, ManagerOptions};
use bellerophon::webhook::WebhookOptions;
use bellerophon_operator::{Installation, WEBHOOKS, manager, manifests};
use bellerophon_secsynch::{ACCEPT_FROM, ALLOW_TO, OPERATOR, OWNER_UID, SecSynch, SecSynchStatus};
use bellerophon_testkit::{
    Account, OperatorFixture, TestCluster, converges_after_any_crash, converges_after_failover,
    converges_under_any_fault, wait_until,
};
use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    events::v1::Event,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
};
use serde_json::{Value, json};

const FIXTURE: OperatorFixture = OperatorFixture::new(OPERATOR);

/// With the behaviour of the tutorial.
const WITHOUT_CONSENT: OperatorFixture =
    FIXTURE.with_feature_switches(&["secsynch-without-consent"]);

fn operator(client: Client, options: ManagerOptions) -> Manager {
    FIXTURE.manager(client, options)
}

/// A cluster with the namespaces `src`, `a`, `b` and `team-c`, which accept copies from `src`, and
/// the operator's account.
async fn cluster_with_namespaces() -> (TestCluster, Account) {
    let cluster = TestCluster::with_core_controllers().await;
    for name in ["src", "a", "b", "team-c"] {
        apply_namespace(&cluster, name, json!({})).await;
    }
    let account = FIXTURE.install_with_leader_election(&cluster).await;
    (cluster, account)
}

/// Applies a namespace that accepts copies from `src`.
async fn apply_namespace(cluster: &TestCluster, name: &str, labels: Value) {
    cluster
        .apply(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": labels, "annotations": {ACCEPT_FROM: "src"}},
        }))
        .await;
}

/// Sets the source namespaces that a namespace accepts copies from.
async fn accept_from(cluster: &TestCluster, name: &str, value: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {ACCEPT_FROM: value}}});
    cluster
        .all::<Namespace>()
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("the patch is accepted");
}

/// Applies a Secret in the place of a copy.
async fn apply_other_secret(cluster: &TestCluster, namespace: &str, annotations: Value) {
    cluster
        .apply(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "s", "namespace": namespace,
                "labels": {"mine": "yes"}, "annotations": annotations,
            },
            "type": "Opaque",
            "stringData": {"password": "mine"},
        }))
        .await;
}

async fn delete_synch(cluster: &TestCluster, namespace: &str) {
    cluster.delete(synch(namespace, json!({}))).await;
    let synches = cluster.all::<SecSynch>();
    wait_until(&synches, "the SecSynch is deleted", |all| all.is_empty()).await;
}

/// The status and reason of a condition.
fn condition<'a>(status: &'a SecSynchStatus, type_: &str) -> Option<(&'a str, &'a str)> {
    let mut conditions = status.conditions.iter();
    let condition = conditions.find(|condition| condition.type_ == type_)?;
    Some((&condition.status, &condition.reason))
}

/// Applies the source with this password.
async fn apply_source(cluster: &TestCluster, password: &str) {
    cluster
        .apply(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s", "namespace": "src"},
            "type": "example.dev/key",
            "stringData": {"password": password},
        }))
        .await;
}

fn synch(namespace: &str, mut spec: Value) -> Value {
    spec["secretName"] = json!("s");
    spec["sourceNamespace"] = json!("src");
    json!({
        "apiVersion": "tutorial.study.dev/v1alpha1", "kind": "SecSynch",
        "metadata": {"name": "one", "namespace": namespace},
        "spec": spec,
    })
}

fn password(secret: &Secret) -> String {
    let data = secret.data.as_ref().and_then(|data| data.get("password"));
    data.map(|value| String::from_utf8_lossy(&value.0).into_owned())
        .unwrap_or_default()
}

/// `namespace=password` of every copy.
fn copies(secrets: &[Secret]) -> BTreeSet<String> {
    secrets
        .iter()
        .filter(|secret| secret.labels().contains_key(OWNER_UID))
        .map(|secret| {
            let namespace = secret.namespace().unwrap_or_default();
            format!("{namespace}={}", password(secret))
        })
        .collect()
}

async fn wait_for_copies(cluster: &TestCluster, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|copy| (*copy).to_owned()).collect();
    let condition = format!("the copies are {expected:?}");
    wait_until(&cluster.all::<Secret>(), &condition, |secrets| {
        copies(secrets) == expected
    })
    .await;
}

async fn get_secret(cluster: &TestCluster, namespace: &str) -> Secret {
    let secrets = cluster.namespaced::<Secret>(namespace);
    secrets.get("s").await.expect("the secret exists")
}

async fn merge_patch(secrets: &Api<Secret>, patch: &Value) {
    secrets
        .patch("s", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("the patch is accepted");
}

async fn delete(secrets: &Api<Secret>) {
    secrets
        .delete("s", &DeleteParams::default())
        .await
        .expect("the deletion is accepted");
}

async fn wait_for_status(
    cluster: &TestCluster,
    expected: &str,
    condition: impl Fn(&SecSynchStatus) -> bool,
) -> SecSynchStatus {
    let all = wait_until(&cluster.all::<SecSynch>(), expected, |all| {
        all.len() == 1 && all[0].status.as_ref().is_some_and(&condition)
    })
    .await;
    all[0].status.clone().expect("a status")
}

/// The namespace and reason of each failure.
fn failures(status: &SecSynchStatus) -> Vec<(&str, &str)> {
    status
        .failures
        .iter()
        .map(|failure| (failure.namespace.as_str(), failure.reason.as_str()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn copies_follow_changes_and_deletion_of_the_source() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    let destinations = json!({"destinationNamespaces": ["a", "team-*"]});
    cluster.apply(synch("src", destinations)).await;
    wait_for_status(&cluster, "the source is reported missing", |status| {
        status.conditions[0].reason == "SourceMissing"
    })
    .await;
    apply_source(&cluster, "one").await;
    wait_for_copies(&cluster, &["a=one", "team-c=one"]).await;
    let copy = get_secret(&cluster, "a").await;
    assert_eq!(copy.type_.as_deref(), Some("example.dev/key"));
    apply_source(&cluster, "two").await;
    wait_for_copies(&cluster, &["a=two", "team-c=two"]).await;
    let status = wait_for_status(&cluster, "two copies are synced", |status| {
        status.synced == 2
    })
    .await;
    assert_eq!(status.total, 2);
    assert_eq!(status.failed, 0);
    assert!(status.last_sync_time.is_some());
    delete(&cluster.namespaced("src")).await;
    wait_for_copies(&cluster, &[]).await;
    apply_source(&cluster, "three").await;
    wait_for_copies(&cluster, &["a=three", "team-c=three"]).await;
    delete_synch(&cluster, "src").await;
    wait_for_copies(&cluster, &[]).await;
    let source = get_secret(&cluster, "src").await;
    assert_eq!(password(&source), "three", "the source is not deleted");
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(account.requests.forbidden(), []);
    let unused = account.requests.unused_permissions(&FIXTURE.permissions());
    assert!(unused.is_empty(), "{unused:?}");
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_and_then_nothing_is_written() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    let destinations = json!({"destinationNamespaces": ["a", "b"]});
    cluster.apply(synch("src", destinations)).await;
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    let secrets = cluster.namespaced::<Secret>("a");
    for drift in [
        json!({"stringData": {"password": "wrong"}}),
        json!({"stringData": {"added": "x"}}),
        json!({"data": null}),
    ] {
        merge_patch(&secrets, &drift).await;
        wait_until(&secrets, "the drift is repaired", |all| {
            all.iter().any(|secret| {
                secret.name_any() == "s"
                    && password(secret) == "one"
                    && secret.data.as_ref().map_or(0, |data| data.len()) == 1
            })
        })
        .await;
    }
    delete(&secrets).await;
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    cluster.advance(Duration::from_secs(60)).await;
    let writes = account.requests.writes().len();
    let status = wait_for_status(&cluster, "there is a status", |_| true).await;
    // Neither a label of another manager nor another namespace causes a write.
    merge_patch(&secrets, &json!({"metadata": {"labels": {"team": "x"}}})).await;
    apply_namespace(&cluster, "unrelated", json!({})).await;
    cluster.advance(Duration::from_secs(1800)).await;
    let all_writes = account.requests.writes();
    assert_eq!(all_writes.len(), writes, "{:?}", &all_writes[writes..]);
    let current = wait_for_status(&cluster, "there is a status", |_| true).await;
    assert_eq!(current, status);
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn copy_is_recreated_when_an_immutable_field_changes() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    let destinations = json!({"destinationNamespaces": ["a"]});
    cluster.apply(synch("src", destinations)).await;
    wait_for_copies(&cluster, &["a=one"]).await;
    let source = cluster.namespaced::<Secret>("src");
    let copies = cluster.namespaced::<Secret>("a");
    merge_patch(&source, &json!({"immutable": true})).await;
    wait_until(&copies, "the copy is immutable", |all| {
        all.iter().any(|secret| secret.immutable == Some(true))
    })
    .await;
    delete(&source).await;
    let other: Secret = serde_json::from_value(
        json!({"metadata": {"name": "s"}, "type": "Opaque", "stringData": {"password": "two"}}),
    )
    .expect("a Secret");
    source
        .create(&PostParams::default(), &other)
        .await
        .expect("the source is created again");
    wait_until(&copies, "the copy is recreated", |all| {
        all.iter().any(|secret| {
            secret.type_.as_deref() == Some("Opaque")
                && password(secret) == "two"
                && secret.immutable.is_none()
        })
    })
    .await;
    assert_eq!(account.requests.forbidden(), []);
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn conflict_policy_decides_about_existing_secrets() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    apply_other_secret(&cluster, "a", json!({})).await;
    let with_policy = |policy: &str| {
        let spec = json!({"destinationNamespaces": ["a", "b"], "conflictPolicy": policy});
        synch("src", spec)
    };
    let by_default = json!({"destinationNamespaces": ["a", "b"]});
    cluster.apply(synch("src", by_default)).await;
    let status = wait_for_status(&cluster, "the conflict is reported", |status| {
        status.failed == 1
    })
    .await;
    assert_eq!(failures(&status), [("a", "Exists")]);
    assert_eq!(status.synced, 1);
    assert_eq!(password(&get_secret(&cluster, "a").await), "mine");
    cluster.apply(with_policy("Skip")).await;
    let status = wait_for_status(&cluster, "the secret is skipped", |status| {
        status.failed == 0
    })
    .await;
    assert_eq!(status.synced, 1);
    assert_eq!(status.total, 1);
    cluster.apply(with_policy("Adopt")).await;
    let status = wait_for_status(&cluster, "the adoption is refused", |status| {
        status.failed == 1
    })
    .await;
    assert_eq!(failures(&status), [("a", "AdoptionNotAccepted")]);
    assert_eq!(password(&get_secret(&cluster, "a").await), "mine");
    apply_other_secret(&cluster, "a", json!({ACCEPT_FROM: "src"})).await;
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    // The type differs, so that the Secret was recreated, with its labels.
    let adopted = get_secret(&cluster, "a").await;
    assert_eq!(
        adopted.labels().get("mine").map(String::as_str),
        Some("yes")
    );
    assert_eq!(adopted.type_.as_deref(), Some("example.dev/key"));
    operator.stop().await;
    cluster.stop().await;
}

/// A SecSynch used to be enough to write Secrets into any namespace, to replace those that were
/// there, and to delete them.
#[tokio::test(start_paused = true)]
async fn namespace_without_consent_is_not_touched() {
    let (cluster, account) = cluster_with_namespaces().await;
    accept_from(&cluster, "a", None).await;
    accept_from(&cluster, "b", Some("other, sr")).await;
    apply_other_secret(&cluster, "a", json!({ACCEPT_FROM: "*"})).await;
    let before = get_secret(&cluster, "a").await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    let spec = json!({"destinationNamespaces": ["*"], "conflictPolicy": "Adopt"});
    cluster.apply(synch("src", spec)).await;
    wait_for_copies(&cluster, &["team-c=one"]).await;
    let status = wait_for_status(&cluster, "the failures are reported", |status| {
        status.synced == 1
    })
    .await;
    let reasons = failures(&status);
    assert!(reasons.contains(&("a", "NotAccepted")), "{reasons:?}");
    assert!(reasons.contains(&("b", "NotAccepted")), "{reasons:?}");
    assert_eq!(
        condition(&status, "Accepted"),
        Some(("False", "NotAccepted"))
    );
    assert_eq!(condition(&status, "Ready"), Some(("False", "SomeFailed")));
    delete_synch(&cluster, "src").await;
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(get_secret(&cluster, "a").await, before);
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn copies_follow_the_consent_of_the_destination() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    let destinations = json!({"destinationNamespaces": ["a", "b"]});
    cluster.apply(synch("src", destinations)).await;
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    let status = wait_for_status(&cluster, "both copies are synced", |status| {
        status.synced == 2
    })
    .await;
    assert_eq!(condition(&status, "Accepted"), Some(("True", "Accepted")));
    accept_from(&cluster, "a", None).await;
    wait_for_copies(&cluster, &["b=one"]).await;
    let status = wait_for_status(&cluster, "the withdrawal is reported", |status| {
        status.failed == 1
    })
    .await;
    assert_eq!(failures(&status), [("a", "NotAccepted")]);
    assert_eq!(
        condition(&status, "Accepted"),
        Some(("False", "NotAccepted"))
    );
    let events = cluster.namespaced::<Event>("src");
    wait_until(&events, "an Event names the destination", |events| {
        events.iter().any(|event| {
            event.reason.as_deref() == Some("NotAccepted")
                && event.note.as_deref() == Some("a does not accept copies from src")
        })
    })
    .await;
    accept_from(&cluster, "a", Some("other,s*")).await;
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn namespace_of_the_synch_needs_no_annotation() {
    let (cluster, account) = cluster_with_namespaces().await;
    for name in ["a", "b"] {
        accept_from(&cluster, name, None).await;
    }
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    let allow_to = json!({"metadata": {"annotations": {ALLOW_TO: "*"}}});
    merge_patch(&cluster.namespaced("src"), &allow_to).await;
    let destinations = json!({"destinationNamespaces": ["a", "b"]});
    cluster.apply(synch("a", destinations)).await;
    wait_for_copies(&cluster, &["a=one"]).await;
    let status = wait_for_status(&cluster, "the failure is reported", |status| {
        status.failed == 1
    })
    .await;
    assert_eq!(failures(&status), [("b", "NotAccepted")]);
    operator.stop().await;
    cluster.stop().await;
}

/// An adopted Secret used to be deleted with the SecSynch.
#[tokio::test(start_paused = true)]
async fn adopted_secret_is_released() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    let secrets = cluster.namespaced::<Secret>("a");
    let accept = |value: Option<&str>| json!({"metadata": {"annotations": {ACCEPT_FROM: value}}});
    let adopting = || {
        let spec = json!({"destinationNamespaces": ["a", "b"], "conflictPolicy": "Adopt"});
        synch("src", spec)
    };
    apply_other_secret(&cluster, "a", json!({ACCEPT_FROM: "src"})).await;
    cluster.apply(adopting()).await;
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    // Its own consent is withdrawn.
    merge_patch(&secrets, &accept(None)).await;
    wait_for_copies(&cluster, &["b=one"]).await;
    let status = wait_for_status(&cluster, "the withdrawal is reported", |status| {
        status.failed == 1
    })
    .await;
    assert_eq!(failures(&status), [("a", "AdoptionNotAccepted")]);
    merge_patch(&secrets, &accept(Some("src"))).await;
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    // The consent of the namespace is withdrawn.
    accept_from(&cluster, "a", None).await;
    wait_for_copies(&cluster, &["b=one"]).await;
    accept_from(&cluster, "a", Some("src")).await;
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    delete_synch(&cluster, "src").await;
    wait_for_copies(&cluster, &[]).await;
    let released = get_secret(&cluster, "a").await;
    assert_eq!(password(&released), "one");
    let labels: Vec<_> = released.labels().keys().collect();
    assert_eq!(labels, ["mine"]);
    let annotations: Vec<_> = released.annotations().keys().collect();
    assert_eq!(annotations, [ACCEPT_FROM]);
    assert_eq!(account.requests.forbidden(), []);
    operator.stop().await;
    cluster.stop().await;
}

/// Reasons used to disclose whether a Secret elsewhere does not exist, does not allow copies, or is
/// a token.
#[tokio::test(start_paused = true)]
async fn status_does_not_disclose_secrets_of_other_namespaces() {
    let source = |type_: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s", "namespace": "src"},
            "type": type_,
            "stringData": {"token-id": "abcdef"},
        })
    };
    let mut statuses = Vec::new();
    for source in [
        None,
        Some(source("Opaque")),
        Some(source("bootstrap.kubernetes.io/token")),
    ] {
        let (cluster, account) = cluster_with_namespaces().await;
        if let Some(source) = source {
            cluster.apply(source).await;
        }
        let operator = FIXTURE.start(&account);
        let destinations = json!({"destinationNamespaces": ["a", "b", "nowhere", "kube-system"]});
        cluster.apply(synch("b", destinations)).await;
        let status = wait_for_status(&cluster, "there is a condition", |status| {
            !status.conditions.is_empty()
        })
        .await;
        assert_eq!(
            condition(&status, "Ready"),
            Some(("False", "SourceNotAvailable"))
        );
        let mut status = json!(status);
        status["conditions"][0]["lastTransitionTime"].take();
        statuses.push(status);
        operator.stop().await;
        cluster.stop().await;
    }
    assert_eq!(statuses[0], statuses[1]);
    assert_eq!(statuses[0], statuses[2]);
}

#[tokio::test(start_paused = true)]
async fn names_that_are_not_dns_names_are_rejected() {
    let (cluster, _account) = cluster_with_namespaces().await;
    let synches = cluster.namespaced::<SecSynch>("a");
    for (field, value) in [
        ("secretName", json!("..")),
        ("secretName", json!("s?x=")),
        ("sourceNamespace", json!("victim/secrets/exists?a=")),
        ("sourceNamespace", json!("a.b")),
        ("destinationNamespaces", json!(["a/b"])),
        ("destinationNamespaces", json!(["A"])),
    ] {
        let mut invalid = synch("a", json!({"destinationNamespaces": ["team-*", "b"]}));
        let valid: SecSynch = serde_json::from_value(invalid.clone()).expect("a SecSynch");
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        synches.create(&dry_run, &valid).await.expect("it is valid");
        invalid["spec"][field] = value;
        let invalid: SecSynch = serde_json::from_value(invalid).expect("a SecSynch");
        let error = synches.create(&dry_run, &invalid).await.unwrap_err();
        let error = error.to_string();
        assert!(error.contains(field), "{error}");
    }
    cluster.stop().await;
}

#[test]
fn only_the_role_to_view_is_aggregated() {
    let roles: Vec<(String, Value)> = manifests(&OPERATOR, &Installation::default())
        .into_iter()
        .filter(|object| object["kind"] == "ClusterRole")
        .map(|role| {
            let name = role["metadata"]["name"].as_str().unwrap_or_default();
            (name.to_owned(), role["metadata"]["labels"].clone())
        })
        .filter(|(name, _)| name.starts_with("secsynches"))
        .collect();
    let view = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    assert_eq!(
        roles,
        [
            ("secsynches.tutorial.study.dev-edit".to_owned(), Value::Null),
            ("secsynches.tutorial.study.dev-view".to_owned(), view),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn source_must_consent_to_a_synch_in_another_namespace() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    let destinations = json!({"destinationNamespaces": ["a", "b"]});
    cluster.apply(synch("b", destinations)).await;
    let status = wait_for_status(&cluster, "the source is not available", |status| {
        condition(status, "Ready") == Some(("False", "SourceNotAvailable"))
    })
    .await;
    assert_eq!(failures(&status), []);
    let allow_to = |value: Option<&str>| json!({"metadata": {"annotations": {ALLOW_TO: value}}});
    let source = cluster.namespaced::<Secret>("src");
    merge_patch(&source, &allow_to(Some("a,team-*"))).await;
    wait_for_copies(&cluster, &["a=one"]).await;
    let status =
        wait_for_status(&cluster, "one copy is refused", |status| status.failed == 1).await;
    assert_eq!(failures(&status), [("b", "NotAllowed")]);
    merge_patch(&source, &allow_to(None)).await;
    wait_for_copies(&cluster, &[]).await;
    operator.stop().await;
    let operator = WITHOUT_CONSENT.start(&account);
    wait_for_copies(&cluster, &["a=one", "b=one"]).await;
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn copies_follow_creation_labels_and_deletion_of_namespaces() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    let spec = json!({
        "destinationNamespaces": ["late", "kube-system"],
        "destinationSelector": {"matchLabels": {"tier": "app"}},
    });
    cluster.apply(synch("src", spec)).await;
    let status = wait_for_status(&cluster, "both failures are reported", |status| {
        status.failed == 2
    })
    .await;
    assert_eq!(
        failures(&status),
        [("kube-system", "Protected"), ("late", "NamespaceMissing")]
    );
    apply_namespace(&cluster, "late", json!({})).await;
    wait_for_copies(&cluster, &["late=one"]).await;
    apply_namespace(&cluster, "a", json!({"tier": "app"})).await;
    wait_for_copies(&cluster, &["a=one", "late=one"]).await;
    let namespaces = cluster.all::<Namespace>();
    namespaces
        .delete("late", &DeleteParams::default())
        .await
        .expect("the deletion is accepted");
    wait_until(&namespaces, "the namespace is deleted", |all| {
        all.iter().all(|namespace| namespace.name_any() != "late")
    })
    .await;
    wait_for_copies(&cluster, &["a=one"]).await;
    let without_label = json!({"metadata": {"labels": {"tier": null}}});
    namespaces
        .patch("a", &PatchParams::default(), &Patch::Merge(&without_label))
        .await
        .expect("the patch is accepted");
    wait_for_copies(&cluster, &[]).await;
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn credentials_of_the_cluster_are_never_copied() {
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    let token = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "s", "namespace": "src"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef"},
    });
    cluster.apply(token).await;
    let destinations = json!({"destinationNamespaces": ["*"]});
    cluster.apply(synch("src", destinations)).await;
    wait_for_status(&cluster, "the type is refused", |status| {
        status.conditions[0].reason == "NeverCopied"
    })
    .await;
    wait_for_copies(&cluster, &[]).await;
    operator.stop().await;
    cluster.stop().await;
}

/// A cluster with a source and a SecSynch to reconcile.
async fn cluster_with_synch() -> (TestCluster, Account) {
    let (cluster, account) = cluster_with_namespaces().await;
    apply_source(&cluster, "one").await;
    let destinations = json!({"destinationNamespaces": ["a", "b", "team-*"]});
    cluster.apply(synch("src", destinations)).await;
    (cluster, account)
}

/// Waits for convergence and describes the state.
async fn settled(cluster: &TestCluster) -> String {
    wait_for_copies(cluster, &["a=one", "b=one", "team-c=one"]).await;
    let status = wait_for_status(cluster, "three copies are synced", |status| {
        status.synced == 3
    })
    .await;
    format!("{} of {}", status.synced, status.total)
}

/// A finalizer, three copies and a status.
const WRITES: usize = 5;

#[tokio::test(start_paused = true)]
async fn converges_after_a_crash_at_any_write() {
    let crashes = converges_after_any_crash(operator, cluster_with_synch, settled).await;
    assert_eq!(crashes, WRITES);
}

#[tokio::test(start_paused = true)]
async fn converges_under_every_fault() {
    converges_under_any_fault(operator, cluster_with_synch, settled).await;
}

#[tokio::test(start_paused = true)]
async fn standby_replica_completes_the_work_of_the_leader() {
    let lease = OPERATOR.name;
    let failovers = converges_after_failover(operator, lease, cluster_with_synch, settled).await;
    assert_eq!(failovers, WRITES);
}

#[tokio::test(start_paused = true)]
async fn change_of_the_source_is_one_write_per_copy() {
    const NAMESPACES: usize = 200;
    let (cluster, account) = cluster_with_namespaces().await;
    let operator = FIXTURE.start(&account);
    apply_source(&cluster, "one").await;
    for i in 0..NAMESPACES {
        apply_namespace(&cluster, &format!("many-{i:03}"), json!({})).await;
    }
    let destinations = json!({"destinationNamespaces": ["many-*"]});
    cluster.apply(synch("src", destinations)).await;
    wait_for_status(&cluster, "all copies are synced", |status| {
        status.synced == NAMESPACES as i64
    })
    .await;
    cluster.advance(Duration::from_secs(60)).await;
    let secret_writes = || {
        let writes = account.requests.writes();
        let secrets = writes.iter().filter(|write| write.resource == "secrets");
        secrets.count()
    };
    assert_eq!(secret_writes(), NAMESPACES);
    apply_source(&cluster, "two").await;
    let secrets = cluster.all::<Secret>();
    wait_until(&secrets, "all copies have the new value", |secrets| {
        let copies = copies(secrets);
        let updated = copies.iter().filter(|copy| copy.ends_with("=two"));
        updated.count() == NAMESPACES
    })
    .await;
    cluster.advance(Duration::from_secs(600)).await;
    assert_eq!(secret_writes(), 2 * NAMESPACES);
    let all = secrets.list(&ListParams::default()).await.expect("a list");
    assert_eq!(all.items.len(), NAMESPACES + 1);
    operator.stop().await;
    cluster.stop().await;
}

/// The operator with its webhook, which the server calls over TLS: in real time.
#[tokio::test]
async fn webhook_gives_the_answer_of_the_controller_at_admission() {
    let cluster = TestCluster::api_server_only().await;
    cluster.install_crds((OPERATOR.crds)()).await;
    for name in ["src", "accepting"] {
        apply_namespace(&cluster, name, json!({})).await;
    }
    for name in ["user", "silent"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        cluster.apply(namespace).await;
    }
    apply_source(&cluster, "p").await;
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            bind_address: ([127, 0, 0, 1], 0).into(),
            ..WebhookOptions::default()
        },
        ..ManagerOptions::default()
    };
    let switches = [WEBHOOKS].into_iter().collect();
    let mgr = manager(cluster.client.clone(), &[OPERATOR], &switches, options);
    let secrets = mgr
        .informers()
        .informer(InformerOptions::<PartialObjectMeta<Secret>> {
            namespaces: Some(Namespaces::All),
            ..InformerOptions::default()
        });
    let mut running = mgr.start();
    running.ready().await.expect("the webhook is registered");
    let apply = async |namespace: &str, destinations: Value| -> Result<SecSynch, String> {
        let object = synch(namespace, json!({"destinationNamespaces": destinations}));
        let params = PatchParams::apply("test").force();
        let synches = cluster.namespaced::<SecSynch>(namespace);
        let applied = synches.patch("one", &params, &Patch::Apply(object)).await;
        applied.map_err(|error| match error {
            kube::Error::Api(status) => status.message,
            other => other.to_string(),
        })
    };
    let denied = |message: &str| {
        Err(format!(
            "admission webhook \"validate.secsynches.tutorial.study.dev\" denied the request: \
             {message}"
        ))
    };
    // The source does not consent, and it is not disclosed whether there is one.
    let unavailable = format!(
        "the source secret does not exist or does not allow copies; its annotation is {ALLOW_TO}"
    );
    let answer = apply("user", json!(["accepting"])).await;
    assert_eq!(answer.map(drop), denied(&unavailable));
    // Neither does the only destination.
    let answer = apply("src", json!(["silent"])).await;
    assert_eq!(
        answer.map(drop),
        denied("silent does not accept copies from src")
    );
    // Of two destinations one accepts.
    apply("src", json!(["silent", "accepting"]))
        .await
        .expect("one destination accepts");
    // The source consents now.
    let patch = json!({"metadata": {"annotations": {ALLOW_TO: "accepting"}}});
    let source = cluster.namespaced::<Secret>("src");
    let patched = source
        .patch("s", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("it is accepted");
    let version = patched.resource_version();
    let key = ObjectKey::namespaced("src", "s");
    let is_seen = |secret: Option<&PartialObjectMeta<Secret>>| {
        secret.is_some_and(|secret| secret.resource_version() == version)
    };
    secrets.lister().await_condition(&key, is_seen).await;
    apply("user", json!(["accepting"]))
        .await
        .expect("source and destination consent");
    running.stop().await.expect("it stops");
    cluster.stop().await;
}
