//! What can be done at the paths of a resource.
//! In: a resource and references to its schemas. Out: paths with their operations, named as the real server names them.

use serde_json::{Map, Value, json};

use crate::registry::{Part, Resource};

/// The parameters of a query, by name and type.
type Parameters = &'static [(&'static str, &'static str)];

const LIST: Parameters = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITE: Parameters = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const PATCH: Parameters = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"), ("force", "boolean")];
const DELETE: Parameters =
    &[("dryRun", "string"), ("gracePeriodSeconds", "integer"), ("orphanDependents", "boolean"), ("propagationPolicy", "string")];
const DELETE_COLLECTION: Parameters = &[
    ("continue", "string"),
    ("dryRun", "string"),
    ("fieldSelector", "string"),
    ("gracePeriodSeconds", "integer"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
];

/// The schemas that operations refer to.
#[derive(Clone, Debug)]
pub(super) struct References {
    pub(super) object: Option<Value>,
    pub(super) list: Option<Value>,
    pub(super) status: Value,
    pub(super) delete_options: Value,
    pub(super) patch: Value,
}

/// The words that names of operations are made of.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// `apps_v1`.
    tag: String,
    /// `AppsV1`.
    version: String,
}

impl Names {
    pub(super) fn of(group: &str, version: &str) -> Self {
        let words: Vec<&str> = match group.strip_suffix(".k8s.io").unwrap_or(group) {
            "" => vec!["core"],
            group => group.split(['.', '-']).collect(),
        };
        let camel: String = words.iter().map(|w| title(w)).collect();
        let lower = words.first().copied().unwrap_or_default().to_owned() + &words[1..].iter().map(|w| title(w)).collect::<String>();
        Self { tag: format!("{lower}_{version}"), version: format!("{camel}{}", title(version)) }
    }

    /// The operation that lists what there is in a version.
    pub(super) fn resources(&self, list: Value) -> Value {
        let operation = Operation { id: format!("get{}APIResources", self.version), answer: Some(list), ..Operation::default() };
        json!({"get": operation.write(self)})
    }
}

