//! The paths of a resource and their operations.
//! In: a resource and references to its schemas. Out: paths with their operations, named as
//! kube-apiserver names them.

use bellerophon_resources::kinds::DeleteAnswer;
use serde_json::{Value, json};

use super::{
    entries::Entries,
    form::Form,
    operation::{
        ANY_SUCCESS, Body, Media, OK, OK_OR_ACCEPTED, OK_OR_CREATED, Operation, path_item,
    },
    parameters::{self, Parameter},
};
use crate::registry::{Resource, Subresource};

pub(super) const OBJECTS: Media = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
const STREAMS: Media = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const CUSTOM_OBJECTS: Media = &["application/json", "application/yaml"];
const LOG: Media = &[
    "text/plain",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
const ANY: Media = &["*/*"];
const PATCHES: Media = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM_PATCHES: Media = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];

/// The methods of subresources that connect to a container, and of those that proxy any request.
const STREAM_METHODS: &[&str] = &["get", "post"];
const PROXY_METHODS: &[&str] = &["delete", "get", "head", "options", "patch", "post", "put"];

/// The schemas that operations refer to; those that none of a resource's operations needs are
/// empty.
#[derive(Clone, Debug)]
pub(super) struct References {
    pub(super) object: Value,
    pub(super) list: Value,
    /// Of each subresource, in the order of the resource; `None` for subresources without an
    /// object.
    pub(super) subresources: Vec<Option<Value>>,
    pub(super) status: Value,
    pub(super) delete_options: Value,
    pub(super) patch: Value,
    pub(super) watch_event: Value,
}

/// The name components of operations.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// `apps_v1`.
    pub(super) tag: String,
    /// `AppsV1`.
    pub(super) prefix: String,
}

impl Names {
    pub(super) fn of(group: &str, version: &str) -> Self {
        let words: Vec<&str> = match group.strip_suffix(".k8s.io").unwrap_or(group) {
            "" => vec!["core"],
            group => group.split(['.', '-']).collect(),
        };
        let prefix: String = words.iter().map(|word| title(word)).collect();
        let first = words.first().copied().unwrap_or_default();
        let tag = first.to_owned() + &prefix[first.len()..];
        match version {
            "" => Self { tag, prefix },
            version => Self {
                tag: format!("{tag}_{version}"),
                prefix: format!("{prefix}{}", title(version)),
            },
        }
    }
}

fn title(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_ascii_uppercase())
        .into_iter()
        .chain(letters)
        .collect()
}

/// Writes the paths of one resource.
pub(super) struct Paths<'a> {
    pub(super) form: Form,
    pub(super) names: &'a Names,
    pub(super) resource: &'a Resource,
    pub(super) references: &'a References,
}

