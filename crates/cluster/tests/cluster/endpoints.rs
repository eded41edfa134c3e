//! EndpointSlices and Endpoints of services.

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use bellerophon_testkit::{TestCluster, wait_until};

async fn test_cluster() -> TestCluster {
    let cluster = TestCluster::with_core_controllers().await;
    wait_until(
        &cluster.namespaced::<ServiceAccount>("default"),
        "the default service account",
        |all| !all.is_empty(),
    )
    .await;
    cluster
}

fn service(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"team": "a"}},
        "spec": spec,
    })
}

/// A pod with label `app`, an address and a Ready condition.
async fn pod(cluster: &TestCluster, name: &str, app: &str, ready: bool) {
    let number = name
        .bytes()
        .fold(1_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    let spec =
        json!({"nodeName": "n", "containers": [{"name": "c", "image": "i", "ports": ports}]});
    cluster
        .apply(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": app}},
            "spec": spec,
        }))
        .await;
    let ip = format!("10.244.{}.{number}", name.len());
    set_status(
        cluster,
        name,
        json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}),
    )
    .await;
    set_ready(cluster, name, ready).await;
}

async fn set_ready(cluster: &TestCluster, name: &str, ready: bool) {
    set_status(
        cluster,
        name,
        json!({"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}),
    )
    .await;
}

async fn set_status(cluster: &TestCluster, name: &str, status: Value) {
    let pods = cluster.namespaced::<Pod>("default");
    pods.patch_status(
        name,
        &PatchParams::default(),
        &Patch::Merge(&json!({ "status": status })),
    )
    .await
    .expect("the status is patched");
}

fn slices_of<'a>(
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

/// `name:ready/serving/terminating` of each endpoint of a service, sorted.
fn summaries(slices: &[EndpointSlice], service: &str) -> Vec<String> {
    let letter = |value: Option<bool>| if value == Some(true) { "y" } else { "n" };
    let endpoints = slices_of(slices, service).flat_map(|slice| slice.endpoints.iter().flatten());
    let mut summaries: Vec<_> = endpoints
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
    summaries.sort();
    summaries
}

#[tokio::test(start_paused = true)]
async fn slices_and_endpoints_are_synced_with_pods() {
    let cluster = test_cluster().await;
    let slices: Api<EndpointSlice> = cluster.namespaced("default");
    let endpoints: Api<Endpoints> = cluster.namespaced("default");
    let ports = json!([{"name": "http", "port": 80, "targetPort": "http"}]);
    cluster
        .apply(service(
            "web",
            json!({"selector": {"app": "web"}, "ports": ports}),
        ))
        .await;
    let empty = wait_until(&slices, "a placeholder slice", |all| {
        slices_of(all, "web").count() == 1
    })
    .await;
    assert_eq!(
        slices_of(&empty, "web")
            .map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len))
            .collect::<Vec<_>>(),
        [0]
    );
    pod(&cluster, "a", "web", true).await;
    pod(&cluster, "b", "web", false).await;
    pod(&cluster, "other", "db", true).await;
    let all = wait_until(&slices, "both pods are endpoints", |all| {
        summaries(all, "web") == ["a:yyn", "b:nnn"]
    })
    .await;
    let slice = slices_of(&all, "web").next().expect("a slice");
    assert_eq!(slice.labels()["team"], "a");
    assert_eq!(
        slice.labels()["endpointslice.kubernetes.io/managed-by"],
        "endpointslice-controller.k8s.io"
    );
    let port = &slice.ports.as_ref().expect("ports")[0];
    assert_eq!(port.name.as_deref(), Some("http"));
    assert_eq!(port.port, Some(8080));
    assert_eq!(port.protocol.as_deref(), Some("TCP"));
    let address_counts = |all: &[Endpoints]| -> Option<(usize, usize)> {
        let web = all.iter().find(|endpoints| endpoints.name_any() == "web")?;
        let subset = web.subsets.as_ref()?.first()?;
        Some((
            subset.addresses.as_ref().map_or(0, Vec::len),
            subset.not_ready_addresses.as_ref().map_or(0, Vec::len),
        ))
    };
    wait_until(&endpoints, "Endpoints have both addresses", |all| {
        address_counts(all) == Some((1, 1))
    })
    .await;

    set_ready(&cluster, "b", true).await;
    wait_until(&slices, "b is ready", |all| {
        summaries(all, "web") == ["a:yyn", "b:yyn"]
    })
    .await;
    cluster
        .namespaced::<Pod>("default")
        .delete("a", &Default::default())
        .await
        .expect("it is deleted");
    wait_until(&slices, "a is terminating", |all| {
        summaries(all, "web") == ["a:nyy", "b:yyn"]
    })
    .await;
    wait_until(&endpoints, "Endpoints have no terminating pod", |all| {
        address_counts(all) == Some((1, 0))
    })
    .await;
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    cluster
        .namespaced::<Pod>("default")
        .delete("a", &now)
        .await
        .expect("it is deleted");
    wait_until(&slices, "a is deleted", |all| {
        summaries(all, "web") == ["b:yyn"]
    })
    .await;
    let relabel = json!({"metadata": {"labels": {"app": "db"}}});
    cluster
        .namespaced::<Pod>("default")
        .patch("b", &PatchParams::default(), &Patch::Merge(&relabel))
        .await
        .expect("it is relabelled");
    wait_until(&slices, "b is no endpoint", |all| {
        summaries(all, "web").is_empty()
    })
    .await;

    cluster
        .namespaced::<Service>("default")
        .delete("web", &Default::default())
        .await
        .expect("it is deleted");
    wait_until(&slices, "the slices are deleted with the service", |all| {
        slices_of(all, "web").count() == 0
    })
    .await;
    wait_until(
        &endpoints,
        "the Endpoints are deleted with the service",
        |all| all.iter().all(|endpoints| endpoints.name_any() != "web"),
    )
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn publish_not_ready_addresses_includes_unready_pods() {
    let cluster = test_cluster().await;
    let slices: Api<EndpointSlice> = cluster.namespaced("default");
    pod(&cluster, "a", "db", false).await;
    let spec =
        json!({"clusterIP": "None", "publishNotReadyAddresses": true, "selector": {"app": "db"}});
    cluster.apply(service("db", spec)).await;
    let all = wait_until(&slices, "the unready pod is published", |all| {
        summaries(all, "db") == ["a:ynn"]
    })
    .await;
    let slice = slices_of(&all, "db")
        .find(|slice| slice.endpoints.as_ref().is_some_and(|all| !all.is_empty()))
        .expect("a slice");
    assert!(
        slice
            .labels()
            .contains_key("service.kubernetes.io/headless")
    );
    set_status(&cluster, "a", json!({"phase": "Succeeded"})).await;
    wait_until(&slices, "a terminal pod is no endpoint", |all| {
        summaries(all, "db").is_empty()
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn large_service_has_slices_of_100() {
    let cluster = test_cluster().await;
    for number in 0..120 {
        pod(&cluster, &format!("p{number:03}"), "web", true).await;
    }
    cluster
        .apply(service(
            "web",
            json!({"selector": {"app": "web"}, "ports": [{"port": 80}]}),
        ))
        .await;
    let all = wait_until(
        &cluster.namespaced::<EndpointSlice>("default"),
        "all pods are endpoints",
        |all| summaries(all, "web").len() == 120,
    )
    .await;
    let mut sizes: Vec<_> = slices_of(&all, "web")
        .map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len))
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [20, 100]);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_a_service_without_selector_are_mirrored() {
    let mut cluster = test_cluster().await;
    let slices: Api<EndpointSlice> = cluster.namespaced("default");
    cluster
        .apply(service("outside", json!({"ports": [{"port": 5432}]})))
        .await;
    let subsets = json!([
        {
            "addresses": [{"ip": "192.0.2.1"}],
            "notReadyAddresses": [{"ip": "192.0.2.2"}],
            "ports": [{"port": 5432}],
        },
    ]);
    cluster
        .apply(json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": "outside"},
            "subsets": subsets,
        }))
        .await;
    let all = wait_until(&slices, "a slice", |all| {
        slices_of(all, "outside").next().is_some()
    })
    .await;
    let slice = slices_of(&all, "outside").next().expect("a slice");
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
    cluster.restart_controllers().await;
    assert_eq!(
        slices
            .get(&slice.name_any())
            .await
            .expect("the slice exists")
            .resource_version(),
        version,
        "an unchanged slice is not written"
    );
    cluster
        .namespaced::<Endpoints>("default")
        .delete("outside", &Default::default())
        .await
        .expect("it is deleted");
    wait_until(&slices, "the slice is deleted", |all| {
        slices_of(all, "outside").next().is_none()
    })
    .await;
    assert!(
        slices
            .get_opt("kubernetes")
            .await
            .expect("a response")
            .is_some(),
        "the slice of the API server is not modified"
    );
    assert_eq!(
        slices_of(
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
    cluster.stop().await;
}
