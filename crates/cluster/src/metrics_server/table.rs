//! Tables of node and pod metrics, for `kubectl get`.
//!
//! In: metrics. Out: a `meta.k8s.io/v1` Table. Mirrors `addPodMetricsToTable` and
//! `addNodeMetricsToTable`: the columns are the resources that the first object has.

use serde::Serialize;
use serde_json::{Value, json};

use super::api::{GROUP, NodeMetrics, PodMetrics, ResourceList, VERSION};
use crate::quantity::{from_bytes, from_nanos, nano_value, value};

/// What the rows have of their objects: the parameter `includeObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

/// Metrics of one object.
pub(super) trait Metrics: Serialize {
    /// Its kind.
    const KIND: &'static str;

    /// The sum over the containers.
    fn usage(&self) -> ResourceList;

    fn window(&self) -> &str;

    fn name(&self) -> Option<&str>;
}

impl Metrics for NodeMetrics {
    const KIND: &'static str = "NodeMetrics";

    fn usage(&self) -> ResourceList {
        self.usage.clone()
    }

    fn window(&self) -> &str {
        self.interval.window_text()
    }

    fn name(&self) -> Option<&str> {
        self.metadata.name.as_deref()
    }
}

impl Metrics for PodMetrics {
    const KIND: &'static str = "PodMetrics";

    fn usage(&self) -> ResourceList {
        let sum = |resource: &str, amount: fn(&_) -> i64| -> i64 {
            let containers = self.containers.iter();
            let amounts = containers
                .filter_map(|it| it.usage.get(resource))
                .map(amount);
            amounts.fold(0, i64::saturating_add)
        };
        let cpu = from_nanos(sum("cpu", nano_value));
        let memory = from_bytes(sum("memory", value));
        [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into()
    }

    fn window(&self) -> &str {
        self.interval.window_text()
    }

    fn name(&self) -> Option<&str> {
        self.metadata.name.as_deref()
    }
}

/// An object with its kind.
pub(super) fn object<M: Metrics>(metrics: &M) -> Result<Value, serde_json::Error> {
    let mut object = serde_json::to_value(metrics)?;
    object["kind"] = M::KIND.into();
    object["apiVersion"] = format!("{GROUP}/{VERSION}").into();
    Ok(object)
}

/// The table of some objects.
pub(super) fn table<M: Metrics>(
    metrics: &[M],
    include: IncludeObject,
) -> Result<Value, serde_json::Error> {
    let resources: Vec<String> = metrics
        .first()
        .map(|first| first.usage().into_keys().collect())
        .unwrap_or_default();
    let column = |name: &str, format: &str, description: &str| {
        json!({
            "name": name, "type": "string", "format": format, "description": description,
            "priority": 0,
        })
    };
    let mut columns = Vec::new();
    if !metrics.is_empty() {
        columns.push(column("Name", "name", "Name of the resource"));
        columns.extend(resources.iter().map(|it| column(it, "quantity", "")));
        columns.push(column("Window", "duration", ""));
    }
    let mut rows = Vec::with_capacity(metrics.len());
    for metrics in metrics {
        let usage = metrics.usage();
        let mut cells = vec![metrics.name().unwrap_or_default().to_owned()];
        for resource in &resources {
            let amount = usage.get(resource).map_or("0", |quantity| &quantity.0);
            cells.push(amount.to_owned());
        }
        cells.push(metrics.window().to_owned());
        let mut row = json!({"cells": cells});
        if include != IncludeObject::None {
            let mut object = object(metrics)?;
            if include == IncludeObject::Metadata {
                object = json!({
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": object["metadata"],
                });
            }
            row["object"] = object;
        }
        rows.push(row);
    }
    Ok(json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
        "columnDefinitions": columns, "rows": rows,
    }))
}