type Operations = Vec<(&'static str, Operation)>;

impl Paths<'_> {
    /// Adds the collection, the objects, their subresources and the paths of watches.
    pub(super) fn add(&self, paths: &mut Entries) {
        let Resource {
            plural, namespaced, ..
        } = self.resource;
        let root = self.root();
        let scope = if *namespaced {
            "namespaces/{namespace}/"
        } else {
            ""
        };
        let collection = format!("{root}/{scope}{plural}");
        self.put(paths, collection.clone(), self.collection());
        self.put(paths, format!("{collection}/{{name}}"), self.object());
        for (subresource, schema) in self
            .resource
            .subresources
            .iter()
            .zip(&self.references.subresources)
        {
            let path = format!("{collection}/{{name}}/{}", subresource.name);
            match schema {
                Some(schema) => self.put(paths, path, self.subresource(subresource, schema)),
                None if subresource.name == "log" => {
                    self.put(paths, path, vec![("get", self.log(subresource))])
                }
                None if subresource.name == "proxy" => {
                    self.put(
                        paths,
                        path.clone(),
                        self.connection(subresource, PROXY_METHODS, &[]),
                    );
                    self.put(
                        paths,
                        format!("{path}/{{path}}"),
                        self.connection(subresource, PROXY_METHODS, &[Parameter::rest()]),
                    );
                }
                None => self.put(
                    paths,
                    path,
                    self.connection(subresource, STREAM_METHODS, &[]),
                ),
            }
        }
        if *namespaced && self.can("list") {
            self.put(
                paths,
                format!("{root}/{plural}"),
                vec![("get", self.list(Reach::Everywhere))],
            );
        }
        if self.can("watch") && !self.is_custom() {
            let one = self.id("watch", "");
            let all = self.id("watch", "List");
            self.put(
                paths,
                format!("{root}/watch/{scope}{plural}"),
                vec![("get", self.watch(all, "watchlist", self.scope()))],
            );
            self.put(
                paths,
                format!("{root}/watch/{scope}{plural}/{{name}}"),
                vec![("get", self.watch(one, "watch", self.named()))],
            );
            if *namespaced {
                let id = format!(
                    "watch{}{}ListForAllNamespaces",
                    self.names.prefix, self.resource.kind
                );
                self.put(
                    paths,
                    format!("{root}/watch/{plural}"),
                    vec![("get", self.watch(id, "watchlist", Vec::new()))],
                );
            }
        }
    }

    fn root(&self) -> String {
        match self.resource.group.as_str() {
            "" => format!("/api/{}", self.resource.version),
            group => format!("/apis/{group}/{}", self.resource.version),
        }
    }

    fn put(&self, paths: &mut Entries, path: String, operations: Operations) {
        if !operations.is_empty() {
            paths.add(&path, &path_item(self.form, &self.names.tag, operations));
        }
    }

    fn can(&self, verb: &str) -> bool {
        self.resource.verbs.contains(&verb)
    }

    fn is_custom(&self) -> bool {
        self.resource.is_custom()
    }

    /// `createAppsV1NamespacedDeployment`.
    fn id(&self, verb: &str, suffix: &str) -> String {
        let namespaced = if self.resource.namespaced {
            "Namespaced"
        } else {
            ""
        };
        let (verb, what) = verb.split_once(' ').unwrap_or((verb, ""));
        format!(
            "{verb}{}{what}{namespaced}{}{suffix}",
            self.names.prefix, self.resource.kind
        )
    }

    /// An action on objects of the resource's own kind.
    fn on_kind(&self, action: &'static str) -> Option<(&'static str, Value)> {
        let Resource {
            group,
            version,
            kind,
            ..
        } = self.resource;
        Some((action, kind_of(group, version, kind)))
    }

    fn scope(&self) -> Vec<Parameter> {
        if self.resource.namespaced {
            vec![Parameter::namespace()]
        } else {
            Vec::new()
        }
    }

    fn named(&self) -> Vec<Parameter> {
        self.named_as(&self.resource.kind)
    }

    fn named_as(&self, kind: &str) -> Vec<Parameter> {
        [vec![Parameter::name_of(kind)], self.scope()].concat()
    }

    /// An operation of the resource, without its request and response bodies.
    fn operation(
        &self,
        id: String,
        about: String,
        place: Vec<Parameter>,
        query: &[&str],
        answer: Value,
    ) -> Operation {
        let consumes = if self.is_custom() {
            CUSTOM_OBJECTS
        } else {
            ANY
        };
        let produces = if self.is_custom() {
            CUSTOM_OBJECTS
        } else {
            OBJECTS
        };
        let parameters = [
            Parameter::in_query(query),
            place,
            Parameter::in_query(&["pretty"]),
        ]
        .concat();
        Operation {
            parameters,
            consumes,
            produces,
            ..Operation::new(id, about, answer)
        }
    }

    fn list(&self, reach: Reach) -> Operation {
        let Resource { kind, plural, .. } = self.resource;
        let (id, about, place) = match reach {
            Reach::Here => (
                self.id("list", ""),
                format!("list or watch {plural}"),
                self.scope(),
            ),
            Reach::Everywhere => {
                let id = format!("list{}{kind}ForAllNamespaces", self.names.prefix);
                (
                    id,
                    format!("list or watch {plural} of all namespaces"),
                    Vec::new(),
                )
            }
        };
        let operation = self.operation(
            id,
            about,
            place,
            parameters::LIST,
            self.references.list.clone(),
        );
        let produces = if self.is_custom() {
            CUSTOM_OBJECTS
        } else {
            STREAMS
        };
        Operation {
            action: self.on_kind("list"),
            produces,
            ..operation
        }
    }

    fn watch(&self, id: String, action: &'static str, place: Vec<Parameter>) -> Operation {
        let about = format!(
            "watch {} by an address of its own; `watch=true` on the list does the same",
            self.resource.plural
        );
        let operation = self.operation(
            id,
            about,
            place,
            parameters::LIST,
            self.references.watch_event.clone(),
        );
        Operation {
            action: self.on_kind(action),
            produces: STREAMS,
            ..operation
        }
    }

    fn collection(&self) -> Operations {
        let Resource { kind, plural, .. } = self.resource;
        let References { object, status, .. } = self.references;
        let create = self.operation(
            self.id("create", ""),
            format!("create a {kind}"),
            self.scope(),
            parameters::WRITE,
            object.clone(),
        );
        let create = Operation {
            action: self.on_kind("post"),
            body: Some(Body::of(object)),
            codes: ANY_SUCCESS,
            ..create
        };
        let query = if self.is_custom() {
            parameters::LIST
        } else {
            parameters::DELETE_COLLECTION
        };
        let delete = self.operation(
            self.id("delete Collection", ""),
            format!("delete {plural}"),
            self.scope(),
            query,
            status.clone(),
        );
        let body = (!self.is_custom()).then(|| self.delete_options());
        let delete = Operation {
            action: self.on_kind("deletecollection"),
            body,
            ..delete
        };
        let all = [
            ("list", "get", self.list(Reach::Here)),
            ("create", "post", create),
            ("deletecollection", "delete", delete),
        ];
        self.served(self.resource.verbs, all)
    }

    fn object(&self) -> Operations {
        let Resource {
            kind,
            verbs,
            strategy,
            ..
        } = self.resource;
        let References { object, status, .. } = self.references;
        let answer = if strategy.delete_answer == DeleteAnswer::Object {
            object
        } else {
            status
        };
        let delete = self.operation(
            self.id("delete", ""),
            format!("delete a {kind}"),
            self.named(),
            parameters::DELETE,
            answer.clone(),
        );
        let delete = Operation {
            action: self.on_kind("delete"),
            body: Some(self.delete_options()),
            codes: OK_OR_ACCEPTED,
            ..delete
        };
        let target = Target {
            suffix: String::new(),
            about: kind.clone(),
            kind: self.on_kind("").map(|(_, kind)| kind),
            named: self.named(),
        };
        let mut operations = self.reads_and_writes(verbs, &target, object);
        operations.retain(|(method, _)| *method != "post");
        if self.can("delete") {
            operations.push(("delete", delete));
        }
        operations
    }

    fn subresource(&self, subresource: &Subresource, schema: &Value) -> Operations {
        // kube-apiserver names the resource itself at subresources of custom resources.
        let kind = if self.is_custom() {
            self.on_kind("").map(|(_, kind)| kind)
        } else {
            Some(self.kind_of_subresource(subresource))
        };
        let named = if self.is_custom() {
            self.named()
        } else {
            self.named_as(&subresource.kind)
        };
        let target = Target {
            suffix: title(subresource.name),
            about: format!("{} of a {}", subresource.name, self.resource.kind),
            kind,
            named,
        };
        self.reads_and_writes(subresource.verbs, &target, schema)
    }

    fn kind_of_subresource(&self, subresource: &Subresource) -> Value {
        let Resource { group, version, .. } = self.resource;
        let (group, version) = if subresource.version.is_empty() {
            (group.as_str(), version.as_str())
        } else {
            (subresource.group, subresource.version)
        };
        kind_of(group, version, &subresource.kind)
    }

    /// The operations of an object or a subresource, by its verbs.
    fn reads_and_writes(&self, verbs: &[&str], target: &Target, schema: &Value) -> Operations {
        let operation = |word: &str, action, query: &[&str]| Operation {
            action: target.kind.clone().map(|kind| (action, kind)),
            ..self.operation(
                self.id(word, &target.suffix),
                format!("{word} a {}", target.about),
                target.named.clone(),
                query,
                schema.clone(),
            )
        };
        let body = || Some(Body::of(schema));
        let patch = Operation {
            body: Some(Body::of(&self.references.patch)),
            consumes: if self.is_custom() {
                CUSTOM_PATCHES
            } else {
                PATCHES
            },
            codes: if self.is_custom() { OK } else { OK_OR_CREATED },
            ..operation("patch", "patch", parameters::PATCH)
        };
        let read: &[&str] = if self.is_custom() {
            &["resourceVersion"]
        } else {
            &[]
        };
        let all = [
            ("get", "get", operation("read", "get", read)),
            (
                "create",
                "post",
                Operation {
                    body: body(),
                    codes: ANY_SUCCESS,
                    ..operation("create", "post", parameters::WRITE)
                },
            ),
            (
                "update",
                "put",
                Operation {
                    body: body(),
                    codes: OK_OR_CREATED,
                    ..operation("replace", "put", parameters::WRITE)
                },
            ),
            ("patch", "patch", patch),
        ];
        self.served(verbs, all)
    }

    fn served<const N: usize>(
        &self,
        verbs: &[&str],
        all: [(&str, &'static str, Operation); N],
    ) -> Operations {
        all.into_iter()
            .filter(|(verb, ..)| verbs.contains(verb))
            .map(|(_, method, operation)| (method, operation))
            .collect()
    }

    /// The log of a container is text.
    fn log(&self, subresource: &Subresource) -> Operation {
        let about = format!("read the log of a {}", self.resource.kind);
        let query = parameters::of_connection(&subresource.kind);
        let operation = self.operation(
            self.id("read", &title(subresource.name)),
            about,
            self.named(),
            query,
            text(),
        );
        Operation {
            action: Some(("get", self.kind_of_subresource(subresource))),
            produces: LOG,
            ..operation
        }
    }

    /// A subresource that connects to a container or a port.
    fn connection(
        &self,
        subresource: &Subresource,
        methods: &[&'static str],
        rest: &[Parameter],
    ) -> Operations {
        let suffix = if rest.is_empty() {
            title(subresource.name)
        } else {
            format!("{}WithPath", title(subresource.name))
        };
        let query = Parameter::in_query(parameters::of_connection(&subresource.kind));
        let parameters = [self.named_as(&subresource.kind), rest.to_vec(), query].concat();
        let operation = |method: &&'static str| {
            let id = self.id(&format!("connect {}", title(method)), &suffix);
            let about = format!(
                "pass {} requests on to the {} of a {}",
                method.to_ascii_uppercase(),
                subresource.name,
                self.resource.kind
            );
            let action = Some(("connect", self.kind_of_subresource(subresource)));
            let parameters = parameters.clone();
            (
                *method,
                Operation {
                    action,
                    parameters,
                    consumes: ANY,
                    produces: ANY,
                    ..Operation::new(id, about, text())
                },
            )
        };
        methods.iter().map(operation).collect()
    }

    fn delete_options(&self) -> Body {
        Body {
            schema: self.references.delete_options.clone(),
            required: false,
        }
    }
}

/// Where objects are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Here,
    Everywhere,
}

/// An object or a subresource.
struct Target {
    suffix: String,
    about: String,
    kind: Option<Value>,
    named: Vec<Parameter>,
}

impl Body {
    fn of(schema: &Value) -> Self {
        Self {
            schema: schema.clone(),
            required: true,
        }
    }
}

pub(super) fn kind_of(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_by_one_identifier() {
        for (group, version, tag, prefix) in [
            ("", "v1", "core_v1", "CoreV1"),
            ("apps", "v1", "apps_v1", "AppsV1"),
            ("apps", "", "apps", "Apps"),
            (
                "rbac.authorization.k8s.io",
                "v1",
                "rbacAuthorization_v1",
                "RbacAuthorizationV1",
            ),
            (
                "stable.example.com",
                "v1beta1",
                "stableExampleCom_v1beta1",
                "StableExampleComV1beta1",
            ),
        ] {
            let names = Names::of(group, version);
            assert_eq!(names.tag.as_str(), tag);
            assert_eq!(names.prefix.as_str(), prefix);
        }
    }
}
