//! Logs, shells and tunnels of containers. This server runs none, so requests end where the real one would call a kubelet.
//! Holds: what the real server refuses before that call is refused in the same words.

use std::net::IpAddr;

use crate::{
    api::Api,
    auth::{Lookup, Source},
    error::ApiError,
    kinds::Look,
    object::Object,
    verbs::{Call, Content, Reply},
};

/// The log of a container: nothing for a pod on no node.
///
/// # Errors
/// No such pod or container; a pod on a node, whose logs this server cannot reach.
pub(super) fn log(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let pod = pod(api, call, &call.target.name)?;
    check_container(&pod, call.query.get("container").unwrap_or_default())?;
    match pod.str_at("spec.nodeName") {
        "" => Ok(Reply::ok(Content::Text(String::new()))),
        node => Err(no_containers(call, node)),
    }
}

/// A shell in a container.
///
/// # Errors
/// Always: see [`log`].
pub(super) fn stream(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let pod = pod(api, call, &call.target.name)?;
    check_container(&pod, call.query.get("container").unwrap_or_default())?;
    Err(no_host(call, &pod))
}

/// A tunnel to ports of a pod.
///
/// # Errors
/// Always: see [`log`].
pub(super) fn forward(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let pod = pod(api, call, &call.target.name)?;
    Err(no_host(call, &pod))
}

/// A request passed on to a pod, a service or a node.
///
/// # Errors
/// Always: nothing here listens.
pub(super) fn proxy(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let (resource, id) = (&call.target.resource, call.target.name.as_str());
    let Some(name) = proxied_name(id) else {
        return Err(ApiError::BadRequest(format!(
            "invalid {} request {id:?}",
            resource.singular
        )));
    };
    if resource.plural == "pods" {
        let pod = pod(api, call, name)?;
        let address = pod
            .body
            .part("status")
            .list("podIPs")
            .first()
            .map(|ip| ip.text("ip"))
            .unwrap_or_default();
        return Err(match address.parse() {
            Ok(ip) if is_global_unicast(ip) => no_containers(call, pod.str_at("spec.nodeName")),
            _ => ApiError::BadRequest("address not allowed".into()),
        });
    }
    let key = crate::store::ObjectKey::new(&call.target.namespace, name);
    if api.store.get(&resource.shelf, &key).is_none() {
        return Err(ApiError::NotFound {
            resource: resource.group_resource(),
            name: name.to_owned(),
        });
    }
    match resource.plural.as_str() {
        "services" => Err(ApiError::Unavailable(format!(
            "no endpoints available for service {id:?}"
        ))),
        _ => Err(no_containers(call, name)),
    }
}

fn pod(api: &Api, call: &Call, name: &str) -> Result<std::sync::Arc<Object>, ApiError> {
    let missing = || ApiError::NotFound {
        resource: call.target.resource.group_resource(),
        name: name.to_owned(),
    };
    api.get(Source::Pod, &call.target.namespace, name)
        .ok_or_else(missing)
}

/// The name in `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`.
fn proxied_name(id: &str) -> Option<&str> {
    let parts: Vec<&str> = id.split(':').collect();
    let name = match parts.as_slice() {
        [name] | [name, _] | ["" | "http" | "https", name, _] => *name,
        _ => return None,
    };
    (!name.is_empty()).then_some(name)
}

fn is_global_unicast(ip: IpAddr) -> bool {
    let linked = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(linked || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// The container asked for must exist; it may be left out where there is only one.
fn check_container(pod: &Object, asked: &str) -> Result<(), ApiError> {
    let (name, spec) = (&pod.meta.name, pod.body.part("spec"));
    let of = |list: &str| {
        spec.list(list)
            .iter()
            .map(|c| c.text("name").to_owned())
            .collect::<Vec<String>>()
    };
    let all = [
        of("initContainers"),
        of("containers"),
        of("ephemeralContainers"),
    ]
    .concat();
    let refuse = |why: String| Err(ApiError::BadRequest(why));
    match (asked, of("containers").len()) {
        ("", 1) => Ok(()),
        ("", 0) => refuse(format!("a container name must be specified for pod {name}")),
        ("", _) => refuse(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        )),
        (asked, _) if all.iter().any(|c| c == asked) => Ok(()),
        (asked, _) => refuse(format!("container {asked} is not valid for pod {name}")),
    }
}

fn no_host(call: &Call, pod: &Object) -> ApiError {
    match pod.str_at("spec.nodeName") {
        "" => ApiError::BadRequest(format!(
            "pod {} does not have a host assigned",
            pod.meta.name
        )),
        node => no_containers(call, node),
    }
}

fn no_containers(call: &Call, node: &str) -> ApiError {
    let part = call.part.as_ref().map_or("", |part| part.name);
    let (kind, name) = (&call.target.resource.singular, &call.target.name);
    ApiError::Unavailable(format!(
        "no {part} for {kind} {name:?}: node {node:?} has no kubelet to ask, because this server runs no containers"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::trial::object;

    #[test]
    fn container_is_named_unless_there_is_only_one() {
        let pod = |containers: &[&str]| {
            let containers: Vec<_> = containers
                .iter()
                .map(|name| json!({"name": name}))
                .collect();
            object(
                json!({"metadata": {"name": "p"}, "spec": {"initContainers": [{"name": "i"}], "containers": containers}}),
            )
        };
        let cases = [
            (&["a"][..], "", ""),
            (&["a"], "i", ""),
            (&["a"], "b", "container b is not valid for pod p"),
            (
                &["a", "b"],
                "",
                "a container name must be specified for pod p, choose one of: [i a b]",
            ),
            (&[], "", "a container name must be specified for pod p"),
        ];
        for (containers, asked, why) in cases {
            let said = check_container(&pod(containers), asked)
                .err()
                .map(|e| e.to_status()["message"].clone());
            assert_eq!(
                said,
                (!why.is_empty()).then(|| json!(why)),
                "{containers:?} {asked:?}"
            );
        }
    }

    #[test]
    fn proxied_names_come_with_scheme_and_port() {
        for (id, name) in [
            ("a", Some("a")),
            ("a:80", Some("a")),
            ("https:a:80", Some("a")),
            ("ftp:a:80", None),
            (":", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(proxied_name(id), name, "{id}");
        }
    }
}
