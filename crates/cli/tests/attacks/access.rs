//! Permissions and credentials.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};

use crate::{
    client::{APPLY, Client, JSON},
    target::Target,
};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";

/// A rule for one verb list on all resources of these groups.
fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

/// PUT and apply used to create objects with the permission `update` or `patch` alone.
#[tokio::test]
async fn put_and_apply_without_the_permission_to_create_create_nothing() {
    let target = Target::start().await;
    let rules = [rule(&["*"], &["*"], &["get", "update", "patch"])];
    let client = target.client_of("bob", &rules).await;
    let core = "/api/v1/namespaces/default";
    let pod = json!({
        "serviceAccountName": "bob",
        "containers": [{"name": "c", "image": "i"}],
    });
    let applied = [
        ("v1", "ConfigMap", format!("{core}/configmaps/a"), json!({})),
        ("v1", "Secret", format!("{core}/secrets/a"), json!({})),
        ("v1", "Pod", format!("{core}/pods/a"), pod),
    ];
    for (version, kind, path, spec) in &applied {
        let mut object = json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": "a", "namespace": "default"},
        });
        if spec.as_object().is_some_and(|spec| !spec.is_empty()) {
            object["spec"] = spec.clone();
        }
        let apply = format!("{path}?fieldManager=attack");
        let body = object.to_string();
        let applied = client.send(Method::PATCH, &apply, APPLY, body).await;
        applied
            .assert_status(403)
            .assert_contains("cannot create resource");
        target.admin.get(path).await.assert_status(404);
    }
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "bob"});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases/a";
    let ports = json!({"ports": [{"port": 80}]});
    let replaced = [
        (leases.to_owned(), json!({})),
        (format!("{core}/endpoints/a"), json!({})),
        (format!("{core}/services/a"), json!({"spec": ports})),
        (format!("{RBAC}/roles/a"), json!({"rules": []})),
        (
            format!("{RBAC}/rolebindings/a"),
            json!({"roleRef": reference}),
        ),
    ];
    for (path, mut object) in replaced {
        object["metadata"] = json!({"name": "a", "namespace": "default"});
        let body = object.to_string();
        let replaced = client.send(Method::PUT, &path, JSON, body).await;
        replaced
            .assert_status(403)
            .assert_contains("cannot create resource");
        target.admin.get(&path).await.assert_status(404);
    }
    target.assert_well().await;
}

/// The check used to multiply out the role: 2 GB of memory, and a response of 137 MB.
#[tokio::test]
async fn role_of_15_million_permissions_is_forbidden_in_bounded_time_and_memory() {
    let target = Target::start().await;
    let groups = ["rbac.authorization.k8s.io"];
    let rules = [rule(&groups, &["roles"], &["create"])];
    let client = target.client_of("bob", &rules).await;
    let values = |prefix: &str| -> Vec<String> {
        (0..250).map(|number| format!("{prefix}{number}")).collect()
    };
    let role = json!({
        "metadata": {"name": "large"},
        "rules": [{
            "apiGroups": values("g"),
            "resources": values("r"),
            "verbs": values("v"),
        }],
    });
    let memory = target.measure_memory();
    let created = client.post(&format!("{RBAC}/roles"), &role).await;
    created
        .assert_status(403)
        .assert_within(Duration::from_secs(5));
    let bytes = created.body.len();
    assert!(bytes < 1 << 20, "the response has {bytes} bytes");
    memory.assert_below_mib(100);
    target.assert_well().await;
}

/// The shortest time of 20 requests: independent of what else the machine does.
async fn shortest_get(client: &Client, path: &str) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..20 {
        let response = client.get(path).await;
        response.assert_status(404);
        shortest = shortest.min(response.elapsed);
    }
    shortest
}

#[tokio::test]
async fn role_bindings_of_others_do_not_slow_down_requests() {
    const BINDINGS: usize = 2_000;
    let target = Target::start().await;
    let rules = [rule(&[""], &["configmaps"], &["get"])];
    let client = target.client_of("bob", &rules).await;
    let path = "/api/v1/namespaces/default/configmaps/none";
    let few = shortest_get(&client, path).await;
    let admin = &target.admin;
    let created = stream::iter(0..BINDINGS).map(|i| async move {
        let binding = json!({
            "metadata": {"name": format!("b{i}")},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "bob",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "other", "namespace": "default"}],
        });
        admin
            .create(&format!("{RBAC}/rolebindings"), &binding)
            .await
    });
    let created = created.buffer_unordered(16).count().await;
    assert_eq!(created, BINDINGS);
    let many = shortest_get(&client, path).await;
    eprintln!("{few:?} with one binding, {many:?} with {BINDINGS}");
    let max = few * 2 + Duration::from_millis(5);
    assert!(many <= max, "{many:?} instead of {few:?}");
    target.assert_well().await;
}

#[tokio::test]
async fn malformed_bearer_token_is_not_anonymous() {
    let target = Target::start().await;
    let mut client = target.admin.clone();
    for token in [
        &b"Bearer \xff\xfe"[..],
        b"Bearer a\xffb",
        b"Bearer nonsense",
    ] {
        client.authorization = token.to_vec();
        // Anonymous users may read the version.
        client.get("/version").await.assert_status(401);
        client.get("/api/v1/namespaces").await.assert_status(401);
    }
    target.assert_well().await;
}
