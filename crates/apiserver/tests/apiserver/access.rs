//! Authentication, authorization, impersonation and reviews against a whole server.

use bellerophon_apiserver::{ApiServer, ApiService};
use bytes::Bytes;
use http::{HeaderName, Request};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// A server with namespace `ns`, service account `robot` in it, and `robot` allowed to read
/// ConfigMaps and write Roles there.
struct Cluster {
    server: ApiServer,
    service: ApiService,
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns";

impl Cluster {
    async fn start() -> Self {
        let server = ApiServer::builder()
            .start()
            .await
            .expect("a server without a socket starts");
        let service = server.service();
        let cluster = Self { server, service };
        for (path, body) in [
            ("/api/v1/namespaces", json!({"metadata": {"name": "ns"}})),
            (
                "/api/v1/namespaces/ns/serviceaccounts",
                json!({"metadata": {"name": "robot"}}),
            ),
            (
                &format!("{RBAC}/roles"),
                json!({"metadata": {"name": "reader"}, "rules": [
                    {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps"]},
                    {"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]},
                ]}),
            ),
            (
                &format!("{RBAC}/rolebindings"),
                json!({"metadata": {"name": "reader"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
                       "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "ns"}]}),
            ),
        ] {
            assert_eq!(cluster.send("POST", path, &[], body).await.0, 201, "{path}");
        }
        cluster
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> (u16, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        if let Some(headers_of_request) = request.headers_mut() {
            for (name, value) in headers {
                let name: HeaderName = name.parse().expect("the name of a header");
                headers_of_request.insert(name, value.parse().expect("a value"));
            }
        }
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let response = self
            .service
            .clone()
            .oneshot(request.body(Full::<Bytes>::from(body)).expect("a request"))
            .await
            .expect("every request is answered");
        let status = response.status().as_u16();
        let bytes = response
            .into_body()
            .collect()
            .await
            .expect("a whole answer")
            .to_bytes();
        (
            status,
            serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        )
    }

    async fn token(&self) -> String {
        let (status, answer) = self
            .send(
                "POST",
                "/api/v1/namespaces/ns/serviceaccounts/robot/token",
                &[],
                json!({"spec": {}}),
            )
            .await;
        assert_eq!(status, 201, "{answer}");
        format!(
            "Bearer {}",
            answer["status"]["token"].as_str().expect("a token")
        )
    }
}

#[tokio::test]
async fn token_allows_what_its_account_is_bound_to() {
    let cluster = Cluster::start().await;
    let token = cluster.token().await;
    let robot = [("authorization", token.as_str())];
    assert_eq!(
        cluster
            .send(
                "GET",
                "/api/v1/namespaces/ns/configmaps",
                &robot,
                Value::Null
            )
            .await
            .0,
        200
    );
    let (status, refusal) = cluster
        .send("GET", "/api/v1/namespaces/ns/secrets", &robot, Value::Null)
        .await;
    assert_eq!(status, 403);
    assert_eq!(
        refusal["message"],
        r#"secrets is forbidden: User "system:serviceaccount:ns:robot" cannot list resource "secrets" in API group "" in the namespace "ns""#
    );
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn token_is_invalid_after_its_account_is_deleted() {
    let cluster = Cluster::start().await;
    let token = cluster.token().await;
    let robot = [("authorization", token.as_str())];
    assert_eq!(
        cluster
            .send(
                "DELETE",
                "/api/v1/namespaces/ns/serviceaccounts/robot",
                &[],
                Value::Null
            )
            .await
            .0,
        200
    );
    assert_eq!(
        cluster
            .send(
                "GET",
                "/api/v1/namespaces/ns/configmaps",
                &robot,
                Value::Null
            )
            .await
            .0,
        401
    );
    cluster.server.shutdown().await;
}

/// PUT and apply used to create with the verb of their method alone.
#[tokio::test]
async fn update_and_apply_create_only_with_the_verb_create() {
    let cluster = Cluster::start().await;
    let token = cluster.token().await;
    let json = [("authorization", token.as_str())];
    let apply = [
        ("authorization", token.as_str()),
        ("content-type", "application/apply-patch+yaml"),
    ];
    let grant = async |name: &str, verbs: Value| {
        let rules = json!([
            {"verbs": verbs, "apiGroups": [""], "resources": ["configmaps", "pods"]},
            {"verbs": verbs, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
        ]);
        let role = json!({"metadata": {"name": name}, "rules": rules});
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "ns"}]});
        for (path, body) in [("roles", role), ("rolebindings", binding)] {
            let path = format!("{RBAC}/{path}");
            assert_eq!(
                cluster.send("POST", &path, &[], body).await.0,
                201,
                "{path}"
            );
        }
    };
    let lease = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l";
    let config_map = "/api/v1/namespaces/ns/configmaps/c?fieldManager=robot";
    let object = |api_version: &str, kind: &str, name: &str| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    let put = async || {
        let body = object("coordination.k8s.io/v1", "Lease", "l");
        cluster.send("PUT", lease, &json, body).await
    };
    let patch = async |query: &str| {
        let body = object("v1", "ConfigMap", "c");
        cluster
            .send("PATCH", &format!("{config_map}{query}"), &apply, body)
            .await
    };

    grant("editor", json!(["get", "update", "patch"])).await;
    let (status, refusal) = put().await;
    assert_eq!(status, 403);
    assert_eq!(
        refusal["message"],
        r#"leases.coordination.k8s.io "l" is forbidden: User "system:serviceaccount:ns:robot" cannot create resource "leases" in API group "coordination.k8s.io" in the namespace "ns""#
    );
    for query in ["", "&dryRun=All", "&force=true"] {
        let (status, refusal) = patch(query).await;
        assert_eq!(status, 403, "{query}");
        assert_eq!(
            refusal["message"],
            r#"configmaps "c" is forbidden: User "system:serviceaccount:ns:robot" cannot create resource "configmaps" in API group "" in the namespace "ns""#
        );
    }
    let (status, _) = cluster
        .send(
            "GET",
            "/api/v1/namespaces/ns/configmaps/c",
            &[],
            Value::Null,
        )
        .await;
    assert_eq!(status, 404, "nothing was created");

    grant("creator", json!(["create"])).await;
    assert_eq!(put().await.0, 201);
    assert_eq!(patch("").await.0, 201);
    assert_eq!(put().await.0, 422, "a lease has a version to update");
    assert_eq!(patch("").await.0, 200);
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn user_cannot_grant_more_than_own_permissions() {
    let cluster = Cluster::start().await;
    let token = cluster.token().await;
    let robot = [("authorization", token.as_str())];
    let role = |name: &str, resource: &str| json!({"metadata": {"name": name}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]});
    assert_eq!(
        cluster
            .send(
                "POST",
                &format!("{RBAC}/roles"),
                &robot,
                role("same", "configmaps")
            )
            .await
            .0,
        201
    );
    let (status, refusal) = cluster
        .send(
            "POST",
            &format!("{RBAC}/roles"),
            &robot,
            role("more", "secrets"),
        )
        .await;
    assert_eq!(status, 403);
    let message = refusal["message"].as_str().expect("text");
    assert!(
        message.ends_with(
            "not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}"
        ),
        "{message}"
    );
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn administrator_acts_as_others_and_others_do_not() {
    let cluster = Cluster::start().await;
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let ann = ("impersonate-user", "ann");
    let (status, review) = cluster
        .send(
            "POST",
            path,
            &[ann, ("impersonate-group", "devs")],
            json!({}),
        )
        .await;
    assert_eq!(status, 201);
    assert_eq!(
        &review["status"]["userInfo"]["groups"],
        &json!(["devs", "system:authenticated"])
    );
    let token = cluster.token().await;
    assert_eq!(
        cluster
            .send(
                "POST",
                path,
                &[("authorization", token.as_str()), ann],
                json!({})
            )
            .await
            .0,
        403
    );
    cluster.server.shutdown().await;
}

/// Several users at a time get and lose permissions; each sees its own change in its next request.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changed_roles_and_bindings_apply_to_the_next_request() {
    let cluster = std::sync::Arc::new(Cluster::start().await);
    let users = (0..4).map(|n| {
        let cluster = cluster.clone();
        tokio::spawn(async move {
            let user = format!("user-{n}");
            for round in 0..25 {
                toggle_permissions(&cluster, &user, round).await;
            }
        })
    });
    for user in users.collect::<Vec<_>>() {
        user.await.expect("every change applies");
    }
}

async fn toggle_permissions(cluster: &Cluster, user: &str, round: usize) {
    let group = "rbac.authorization.k8s.io";
    let read = async |expected: u16, when: &str| {
        let path = "/api/v1/namespaces/ns/configmaps";
        let headers = [("impersonate-user", user)];
        let (status, _) = cluster.send("GET", path, &headers, Value::Null).await;
        assert_eq!(status, expected, "{user} {when} in round {round}");
    };
    let role = |verb: &str| {
        let rule = json!({"verbs": [verb], "apiGroups": [""], "resources": ["configmaps"]});
        json!({"metadata": {"name": user}, "rules": [rule]})
    };
    let binding = |subject: &str| {
        json!({
            "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": subject}],
        })
    };
    let roles = format!("{RBAC}/roles");
    let bindings = format!("{RBAC}/rolebindings");
    let written = async |method: &str, path: &str, body: Value| {
        let (status, answer) = cluster.send(method, path, &[], body).await;
        assert!(status < 300, "{method} {path}: {answer}");
    };
    read(403, "before").await;
    written("POST", &roles, role("list")).await;
    read(403, "with a role alone").await;
    written("POST", &bindings, binding(user)).await;
    read(200, "bound").await;
    written("PUT", &format!("{bindings}/{user}"), binding("nobody")).await;
    read(403, "no longer a subject").await;
    written("PUT", &format!("{bindings}/{user}"), binding(user)).await;
    read(200, "a subject again").await;
    written("PUT", &format!("{roles}/{user}"), role("get")).await;
    read(403, "with another role").await;
    written("PUT", &format!("{roles}/{user}"), role("list")).await;
    read(200, "with the role again").await;
    written("DELETE", &format!("{bindings}/{user}"), Value::Null).await;
    read(403, "unbound").await;
    written("DELETE", &format!("{roles}/{user}"), Value::Null).await;
}

#[tokio::test]
async fn service_as_a_user_has_the_permissions_of_that_user() {
    let cluster = Cluster::start().await;
    let get = async |service: ApiService, path: &str| {
        let request = Request::get(path).body(Full::<Bytes>::default());
        let response = service.oneshot(request.expect("a request")).await;
        response
            .expect("every request is answered")
            .status()
            .as_u16()
    };
    let robot = || {
        cluster
            .service
            .as_user("system:serviceaccount:ns:robot", [])
    };
    assert_eq!(get(robot(), "/api/v1/namespaces/ns/configmaps").await, 200);
    assert_eq!(get(robot(), "/api/v1/namespaces/ns/secrets").await, 403);
    assert_eq!(get(robot(), "/apis").await, 200);
    let masters = cluster.service.as_user("ann", ["system:masters"]);
    assert_eq!(get(masters, "/api/v1/namespaces/ns/secrets").await, 200);
}
