//! Discovery and version, as clients read them.

use bellerophon_apiserver::{ApiServer, ApiService, Body};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

async fn send(
    service: ApiService,
    request: http::request::Builder,
    body: &Value,
) -> (http::response::Parts, String) {
    let body = if body.is_null() {
        Vec::new()
    } else {
        serde_json::to_vec(body).expect("it has string keys")
    };
    let request: Request<Full<bytes::Bytes>> = request
        .body(Full::from(body))
        .expect("the request is sound");
    let response: Response<Body> = service
        .oneshot(request)
        .await
        .expect("the service never fails");
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.expect("bodies do not fail").to_bytes();
    (head, String::from_utf8_lossy(&bytes).into_owned())
}

async fn get(server: &ApiServer, path: &str, accept: &str) -> (http::response::Parts, String) {
    send(
        server.service(),
        Request::get(path).header("accept", accept),
        &Value::Null,
    )
    .await
}

fn knobs() -> Value {
    let version = |name: &str, storage: bool| {
        let spec = json!({"type": "object", "properties": {"turns": {"type": "integer"}}});
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}});
        json!({"name": name, "served": true, "storage": storage, "schema": schema, "subresources": {"status": {}}})
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "knobs.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "knobs", "singular": "knob", "kind": "Knob"},
            "versions": [version("v1alpha1", false), version("v1beta1", false), version("v1", true)],
        },
    })
}

