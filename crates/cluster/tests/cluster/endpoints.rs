//! Services and where their pods are.

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use bellerophon_testkit::{World, until};

async fn world() -> World {
    let world = World::core().await;
    until(
        &world.within::<ServiceAccount>("default"),
        "an account",
        |all| !all.is_empty(),
    )
    .await;
    world
}

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"team": "a"}}, "spec": spec})
}

/// A pod of an app with an address, ready or not.
async fn pod(world: &World, name: &str, app: &str, ready: bool) {
    let number = name
        .bytes()
        .fold(1_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    let spec =
        json!({"nodeName": "n", "containers": [{"name": "c", "image": "i", "ports": ports}]});
    world.apply(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}}, "spec": spec})).await;
    let ip = format!("10.244.{}.{number}", name.len());
    set_status(
        world,
        name,
        json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}),
    )
    .await;
    set_ready(world, name, ready).await;
}

async fn set_ready(world: &World, name: &str, ready: bool) {
    set_status(
        world,
        name,
        json!({"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}),
    )
    .await;
}

async fn set_status(world: &World, name: &str, status: Value) {
    let pods = world.within::<Pod>("default");
    pods.patch_status(
        name,
        &PatchParams::default(),
        &Patch::Merge(&json!({ "status": status })),
    )
    .await
    .expect("it has a status");
}

fn of_service<'a>(
    slices: &'a [EndpointSlice],
    service: &'a str,
) -> impl Iterator<Item = &'a EndpointSlice> {
    slices.iter().filter(move |slice| {
        slice
            .labels()
            .get("kubernetes.io/service-name")
            .is_some_and(|name| name == service)
    })
}

/// `name:ready/serving/terminating` of each endpoint of a service, in order.
fn told(slices: &[EndpointSlice], service: &str) -> Vec<String> {
    let letter = |value: Option<bool>| if value == Some(true) { "y" } else { "n" };
    let endpoints = of_service(slices, service).flat_map(|slice| slice.endpoints.iter().flatten());
    let mut told: Vec<_> = endpoints
        .map(|endpoint| {
            let target = endpoint.target_ref.clone().unwrap_or_default();
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            let ready = conditions.ready;
            let serving = conditions.serving;
            let terminating = conditions.terminating;
            format!(
                "{}:{}{}{}",
                target.name.unwrap_or_default(),
                letter(ready),
                letter(serving),
                letter(terminating)
            )
        })
        .collect();
    told.sort();
    told
}

