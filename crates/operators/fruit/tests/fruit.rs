//! What the server promises whoever stores fruit.

use bellerophon_fruit::{Fruit, OPERATOR};
use bellerophon_testkit::World;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

async fn orchard() -> (World, Api<Fruit>) {
    let world = World::bare().await;
    world.define((OPERATOR.definitions)()).await;
    let fruits = world.within("default");
    (world, fruits)
}

fn fruit(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "user.k8sasdb.org/v1", "kind": "Fruit", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn bad_fruit_is_refused_with_the_name_of_the_field() {
    let (world, _) = orchard().await;
    let post = |object: Value| {
        let request = http::Request::post("/apis/user.k8sasdb.org/v1/namespaces/default/fruits")
            .body(object.to_string().into_bytes());
        world.client.request::<Value>(request.expect("a request"))
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
            panic!("{spec} was taken")
        };
        let fields: Vec<String> = status
            .details
            .iter()
            .flat_map(|details| &details.causes)
            .map(|cause| cause.field.clone())
            .collect();
        // Where types are wrong, a second cause says that rules across fields were not checked.
        assert_eq!(
            (status.code, fields.first().map(String::as_str)),
            (422, Some(field)),
            "{spec}: {}",
            status.message
        );
    }
    post(fruit(
        "a",
        json!({"sweetness": true, "weight": 1001, "comment": "a melon"}),
    ))
    .await
    .expect("a good fruit");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn fruits_are_paged_and_selected() {
    let (world, fruits) = orchard().await;
    for i in 0..25 {
        world
            .apply(fruit(
                &format!("f{i:02}"),
                json!({"sweetness": i % 5 == 0, "weight": 1 + i}),
            ))
            .await;
    }
    let (mut names, mut params) = (Vec::new(), ListParams::default().limit(10));
    loop {
        let page = fruits.list(&params).await.expect("a page");
        names.extend(page.items.iter().map(|fruit| fruit.name_any()));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => break,
        }
    }
    assert_eq!(
        names,
        (0..25).map(|i| format!("f{i:02}")).collect::<Vec<_>>()
    );
    let sweet = fruits
        .list(&ListParams::default().fields("spec.sweetness=true"))
        .await
        .expect("a list");
    assert_eq!(sweet.items.len(), 5);
    assert_eq!(sweet.items[0].spec.comment, "", "defaults are filled in");
    world.stop().await;
}
