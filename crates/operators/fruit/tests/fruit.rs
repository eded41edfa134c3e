//! Validation, paging and field selectors of Fruits on an API server.

use bellerophon_fruit::{Fruit, OPERATOR};
use bellerophon_testkit::TestCluster;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

async fn cluster_with_fruits() -> (TestCluster, Api<Fruit>) {
    let cluster = TestCluster::api_server_only().await;
    cluster.install_crds((OPERATOR.crds)()).await;
    let fruits = cluster.namespaced("default");
    (cluster, fruits)
}

fn fruit(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "user.k8sasdb.org/v1", "kind": "Fruit",
        "metadata": {"name": name},
        "spec": spec,
    })
}

#[tokio::test(start_paused = true)]
async fn validation_error_names_the_field() {
    let (cluster, _) = cluster_with_fruits().await;
    let post = |object: Value| {
        let request = http::Request::post("/apis/user.k8sasdb.org/v1/namespaces/default/fruits")
            .body(object.to_string().into_bytes());
        cluster.client.request::<Value>(request.expect("a request"))
    };
    for (spec, field) in [
        (json!({"sweetness": true, "weight": 0}), "spec.weight"),
        (json!({"sweetness": "very", "weight": 1}), "spec.sweetness"),
        (json!({"sweetness": true}), "spec.weight"),
        (json!({"sweetness": true, "weight": 1001}), "spec.comment"),
        (
            json!({"sweetness": true, "weight": 1, "comment": "x".repeat(257)}),
            "spec.comment",
        ),
    ] {
        let Err(kube::Error::Api(status)) = post(fruit("a", spec.clone())).await else {
            panic!("{spec} was accepted")
        };
        assert_eq!(status.code, 422, "{spec}: {}", status.message);
        let fields: Vec<&str> = status
            .details
            .iter()
            .flat_map(|details| &details.causes)
            .map(|cause| cause.field.as_str())
            .collect();
        // After a type error, a second cause reports that validation rules were not evaluated.
        assert_eq!(fields.first(), Some(&field), "{spec}: {}", status.message);
    }
    let heavy = json!({"sweetness": true, "weight": 1001, "comment": "a melon"});
    post(fruit("a", heavy))
        .await
        .expect("a valid fruit is accepted");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn fruits_are_listed_in_pages_and_by_field_selector() {
    let (cluster, fruits) = cluster_with_fruits().await;
    for i in 0..25 {
        let spec = json!({"sweetness": i % 5 == 0, "weight": 1 + i});
        cluster.apply(fruit(&format!("f{i:02}"), spec)).await;
    }
    let mut names = Vec::new();
    let mut params = ListParams::default().limit(10);
    loop {
        let page = fruits.list(&params).await.expect("a page");
        names.extend(page.items.iter().map(|fruit| fruit.name_any()));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => break,
        }
    }
    let expected: Vec<String> = (0..25).map(|i| format!("f{i:02}")).collect();
    assert_eq!(names, expected);
    let sweet = fruits
        .list(&ListParams::default().fields("spec.sweetness=true"))
        .await
        .expect("a list");
    assert_eq!(sweet.items.len(), 5);
    assert_eq!(sweet.items[0].spec.comment, "", "defaults are applied");
    cluster.stop().await;
}