#[tokio::test(start_paused = true)]
async fn slices_and_endpoints_follow_the_pods_of_a_service() {
    let world = world().await;
    let slices: Api<EndpointSlice> = world.within("default");
    let endpoints: Api<Endpoints> = world.within("default");
    let ports = json!([{"name": "http", "port": 80, "targetPort": "http"}]);
    world
        .apply(service(
            "web",
            json!({"selector": {"app": "web"}, "ports": ports}),
        ))
        .await;
    let empty = until(&slices, "an empty slice", |all| {
        of_service(all, "web").count() == 1
    })
    .await;
    assert_eq!(
        of_service(&empty, "web")
            .map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len))
            .collect::<Vec<_>>(),
        [0]
    );
    pod(&world, "a", "web", true).await;
    pod(&world, "b", "web", false).await;
    pod(&world, "other", "db", true).await;
    let all = until(&slices, "both pods are known", |all| {
        told(all, "web") == ["a:yyn", "b:nnn"]
    })
    .await;
    let slice = of_service(&all, "web").next().expect("a slice");
    assert_eq!(slice.labels()["team"], "a");
    assert_eq!(
        slice.labels()["endpointslice.kubernetes.io/managed-by"],
        "endpointslice-controller.k8s.io"
    );
    let port = &slice.ports.as_ref().expect("ports")[0];
    assert_eq!(port.name.as_deref(), Some("http"));
    assert_eq!(port.port, Some(8080));
    assert_eq!(port.protocol.as_deref(), Some("TCP"));
    let sides = |all: &[Endpoints]| -> Option<(usize, usize)> {
        let web = all.iter().find(|endpoints| endpoints.name_any() == "web")?;
        let subset = web.subsets.as_ref()?.first()?;
        Some((
            subset.addresses.as_ref().map_or(0, Vec::len),
            subset.not_ready_addresses.as_ref().map_or(0, Vec::len),
        ))
    };
    until(&endpoints, "the older form", |all| {
        sides(all) == Some((1, 1))
    })
    .await;

    set_ready(&world, "b", true).await;
    until(&slices, "b is ready", |all| {
        told(all, "web") == ["a:yyn", "b:yyn"]
    })
    .await;
    world
        .within::<Pod>("default")
        .delete("a", &Default::default())
        .await
        .expect("it is deleted");
    until(&slices, "a ends", |all| {
        told(all, "web") == ["a:nyy", "b:yyn"]
    })
    .await;
    until(&endpoints, "the older form has no pods that end", |all| {
        sides(all) == Some((1, 0))
    })
    .await;
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    world
        .within::<Pod>("default")
        .delete("a", &now)
        .await
        .expect("it is deleted");
    until(&slices, "a is gone", |all| told(all, "web") == ["b:yyn"]).await;
    let relabel = json!({"metadata": {"labels": {"app": "db"}}});
    world
        .within::<Pod>("default")
        .patch("b", &PatchParams::default(), &Patch::Merge(&relabel))
        .await
        .expect("it is relabelled");
    until(&slices, "b is none of them any more", |all| {
        told(all, "web").is_empty()
    })
    .await;

    world
        .within::<Service>("default")
        .delete("web", &Default::default())
        .await
        .expect("it is deleted");
    until(&slices, "slices go with their service", |all| {
        of_service(all, "web").count() == 0
    })
    .await;
    until(&endpoints, "endpoints too", |all| {
        all.iter().all(|endpoints| endpoints.name_any() != "web")
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn headless_and_publishing_services_show_every_pod() {
    let world = world().await;
    let slices: Api<EndpointSlice> = world.within("default");
    pod(&world, "a", "db", false).await;
    let spec =
        json!({"clusterIP": "None", "publishNotReadyAddresses": true, "selector": {"app": "db"}});
    world.apply(service("db", spec)).await;
    let all = until(&slices, "it is published though it is not ready", |all| {
        told(all, "db") == ["a:ynn"]
    })
    .await;
    let slice = of_service(&all, "db")
        .find(|slice| slice.endpoints.as_ref().is_some_and(|all| !all.is_empty()))
        .expect("a slice");
    assert!(
        slice
            .labels()
            .contains_key("service.kubernetes.io/headless")
    );
    set_status(&world, "a", json!({"phase": "Succeeded"})).await;
    until(&slices, "a pod that has ended is none", |all| {
        told(all, "db").is_empty()
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn big_service_has_slices_of_a_hundred() {
    let world = world().await;
    for number in 0..120 {
        pod(&world, &format!("p{number:03}"), "web", true).await;
    }
    world
        .apply(service(
            "web",
            json!({"selector": {"app": "web"}, "ports": [{"port": 80}]}),
        ))
        .await;
    let all = until(
        &world.within::<EndpointSlice>("default"),
        "all pods are known",
        |all| told(all, "web").len() == 120,
    )
    .await;
    let mut sizes: Vec<_> = of_service(&all, "web")
        .map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len))
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [20, 100]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_a_service_without_selector_are_mirrored() {
    let mut world = world().await;
    let slices: Api<EndpointSlice> = world.within("default");
    world
        .apply(service("outside", json!({"ports": [{"port": 5432}]})))
        .await;
    let subsets = json!([{"addresses": [{"ip": "192.0.2.1"}], "notReadyAddresses": [{"ip": "192.0.2.2"}], "ports": [{"port": 5432}]}]);
    world.apply(json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "outside"}, "subsets": subsets})).await;
    let all = until(&slices, "a slice", |all| {
        of_service(all, "outside").next().is_some()
    })
    .await;
    let slice = of_service(&all, "outside").next().expect("a slice");
    assert_eq!(
        slice.labels()["endpointslice.kubernetes.io/managed-by"],
        "endpointslicemirroring-controller.k8s.io"
    );
    let ready: Vec<_> = slice
        .endpoints
        .iter()
        .flatten()
        .map(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready))
        .collect();
    assert_eq!(ready, [Some(true), Some(false)]);
    let version = slice.resource_version();
    world.restart().await;
    assert_eq!(
        slices
            .get(&slice.name_any())
            .await
            .expect("it is there")
            .resource_version(),
        version,
        "nothing new is nothing written"
    );
    world
        .within::<Endpoints>("default")
        .delete("outside", &Default::default())
        .await
        .expect("it is deleted");
    until(&slices, "the slice goes", |all| {
        of_service(all, "outside").next().is_none()
    })
    .await;
    assert!(
        slices
            .get_opt("kubernetes")
            .await
            .expect("an answer")
            .is_some(),
        "the server's own is nobody's business"
    );
    assert_eq!(
        of_service(
            &slices
                .list(&Default::default())
                .await
                .expect("a list")
                .items,
            "kubernetes"
        )
        .count(),
        1
    );
    world.stop().await;
}
