//! OpenAPI v2 documents of other servers.
//!
//! In: the whole document of a server. Out: the paths of one version, and the definitions that they
//! refer to. Mirrors `FilterSpecByPathsWithoutSideEffects` of kube-openapi.

use serde_json::{Map, Value};

use crate::registry::RemoteSwagger;

/// Where definitions and shared parameters are in a document.
const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";

/// The paths at and below a root with their definitions; `None` if there are none.
pub(super) fn filtered(mut document: Value, root: &str) -> Option<RemoteSwagger> {
    let mut take = |name: &str| match document.get_mut(name).map(Value::take) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let mut paths = take("paths");
    let mut known = take("definitions");
    let parameters = take("parameters");
    paths.retain(|path, _| {
        let rest = path.strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    // This server may have other parameters of these names.
    paths
        .values_mut()
        .for_each(|path| inline_parameters(path, &parameters));
    let mut definitions = Map::new();
    let mut referred: Vec<String> = paths.values().flat_map(references).collect();
    while let Some(name) = referred.pop() {
        if let Some(definition) = known.remove(&name) {
            referred.extend(references(&definition));
            definitions.insert(name, definition);
        }
    }
    (!paths.is_empty()).then_some(RemoteSwagger { paths, definitions })
}

/// Replaces references to parameters, of a path and of its operations.
fn inline_parameters(path: &mut Value, parameters: &Map<String, Value>) {
    let Value::Object(path) = path else { return };
    for (name, value) in path {
        let list = if name == "parameters" {
            Some(value)
        } else {
            value.get_mut("parameters")
        };
        for parameter in list.and_then(Value::as_array_mut).into_iter().flatten() {
            let reference = parameter.get("$ref").and_then(Value::as_str);
            let name = reference.and_then(|it| it.strip_prefix(PARAMETERS));
            if let Some(found) = name.and_then(|name| parameters.get(name)) {
                *parameter = found.clone();
            }
        }
    }
}

/// The names of the definitions that a value refers to.
fn references(value: &Value) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(map) => {
                let reference = map.get("$ref").and_then(Value::as_str);
                let name = reference.and_then(|it| it.strip_prefix(DEFINITIONS));
                names.extend(name.map(str::to_owned));
                rest.extend(map.values());
            }
            Value::Array(items) => rest.extend(items),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_a_version_bring_their_definitions() {
        let refer = |name: &str| json!({"$ref": format!("#/definitions/{name}")});
        let document = json!({
            "swagger": "2.0",
            "paths": {
                "/apis/x.io/v1/": {"get": {"parameters": [{"$ref": "#/parameters/limit"}]}},
                "/apis/x.io/v1/things": {"get": {"responses": {"200": {"schema": refer("List")}}}},
                "/apis/x.io/v1beta1/things": {"get": {"responses": {"200": {"schema": refer("Old")}}}},
                "/version": {},
            },
            "parameters": {"limit": {"name": "limit", "in": "query"}},
            "definitions": {
                "List": {"properties": {"items": {"type": "array", "items": refer("Thing")}}},
                "Thing": {"properties": {"child": refer("Thing")}},
                "Old": {}, "Unused": {},
            },
        });
        let filtered = filtered(document.clone(), "/apis/x.io/v1").expect("two paths");
        let paths: Vec<_> = filtered.paths.keys().collect();
        assert_eq!(paths, ["/apis/x.io/v1/", "/apis/x.io/v1/things"]);
        let parameter = &filtered.paths["/apis/x.io/v1/"]["get"]["parameters"][0];
        assert_eq!(parameter["name"], "limit");
        let definitions: Vec<_> = filtered.definitions.keys().collect();
        assert_eq!(definitions, ["List", "Thing"]);
        assert_eq!(super::filtered(document, "/apis/y.io/v1"), None);
    }
}
