//! The parameters of requests: in the path and in the query. Out: each in the form of either
//! document; in version 2 those that all kinds share are written once, under a name made of their
//! content.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::form::Form;

/// The field `in` of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParameterLocation {
    Path,
    Query,
}

/// One parameter of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    location: ParameterLocation,
    type_: &'static str,
    about: String,
    /// Whether requests for other kinds take the very same one.
    shared: bool,
}

/// A row of the table below: name, type, meaning.
type Row = (&'static str, &'static str, &'static str);

/// The query parameters of all requests. Each name has one meaning.
const QUERY: &[Row] = &[
    (
        "allowWatchBookmarks",
        "boolean",
        "let a watch also send BOOKMARK events, which carry only the version it has come to",
    ),
    (
        "command",
        "string",
        "the command to run, once for each word; no shell reads it",
    ),
    (
        "container",
        "string",
        "the container that is meant; may be left out where there is only one",
    ),
    (
        "continue",
        "string",
        "the token of the last page: go on behind it",
    ),
    (
        "dryRun",
        "string",
        "`All`: do everything but keep the outcome",
    ),
    (
        "fieldManager",
        "string",
        "the name under which changed fields are owned; without it the user agent's",
    ),
    (
        "fieldSelector",
        "string",
        "only objects with these fields, such as `metadata.name=a`",
    ),
    (
        "fieldValidation",
        "string",
        "what to do with unknown and duplicate fields: `Ignore`, `Warn` (the default) or `Strict`",
    ),
    (
        "follow",
        "boolean",
        "go on sending what is written to the log",
    ),
    (
        "force",
        "boolean",
        "let an apply take fields from others; no other patch has it",
    ),
    (
        "gracePeriodSeconds",
        "integer",
        "how long the object may take to end; 0 deletes it immediately",
    ),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "delete an object even if it can no longer be read",
    ),
    (
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "do not check the certificate of the node that has the log",
    ),
    (
        "labelSelector",
        "string",
        "only objects with these labels, such as `app=a,!old`",
    ),
    ("limit", "integer", "how many objects a page may have"),
    (
        "limitBytes",
        "integer",
        "how many bytes of the log to send at most",
    ),
    (
        "orphanDependents",
        "boolean",
        "whether dependents are orphaned; deprecated, use `propagationPolicy`",
    ),
    ("path", "string", "the path of the proxied request"),
    ("ports", "integer", "the ports to forward to"),
    (
        "pretty",
        "string",
        "`true`: indent JSON; the default for browsers, curl and wget",
    ),
    (
        "previous",
        "boolean",
        "the log of the container that ran before",
    ),
    (
        "propagationPolicy",
        "string",
        "what happens to what the object owns: `Orphan`, `Background` or `Foreground`",
    ),
    (
        "resourceVersion",
        "string",
        "the version to read at or to watch from",
    ),
    (
        "resourceVersionMatch",
        "string",
        "how `resourceVersion` is meant: `Exact` or `NotOlderThan`",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "let a watch begin with what there is, and say with a bookmark when that was all",
    ),
    (
        "shardSelector",
        "string",
        "only objects of these shards; without effect unless the server has sharded lists",
    ),
    (
        "sinceSeconds",
        "integer",
        "only what was logged in the last N seconds",
    ),
    (
        "stderr",
        "boolean",
        "send the standard error of the container",
    ),
    (
        "stdin",
        "boolean",
        "pass on the standard input of the request",
    ),
    (
        "stdout",
        "boolean",
        "send the standard output of the container",
    ),
    (
        "stream",
        "string",
        "which output of the container: `All`, `Stdout` or `Stderr`",
    ),
    ("tailLines", "integer", "only the last N lines of the log"),
    (
        "timeoutSeconds",
        "integer",
        "how long the request may take, watching or not",
    ),
    (
        "timestamps",
        "boolean",
        "put the time in front of every line",
    ),
    ("tty", "boolean", "give the command a terminal"),
    (
        "watch",
        "boolean",
        "go on with the changes to what is listed",
    ),
];

/// Old clients look for these at the operations themselves, to know whether a kind has them.
const LOOKED_FOR: &[&str] = &["dryRun", "fieldValidation"];

pub(super) const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
    "watch",
];
pub(super) const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
pub(super) const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
pub(super) const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];
pub(super) const DELETE_COLLECTION: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
];
const LOG: &[&str] = &[
    "container",
    "follow",
    "insecureSkipTLSVerifyBackend",
    "limitBytes",
    "previous",
    "sinceSeconds",
    "stream",
    "tailLines",
    "timestamps",
];

/// The query parameters of a connect subresource, by its kind.
pub(super) fn of_connection(kind: &str) -> &'static [&'static str] {
    match kind {
        "PodAttachOptions" => &["container", "stderr", "stdin", "stdout", "tty"],
        "PodExecOptions" => &["command", "container", "stderr", "stdin", "stdout", "tty"],
        "PodPortForwardOptions" => &["ports"],
        "Pod" => LOG,
        _ => &["path"],
    }
}

