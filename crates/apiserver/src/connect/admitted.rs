//! The options of a connection, as admission sees them: `PodExecOptions` and the like.

use serde_json::{Map, Value, json};

use crate::{http::query::Query, http::route::ResourcePath};
use bellerophon_codec::object::Object;
use bellerophon_codec::object::ObjectMeta;

/// The options of a request to a connect subresource; `None` for logs, which are read and not
/// connected to.
pub(crate) fn options_object(path: &ResourcePath, query: &Query) -> Option<Object> {
    let kind = match (path.resource.as_str(), path.subresource.as_str()) {
        (_, "exec") => "PodExecOptions",
        (_, "attach") => "PodAttachOptions",
        (_, "portforward") => "PodPortForwardOptions",
        ("nodes", "proxy") => "NodeProxyOptions",
        ("services", "proxy") => "ServiceProxyOptions",
        (_, "proxy") => "PodProxyOptions",
        _ => return None,
    };
    let mut body = Map::new();
    for flag in ["stdin", "stdout", "stderr", "tty"] {
        if query.flag(flag) {
            body.insert(flag.into(), true.into());
        }
    }
    if let Some(container) = query.get("container").filter(|name| !name.is_empty()) {
        body.insert("container".into(), container.into());
    }
    let command = query.all("command");
    if !command.is_empty() {
        body.insert("command".into(), json!(command));
    }
    let ports: Vec<i64> = query
        .all("ports")
        .iter()
        .filter_map(|port| port.parse().ok())
        .collect();
    if !ports.is_empty() {
        body.insert("ports".into(), json!(ports));
    }
    if path.subresource == "proxy" && !path.proxied.is_empty() {
        body.insert("path".into(), Value::String(path.proxied.clone()));
    }
    Some(Object {
        api_version: "v1".into(),
        kind: kind.into(),
        meta: ObjectMeta::default(),
        body,
    })
}
