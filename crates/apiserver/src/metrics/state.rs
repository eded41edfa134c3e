//! Metrics of stored objects and requests in flight, collected at each scrape.

use std::collections::HashSet;

use prometheus_client::{
    metrics::{family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};

use crate::{api::Api, flow_control::FlowControlCollector, version};

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge>;

/// The state of a server at this moment.
pub(super) fn state(api: &Api) -> Registry {
    let mut registry = Registry::default();
    storage(api, &mut registry);
    under_way(api, &mut registry);
    let flow_control = FlowControlCollector(api.flow_control.clone());
    registry.register_collector(Box::new(flow_control));
    build(&mut registry);
    registry
}

fn storage(api: &Api, registry: &mut Registry) {
    let old = Gauges::default();
    let objects = Gauges::default();
    let sizes = Gauges::default();
    let total = Gauges::default();
    let catalog = api.registry.catalog();
    let served: HashSet<&str> = catalog.resources().map(|r| &*r.collection).collect();
    let mut bytes_total = 0;
    for (collection, count, bytes) in api.store.sizes() {
        bytes_total += bytes;
        let Some((group, plural)) = served
            .get(&*collection)
            .and_then(|collection| collection.split_once('/'))
        else {
            continue;
        };
        let dotted = if group.is_empty() {
            plural.to_owned()
        } else {
            format!("{plural}.{group}")
        };
        let labels = vec![("group", group.to_owned()), ("resource", plural.to_owned())];
        old.get_or_create(&vec![("resource", dotted)])
            .set(signed(count));
        objects.get_or_create(&labels).set(signed(count));
        sizes.get_or_create(&labels).set(signed(bytes));
    }
    total
        .get_or_create(&vec![("storage_cluster_id", "etcd-0".to_owned())])
        .set(signed(bytes_total));
    registry.register(
        "apiserver_storage_objects",
        "Stored objects; see apiserver_resource_objects",
        old,
    );
    registry.register("apiserver_resource_objects", "Stored objects", objects);
    registry.register(
        "apiserver_resource_size_estimate_bytes",
        "Bytes of stored objects",
        sizes,
    );
    registry.register(
        "apiserver_storage_size_bytes",
        "Bytes of all stored objects",
        total,
    );
}

fn under_way(api: &Api, registry: &mut Registry) {
    let running = Gauges::default();
    let waiting = Gauges::default();
    let (read_only, mutating) = api.flow_control.load();
    for (kind, load) in [("readOnly", read_only), ("mutating", mutating)] {
        let labels = vec![("request_kind", kind.to_owned())];
        running.get_or_create(&labels).set(signed(load.running));
        waiting.get_or_create(&labels).set(signed(load.waiting));
    }
    registry.register(
        "apiserver_current_inflight_requests",
        "Requests under way",
        running,
    );
    registry.register(
        "apiserver_current_inqueue_requests",
        "Requests that wait for their turn",
        waiting,
    );
}

fn build(registry: &mut Registry) {
    let info = version::info();
    let labels: Labels = vec![
        ("build_date", info.build_date.into()),
        ("compiler", info.compiler.into()),
        ("git_commit", info.git_commit.into()),
        ("git_tree_state", info.git_tree_state.into()),
        ("git_version", info.git_version.into()),
        ("go_version", info.go_version.into()),
        ("major", info.major.into()),
        ("minor", info.minor.into()),
        ("platform", info.platform),
    ];
    registry.register(
        "kubernetes_build",
        "The release this server follows, and its build",
        Info::new(labels),
    );
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