impl Parameter {
    /// Parameters of a query, by their names.
    pub(super) fn in_query(names: &[&str]) -> Vec<Self> {
        names.iter().map(|name| Self::query(name)).collect()
    }

    fn query(name: &str) -> Self {
        let at = QUERY
            .binary_search_by_key(&name, |(name, ..)| name)
            .expect("the table has every parameter that is used");
        let (name, type_, about) = QUERY[at];
        Self {
            name,
            location: ParameterLocation::Query,
            type_,
            about: about.to_owned(),
            shared: !LOOKED_FOR.contains(&name),
        }
    }

    /// The name of an object of a kind, in the path.
    pub(super) fn name_of(kind: &str) -> Self {
        Self {
            name: "name",
            location: ParameterLocation::Path,
            type_: "string",
            about: format!("name of the {kind}"),
            shared: false,
        }
    }

    /// The namespace, in the path.
    pub(super) fn namespace() -> Self {
        Self {
            name: "namespace",
            location: ParameterLocation::Path,
            type_: "string",
            about: "the namespace of the object".to_owned(),
            shared: true,
        }
    }

    /// The rest of the path behind a proxy.
    pub(super) fn rest() -> Self {
        Self {
            name: "path",
            location: ParameterLocation::Path,
            type_: "string",
            about: "the path of the proxied request".to_owned(),
            shared: true,
        }
    }

    /// The sort key of the parameters of a request.
    pub(super) fn order(&self) -> (&'static str, bool) {
        (self.name, self.location == ParameterLocation::Query)
    }

    /// The parameter of a path or an operation.
    pub(super) fn write(&self, form: Form) -> Value {
        match form {
            Form::V2 if self.shared => refer(&self.shared_name()),
            Form::V2 => self.definition(),
            Form::V3 => {
                let schema = json!({"type": self.type_, "uniqueItems": true});
                self.with_place(json!({"schema": schema}))
            }
        }
    }

    /// As version 2 defines it.
    fn definition(&self) -> Value {
        self.with_place(json!({"type": self.type_, "uniqueItems": true}))
    }

    fn with_place(&self, mut parameter: Value) -> Value {
        parameter["name"] = self.name.into();
        parameter["description"] = self.about.as_str().into();
        parameter["in"] = match self.location {
            ParameterLocation::Path => "path",
            ParameterLocation::Query => "query",
        }
        .into();
        if self.location == ParameterLocation::Path {
            parameter["required"] = true.into();
        }
        parameter
    }

    fn shared_name(&self) -> String {
        shared_name(self.name, &self.definition())
    }
}

/// The body of a request in version 2, where it is a parameter like others.
pub(super) fn body(schema: &Value, required: bool) -> Value {
    let mut body = json!({"name": "body", "in": "body", "schema": schema});
    if required {
        body["required"] = true.into();
    }
    body
}

/// The parameters that version 2 defines once for all kinds.
pub(super) fn shared() -> BTreeMap<String, Value> {
    let query = QUERY.iter().map(|(name, ..)| Parameter::query(name));
    let all = query
        .chain([Parameter::namespace(), Parameter::rest()])
        .filter(|parameter| parameter.shared);
    all.map(|p| (p.shared_name(), p.definition())).collect()
}

fn refer(name: &str) -> Value {
    json!({"$ref": format!("#/parameters/{name}")})
}

/// `limit-1NfNmdNH`: the name, and the beginning of a digest of the rest.
fn shared_name(name: &str, definition: &Value) -> String {
    let digest = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(definition.to_string()));
    format!("{name}-{}", &digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_use_has_a_row() {
        assert!(QUERY.is_sorted_by_key(|(name, ..)| *name));
        let connections = [
            "PodAttachOptions",
            "PodExecOptions",
            "PodPortForwardOptions",
            "Pod",
            "NodeProxyOptions",
        ]
        .map(of_connection);
        for names in [LIST, WRITE, PATCH, DELETE, DELETE_COLLECTION]
            .iter()
            .chain(&connections)
        {
            assert_eq!(Parameter::in_query(names).len(), names.len());
        }
    }

    #[test]
    fn shared_parameters_are_found_under_their_names() {
        let shared = shared();
        let limit = Parameter::query("limit");
        let reference = limit.write(Form::V2);
        let name = reference["$ref"]
            .as_str()
            .and_then(|r| r.strip_prefix("#/parameters/"))
            .expect("a reference");
        assert!(
            name.starts_with("limit-") && shared[name] == limit.definition(),
            "{name}"
        );
        assert_eq!(
            limit.write(Form::V3)["schema"],
            json!({"type": "integer", "uniqueItems": true})
        );
        assert_eq!(Parameter::name_of("Pod").write(Form::V2)["required"], true);
        assert_eq!(
            Parameter::query("dryRun").write(Form::V2)["name"],
            "dryRun",
            "kubectl 1.20 looks for it by name"
        );
    }
}
