//! Downward API: fields of a pod for environment variables and volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::super::node_status::CAPACITY;
use super::super::runtime::PodNode;
use crate::quantity;

/// The value of a field of a pod. Mirrors `ExtractFieldPathAsString` and
/// `podFieldSelectorRuntimeValue`.
pub(super) fn field(pod: &Pod, node: &PodNode, path: &str) -> Result<String, String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let value = |value: &Option<String>| value.clone().unwrap_or_default();
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(unsupported(path)),
        };
        let found = map.as_ref().and_then(|map| map.get(key));
        return Ok(found.cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => value(&meta.name),
        "metadata.namespace" => value(&meta.namespace),
        "metadata.uid" => value(&meta.uid),
        "metadata.labels" => format_map(meta.labels.as_ref()),
        "metadata.annotations" => format_map(meta.annotations.as_ref()),
        "spec.nodeName" => node.name.clone(),
        "spec.serviceAccountName" => spec
            .map(|spec| value(&spec.service_account_name))
            .unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" => node.host_ip.clone(),
        "status.podIP" | "status.podIPs" => value(&node.pod_ip),
        _ => return Err(unsupported(path)),
    })
}

fn unsupported(path: &str) -> String {
    format!("unsupported fieldPath: {path}")
}

/// `metadata.labels['key']` as `metadata.labels` and `key`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// Mirrors `FormatMap`: a line per entry, with quoted values.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten();
    let lines: Vec<_> = lines
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    lines.join("\n")
}

/// The value of a resource of a container, in units of the divisor, rounded up. Mirrors
/// `ExtractContainerResourceValue`; a missing limit is the allocatable of the node.
pub(super) fn resource(
    pod: &Pod,
    container: Option<&str>,
    selector: &ResourceFieldSelector,
) -> Result<String, String> {
    let name = selector.container_name.as_deref().or(container);
    let name = name.unwrap_or_default();
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|spec| {
        let init_containers = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(init_containers)
    });
    let container = containers
        .into_iter()
        .find(|container| container.name == name)
        .ok_or_else(|| format!("container {name} not found"))?;
    let (list, resource) = selector
        .resource
        .split_once('.')
        .ok_or_else(|| format!("unsupported container resource : {}", selector.resource))?;
    let quantity = quantity(container, list, resource);
    let no_divisor = Quantity("1".to_owned());
    let divisor = selector.divisor.as_ref();
    let divisor = divisor
        .filter(|divisor| quantity::milli_value(divisor) > 0)
        .unwrap_or(&no_divisor);
    let (value, divisor) = if resource == "cpu" {
        (
            quantity::milli_value(&quantity),
            quantity::milli_value(divisor),
        )
    } else {
        (quantity::value(&quantity), quantity::value(divisor))
    };
    let quotient = u64::try_from(value)
        .unwrap_or_default()
        .div_ceil(u64::try_from(divisor).unwrap_or_default().max(1));
    Ok(quotient.to_string())
}

fn quantity(container: &Container, list: &str, resource: &str) -> Quantity {
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    if list == "requests" {
        let request = requests.and_then(|list| list.get(resource));
        return request.cloned().unwrap_or_else(|| Quantity("0".to_owned()));
    }
    let limit = limits.and_then(|list| list.get(resource));
    limit.cloned().unwrap_or_else(|| {
        let allocatable = CAPACITY.iter().find(|(name, _)| *name == resource);
        Quantity(allocatable.map_or("0", |(_, quantity)| quantity).to_owned())
    })
}