fn title(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// One operation, before it is written.
#[derive(Debug, Default)]
struct Operation {
    id: String,
    action: &'static str,
    kind: Option<Value>,
    parameters: Parameters,
    body: Option<(Value, bool)>,
    patches: Option<Vec<&'static str>>,
    answer: Option<Value>,
    streams: bool,
}

impl Operation {
    fn write(self, names: &Names) -> Value {
        let media = |schema: Option<&Value>| schema.map_or_else(|| json!({}), |s| json!({"schema": s}));
        let content = |types: &[&str], schema: Option<&Value>| -> Value {
            types.iter().map(|t| ((*t).to_owned(), media(schema))).collect::<Map<_, _>>().into()
        };
        let types: &[&str] = if self.streams {
            &["application/json", "application/yaml", "application/json;stream=watch"]
        } else {
            &["application/json", "application/yaml"]
        };
        let mut operation = json!({
            "tags": [names.tag],
            "operationId": self.id,
            "responses": {
                "200": {"description": "OK", "content": content(types, self.answer.as_ref())},
                "401": {"description": "Unauthorized"},
            },
        });
        if !self.parameters.is_empty() {
            operation["parameters"] = self.parameters.iter().map(|(name, type_)| parameter("query", name, type_)).collect();
        }
        if let Some((schema, required)) = &self.body {
            let types = self.patches.as_deref().unwrap_or(&["*/*"]);
            operation["requestBody"] = json!({"content": content(types, Some(schema))});
            if *required {
                operation["requestBody"]["required"] = true.into();
            }
        }
        if let Some(kind) = self.kind {
            operation["x-kubernetes-action"] = self.action.into();
            operation["x-kubernetes-group-version-kind"] = kind;
        }
        operation
    }
}

fn parameter(place: &str, name: &str, type_: &str) -> Value {
    let mut parameter = json!({"name": name, "in": place, "schema": {"type": type_, "uniqueItems": true}});
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

/// Writes the paths of one resource.
pub(super) struct Paths<'a> {
    pub(super) prefix: &'a str,
    pub(super) names: &'a Names,
    pub(super) resource: &'a Resource,
    pub(super) references: &'a References,
}

impl Paths<'_> {
    /// Adds the collection, the objects, their parts and the paths of watches.
    pub(super) fn add(&self, part_schemas: &[Option<Value>], paths: &mut Map<String, Value>) {
        let Resource { plural, namespaced, .. } = self.resource;
        let (scoped, scope) = if *namespaced { ("namespaces/{namespace}/", &["namespace"][..]) } else { ("", &[][..]) };
        let collection = format!("{}/{scoped}{plural}", self.prefix);
        let named = [&["name"], scope].concat();
        let mut put = |path: String, parameters: &[&str], operations: Vec<(&str, Operation)>| {
            if operations.is_empty() {
                return;
            }
            let mut item: Map<String, Value> = operations.into_iter().map(|(m, o)| (m.to_owned(), o.write(self.names))).collect();
            let parameters = parameters.iter().map(|p| parameter("path", p, "string"));
            item.insert("parameters".into(), parameters.chain([parameter("query", "pretty", "string")]).collect());
            paths.insert(path, item.into());
        };
        put(collection.clone(), scope, self.collection());
        put(format!("{collection}/{{name}}"), &named, self.object());
        for (part, schema) in self.resource.parts.iter().zip(part_schemas) {
            put(format!("{collection}/{{name}}/{}", part.name), &named, self.part(part, schema.as_ref()));
        }
        if *namespaced && self.can("list") {
            put(format!("{}/{plural}", self.prefix), &[], vec![("get", self.list("ForAllNamespaces"))]);
        }
        if self.can("watch") {
            put(
                format!("{}/watch/{scoped}{plural}", self.prefix),
                scope,
                vec![("get", self.watch(&self.id("watch", "List"), "watchlist"))],
            );
            put(
                format!("{}/watch/{scoped}{plural}/{{name}}", self.prefix),
                &named,
                vec![("get", self.watch(&self.id("watch", ""), "watch"))],
            );
            if *namespaced {
                let id = format!("watch{}{}ListForAllNamespaces", self.names.version, self.resource.kind);
                put(format!("{}/watch/{plural}", self.prefix), &[], vec![("get", self.watch(&id, "watchlist"))]);
            }
        }
    }

    fn can(&self, verb: &str) -> bool {
        self.resource.verbs.contains(&verb)
    }

    /// `createAppsV1NamespacedDeployment`.
    fn id(&self, verb: &str, suffix: &str) -> String {
        let namespaced = if self.resource.namespaced { "Namespaced" } else { "" };
        let (verb, collection) = verb.split_once(' ').unwrap_or((verb, ""));
        format!("{verb}{}{collection}{namespaced}{}{suffix}", self.names.version, self.resource.kind)
    }

    fn kind(&self) -> Option<Value> {
        let Resource { group, version, kind, .. } = self.resource;
        Some(json!({"group": group, "version": version, "kind": kind}))
    }

    fn list(&self, suffix: &str) -> Operation {
        let id = if suffix.is_empty() { self.id("list", "") } else { format!("list{}{}{suffix}", self.names.version, self.resource.kind) };
        Operation {
            id,
            action: "list",
            kind: self.kind(),
            parameters: LIST,
            answer: self.references.list.clone(),
            streams: true,
            ..Operation::default()
        }
    }

    fn watch(&self, id: &str, action: &'static str) -> Operation {
        Operation { id: id.to_owned(), action, kind: self.kind(), parameters: LIST, streams: true, ..Operation::default() }
    }

    fn collection(&self) -> Vec<(&'static str, Operation)> {
        let object = self.references.object.clone();
        let create = Operation {
            id: self.id("create", ""),
            action: "post",
            kind: self.kind(),
            parameters: WRITE,
            body: object.clone().map(|o| (o, true)),
            answer: object,
            ..Operation::default()
        };
        let delete = Operation {
            id: self.id("delete Collection", ""),
            action: "deletecollection",
            kind: self.kind(),
            parameters: DELETE_COLLECTION,
            body: Some((self.references.delete_options.clone(), false)),
            answer: Some(self.references.status.clone()),
            ..Operation::default()
        };
        let all = [("list", "get", self.list("")), ("create", "post", create), ("deletecollection", "delete", delete)];
        all.into_iter().filter(|(verb, _, _)| self.can(verb)).map(|(_, method, operation)| (method, operation)).collect()
    }

    fn object(&self) -> Vec<(&'static str, Operation)> {
        let delete = Operation {
            id: self.id("delete", ""),
            action: "delete",
            kind: self.kind(),
            parameters: DELETE,
            body: Some((self.references.delete_options.clone(), false)),
            answer: Some(self.references.status.clone()),
            ..Operation::default()
        };
        let mut all = self.reads_and_writes(self.resource.verbs, "", self.kind(), self.references.object.as_ref());
        all.retain(|(method, _)| *method != "post");
        if self.can("delete") {
            all.push(("delete", delete));
        }
        all
    }

    fn part(&self, part: &Part, schema: Option<&Value>) -> Vec<(&'static str, Operation)> {
        let Resource { group, version, .. } = self.resource;
        let (group, version) = if part.version.is_empty() { (group.as_str(), version.as_str()) } else { (part.group, part.version) };
        let kind = json!({"group": group, "version": version, "kind": part.kind});
        self.reads_and_writes(part.verbs, &title(part.name), Some(kind), schema)
    }

    /// What can be done with an object or a part of it, by the verbs there are.
    fn reads_and_writes(
        &self,
        verbs: &[&str],
        suffix: &str,
        kind: Option<Value>,
        schema: Option<&Value>,
    ) -> Vec<(&'static str, Operation)> {
        let operation = |word: &str, action, parameters| Operation {
            id: self.id(word, suffix),
            action,
            kind: kind.clone(),
            parameters,
            answer: schema.cloned(),
            ..Operation::default()
        };
        let body = || schema.map(|s| (s.clone(), true));
        let mut patches = vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
        if !self.resource.items_name_kind() {
            patches.push("application/strategic-merge-patch+json");
        }
        let all = [
            ("get", "get", operation("read", "get", &[])),
            ("create", "post", Operation { body: body(), ..operation("create", "post", WRITE) }),
            ("update", "put", Operation { body: body(), ..operation("replace", "put", WRITE) }),
            (
                "patch",
                "patch",
                Operation {
                    body: Some((self.references.patch.clone(), true)),
                    patches: Some(patches),
                    ..operation("patch", "patch", PATCH)
                },
            ),
        ];
        all.into_iter().filter(|(verb, _, _)| verbs.contains(verb)).map(|(_, method, operation)| (method, operation)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_in_one_word() {
        for (group, version, tag, camel) in [
            ("", "v1", "core_v1", "CoreV1"),
            ("apps", "v1", "apps_v1", "AppsV1"),
            ("rbac.authorization.k8s.io", "v1", "rbacAuthorization_v1", "RbacAuthorizationV1"),
            ("stable.example.com", "v1beta1", "stableExampleCom_v1beta1", "StableExampleComV1beta1"),
        ] {
            let names = Names::of(group, version);
            assert_eq!((names.tag.as_str(), names.version.as_str()), (tag, camel));
        }
    }
}