#[tokio::test]
async fn custom_resource_shows_once_its_definition_is_answered() -> Outcome {
    let server = ApiServer::builder().start().await?;
    let (before, _) = get(&server, "/apis", AGGREGATED).await;
    let request = Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        .header("content-type", "application/json");
    let (head, text) = send(server.service(), request, &knobs()).await;
    assert_eq!(head.status, StatusCode::CREATED, "{text}");

    let (after, text) = get(&server, "/apis", AGGREGATED).await;
    assert_ne!(before.headers["etag"], after.headers["etag"]);
    let list: Value = serde_json::from_str(&text)?;
    let group = list["items"]
        .as_array()
        .and_then(|items| items.last())
        .ok_or("there are groups")?;
    let versions: Vec<&Value> = group["versions"]
        .as_array()
        .ok_or("there are versions")?
        .iter()
        .map(|v| &v["version"])
        .collect();
    assert_eq!(group["metadata"]["name"], "example.com");
    assert_eq!(versions, ["v1", "v1beta1", "v1alpha1"]);
    let kind = json!({"group": "example.com", "version": "v1", "kind": "Knob"});
    assert_eq!(group["versions"][0]["resources"][0]["responseKind"], kind);

    let (_, text) = get(
        &server,
        "/openapi/v3/apis/example.com/v1",
        "application/json",
    )
    .await;
    let document: Value = serde_json::from_str(&text)?;
    let knob = &document["components"]["schemas"]["com.example.v1.Knob"];
    assert_eq!(
        &knob["properties"]["spec"]["properties"]["turns"]["type"],
        &json!("integer")
    );
    assert_eq!(&document["info"]["title"], &json!("Kubernetes CRD Swagger"));
    let put = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/knobs/{name}/status"]
        ["put"];
    assert_eq!(
        put["operationId"],
        "replaceExampleComV1NamespacedKnobStatus"
    );
    server.shutdown().await;
    Ok(())
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

#[tokio::test]
async fn openapi_follows_definitions_immediately() -> Outcome {
    let server = ApiServer::builder().start().await?;
    let tags = async || {
        let json = get(&server, "/openapi/v2", "application/json")
            .await
            .0
            .headers["etag"]
            .clone();
        let protobuf = get(&server, "/openapi/v2", PROTOBUF).await.0.headers["etag"].clone();
        let index: Value =
            serde_json::from_str(&get(&server, "/openapi/v3", "application/json").await.1)
                .expect("JSON");
        (json, protobuf, index["paths"].clone())
    };
    let before = tags().await;
    let request = Request::post(DEFINITIONS).header("content-type", "application/json");
    send(server.service(), request, &knobs()).await;

    let during = tags().await;
    assert!(before.0 != during.0 && before.1 != during.1);
    assert_eq!(
        before.2["apis/apps/v1"], during.2["apis/apps/v1"],
        "documents of other groups keep their address"
    );
    assert!(
        during.2["apis/example.com/v1beta1"].is_object()
            && before.2["apis/example.com/v1beta1"].is_null()
    );
    let document: Value =
        serde_json::from_str(&get(&server, "/openapi/v2", "application/json").await.1)?;
    for version in ["v1", "v1beta1", "v1alpha1"] {
        let knob = &document["definitions"][format!("com.example.{version}.Knob")];
        assert_eq!(
            knob["x-kubernetes-group-version-kind"],
            json!([{"group": "example.com", "kind": "Knob", "version": version}])
        );
        assert_eq!(
            knob["properties"]["spec"]["properties"]["turns"],
            json!({"type": "integer"})
        );
        let path = &document["paths"]
            [format!("/apis/example.com/{version}/namespaces/{{namespace}}/knobs/{{name}}")];
        assert_eq!(path["patch"]["x-kubernetes-action"], "patch");
    }
    assert!(
        get(&server, "/openapi/v2", PROTOBUF)
            .await
            .1
            .contains("com.example.v1beta1.KnobList")
    );

    send(
        server.service(),
        Request::delete(format!("{DEFINITIONS}/knobs.example.com")),
        &Value::Null,
    )
    .await;
    assert_eq!(before, tags().await, "nothing of it is left");
    server.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn clients_find_version_and_groups() -> Outcome {
    let server = ApiServer::builder().start().await?;
    let client = server.client();
    let version = client.apiserver_version().await?;
    assert_eq!(version.major.as_str(), "1");
    assert_eq!(version.minor.as_str(), "36");
    assert_eq!(version.git_version.as_str(), "v1.36.4");
    let groups = client.list_api_groups().await?;
    assert_eq!(groups.groups.len(), 20);
    let apps = client.list_api_group_resources("apps/v1").await?;
    assert!(
        apps.resources
            .iter()
            .any(|r| r.name == "deployments/scale" && r.kind == "Scale")
    );
    Ok(())
}

#[tokio::test]
async fn scrape_counts_requests_of_clients() -> Outcome {
    let server = ApiServer::builder().start().await?;
    for _ in 0..3 {
        get(&server, "/api/v1/namespaces/default", "application/json").await;
    }
    get(&server, "/api/v1/nosuch", "application/json").await;
    let (head, text) = get(&server, "/metrics", "*/*").await;
    assert_eq!(
        head.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    );
    for line in [
        r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="namespaces",scope="resource",subresource="",verb="GET",version="v1"} 3"#,
        r#"apiserver_resource_objects{group="",resource="namespaces"} 4"#,
        r#"apiserver_storage_objects{resource="clusterroles.rbac.authorization.k8s.io"} 69"#,
        r#"apiserver_current_inflight_requests{request_kind="readOnly"} 0"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line} not in\n{text}");
    }
    assert!(!text.contains("nosuch"));
    Ok(())
}

#[tokio::test]
async fn stopped_server_is_alive_but_not_ready() -> Outcome {
    let server = ApiServer::builder().start().await?;
    let service = server.service();
    let get = |path: &str| send(service.clone(), Request::get(path.to_owned()), &Value::Null);
    assert_eq!(get("/readyz").await.1, "ok");
    server.shutdown().await;
    let (head, text) = get("/readyz").await;
    assert_eq!(head.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(text.lines().last(), Some("readyz check failed"));
    assert!(
        text.contains("[-]shutdown failed: reason withheld\n"),
        "{text}"
    );
    assert_eq!(get("/livez").await.1, "ok");
    Ok(())
}

#[tokio::test]
async fn token_keys_are_at_the_requested_address() -> Outcome {
    let server = ApiServer::builder().start().await?;
    let cases = [
        ("10.0.0.1:443", "https://10.0.0.1:443/openid/v1/jwks"),
        (
            "kubernetes.default.svc",
            "https://kubernetes.default.svc/openid/v1/jwks",
        ),
        (
            "user@example.com",
            "https://kubernetes.default.svc/openid/v1/jwks",
        ),
    ];
    for (host, expected) in cases {
        let request = Request::get("/.well-known/openid-configuration").header("host", host);
        let (_, body) = send(server.service(), request, &Value::Null).await;
        let configuration: Value = serde_json::from_str(&body)?;
        assert_eq!(configuration["jwks_uri"], expected, "{host}");
    }
    Ok(())
}
