//! Request bodies that are expensive to process.

use std::time::Duration;

use http::{Method, header};
use serde_json::{Value, json};

use crate::{
    client::{Client, JSON_PATCH, MERGE_PATCH, Response, YAML},
    target::Target,
};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Quadratic processing takes several times as long in a debug build.
const LINEAR_MAX: Duration = Duration::from_secs(5);

/// Each alias of a scalar used to copy it: 3.5 GB of memory for this body.
#[tokio::test]
async fn yaml_aliases_of_a_long_scalar_are_refused() {
    let target = Target::start().await;
    let client = target.client_of("nobody", &[]).await;
    let mut body = format!("x: &a \"{}\\n\"\ny:\n", "A".repeat(1 << 20));
    body.push_str(&"- *a\n".repeat(3_000));
    let memory = target.measure_memory();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let response = client.send(Method::POST, path, YAML, body).await;
    response
        .assert_status(400)
        .assert_contains("excessive aliasing")
        .assert_within(LINEAR_MAX);
    memory.assert_below_mib(100);
    target.assert_well().await;
}

/// Sends a patch; `/version` is answered meanwhile.
async fn patch(target: &Target, path: &str, content_type: &str, body: String) -> Response {
    let patch = target.admin.send(Method::PATCH, path, content_type, body);
    let version = async {
        let other = target.endpoint.client(&target.endpoint.token).await;
        other.get("/version").await
    };
    let (patched, version) = tokio::join!(patch, version);
    version.assert_status(200).assert_within(LINEAR_MAX);
    patched.assert_within(LINEAR_MAX);
    eprintln!("{path}: {:?}", patched.elapsed);
    patched
}

/// A custom resource with a keyed list of this length.
async fn create_keyed_list(client: &Client, items: usize) -> String {
    let item = json!({
        "type": "object",
        "required": ["k"],
        "properties": {"k": {"type": "string"}, "v": {"type": "string", "minLength": 1}},
    });
    let properties = json!({
        "other": {"type": "string"},
        "list": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": item,
        },
    });
    let definition = json!({
        "metadata": {"name": "lists.attacks.example"},
        "spec": {
            "group": "attacks.example",
            "scope": "Cluster",
            "names": {"plural": "lists", "kind": "List"},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
            }],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    client.create(definitions, &definition).await;
    let list: Vec<Value> = (0..items)
        .map(|item| json!({"k": format!("k{item}"), "v": "x"}))
        .collect();
    let object = json!({
        "apiVersion": "attacks.example/v1",
        "kind": "List",
        "metadata": {"name": "long"},
        "list": list,
    });
    let lists = "/apis/attacks.example/v1/lists";
    client.create(lists, &object).await;
    format!("{lists}/long")
}

#[tokio::test]
async fn patch_beside_a_long_keyed_list_takes_linear_time() {
    let target = Target::start().await;
    let path = create_keyed_list(&target.admin, 6_000).await;
    let body = json!({"other": "x"}).to_string();
    let patched = patch(&target, &path, MERGE_PATCH, body).await;
    patched.assert_status(200);
    target.assert_well().await;
}

#[tokio::test]
async fn unknown_fields_of_a_patch_take_linear_time_and_few_warnings() {
    let target = Target::start().await;
    let object = json!({"metadata": {"name": "a"}});
    target.admin.create(CONFIG_MAPS, &object).await;
    let mut operation = json!({"op": "add", "path": "/data", "value": {"a": "b"}});
    for field in 0..60_000 {
        operation[format!("f{field}")] = json!(0);
    }
    let body = json!([operation]).to_string();
    let path = format!("{CONFIG_MAPS}/a");
    let patched = patch(&target, &path, JSON_PATCH, body).await;
    patched.assert_status(200);
    let warnings = patched.headers.get_all(header::WARNING).iter();
    let warnings: Vec<usize> = warnings.map(|warning| warning.len()).collect();
    assert!(!warnings.is_empty());
    // Each has a few bytes around its text.
    let bytes: usize = warnings.iter().sum();
    assert!(bytes <= 16 << 10, "{bytes} bytes");
    target.assert_well().await;
}

#[tokio::test]
async fn many_owner_references_take_linear_time() {
    let target = Target::start().await;
    let object = json!({"metadata": {"name": "a"}});
    target.admin.create(CONFIG_MAPS, &object).await;
    let owners: Vec<Value> = (0..15_000)
        .map(|owner| {
            let uid = format!("u{owner}");
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid})
        })
        .collect();
    let body = json!({"metadata": {"ownerReferences": owners}}).to_string();
    let path = format!("{CONFIG_MAPS}/a");
    let patched = patch(&target, &path, MERGE_PATCH, body).await;
    patched.assert_status(200);
    target.assert_well().await;
}

/// It used to be refused as a negative amount.
#[tokio::test]
async fn largest_quantity_is_not_negative() {
    let target = Target::start().await;
    let resources = json!({"limits": {"memory": "9223372036854775807E"}});
    let container = json!({"name": "c", "image": "i", "resources": resources});
    target.account("bob", &[]).await;
    let spec = json!({"serviceAccountName": "bob", "containers": [container]});
    let pod = json!({"metadata": {"name": "a"}, "spec": spec});
    let pods = "/api/v1/namespaces/default/pods";
    let created = target.admin.post(pods, &pod).await;
    let text = String::from_utf8_lossy(&created.body);
    assert!(!text.contains("-170141"), "{text}");
    created.assert_status(201);
    target.assert_well().await;
}
