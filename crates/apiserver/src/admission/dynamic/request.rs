//! A request as webhooks and policies see it.
//! In: the attributes of a request and its objects. Out: targets of rules, objects in other
//! versions, and `request` of reviews and expressions.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::{Map, Value, json};

use super::Target;
use crate::{
    admission::Attributes, admission_config::RuleTarget, api::Api, conversion, registry::Resource,
};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;
use bellerophon_storage::ObjectKey;

/// The operation of a request on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }

    /// The kind of its options; none for connections.
    fn options_kind(self) -> Option<&'static str> {
        match self {
            Self::Create => Some("CreateOptions"),
            Self::Update => Some("UpdateOptions"),
            Self::Delete => Some("DeleteOptions"),
            Self::Connect => None,
        }
    }
}

/// A request.
pub(super) struct Request<'a> {
    pub(super) api: &'a Api,
    pub(super) attributes: &'a Attributes<'a>,
    target: Target<'a>,
    /// Version and kind of the object that the request has.
    api_version: String,
    kind: String,
    /// Other versions of the resource, found on first use.
    equivalents: OnceLock<Vec<Arc<Resource>>>,
    /// Objects that a conversion webhook has converted.
    converted: Mutex<Vec<Converted>>,
}

/// An object of the request in another version.
struct Converted {
    at: usize,
    object: Object,
    versioned: Object,
}

/// Objects in other versions that are kept: old and new ones, before and after a mutation.
const CONVERTED_MAX: usize = 8;

impl<'a> Request<'a> {
    pub(super) fn new(
        api: &'a Api,
        attributes: &'a Attributes<'a>,
        target: Target<'a>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Self {
        let resource = attributes.resource;
        let of_subresource = object.or(old).filter(|object| object.kind != resource.kind);
        let (api_version, kind) = match of_subresource {
            Some(object) => (object.api_version.clone(), object.kind.clone()),
            None => (resource.api_version(), resource.kind.clone()),
        };
        Self {
            api,
            attributes,
            target,
            api_version,
            kind,
            equivalents: OnceLock::new(),
            converted: Mutex::default(),
        }
    }

    pub(super) fn operation(&self) -> Operation {
        self.target.operation
    }

    /// The namespace of the request; a namespace is in itself.
    pub(super) fn namespace_name<'s>(&'s self, object: Option<&'s Object>) -> &'s str {
        match object {
            Some(object) if self.is_namespace() && self.attributes.name.is_empty() => {
                &object.meta.name
            }
            _ if self.is_namespace() => self.attributes.name,
            _ => self.attributes.namespace,
        }
    }

    /// The name of the object; empty if it is still to be generated.
    pub(super) fn name<'o>(&'o self, object: Option<&'o Object>) -> &'o str {
        match (self.attributes.name, object) {
            ("", Some(object)) if self.target.operation == Operation::Create => &object.meta.name,
            (name, _) => name,
        }
    }

    fn is_namespace(&self) -> bool {
        let resource = self.attributes.resource;
        resource.group.is_empty() && resource.plural == "namespaces"
    }

    /// The resource of the request, then the same resource in other versions.
    pub(super) fn resources(&self) -> impl Iterator<Item = &Resource> {
        let own = self.attributes.resource;
        std::iter::once(own).chain(self.equivalents().iter().map(Arc::as_ref))
    }

    fn equivalents(&self) -> &[Arc<Resource>] {
        self.equivalents.get_or_init(|| {
            let own = self.attributes.resource;
            let catalog = self.api.registry.catalog();
            let others = catalog.resources().filter(|resource| {
                resource.collection == own.collection
                    && (resource.version != own.version || resource.group != own.group)
            });
            others.cloned().collect()
        })
    }

    /// The targets that rules match, for the resource in each of its versions.
    pub(super) fn rule_targets<'s>(&'s self, object: Option<&'s Object>) -> Vec<RuleTarget<'s>>
    where
        'a: 's,
    {
        let namespace = self.namespace_name(object);
        self.resources()
            .map(|resource| RuleTarget {
                operation: self.target.operation.name(),
                group: &resource.group,
                version: &resource.version,
                resource: &resource.plural,
                subresource: self.attributes.subresource,
                namespace,
                name: self.name(object),
            })
            .collect()
    }

    /// The namespace that the object is in, for expressions; `None` for cluster-scoped ones.
    ///
    /// # Errors
    /// 404 for a namespace that does not exist.
    pub(super) fn namespace_object(&self) -> Result<Option<Object>, ApiError> {
        let name = self.attributes.namespace;
        if name.is_empty() || self.is_namespace() {
            return Ok(None);
        }
        self.find_namespace(name).map(Some)
    }

    /// # Errors
    /// 404 for a namespace that does not exist.
    pub(super) fn find_namespace(&self, name: &str) -> Result<Object, ApiError> {
        let stored = self.api.store.get("/namespaces", &ObjectKey::new("", name));
        let stored = stored.ok_or_else(|| ApiError::NotFound {
            resource: bellerophon_apimachinery::error::GroupResource::new("", "namespaces"),
            name: name.to_owned(),
        })?;
        Ok(stored.encoded.decode())
    }

    /// Whether the labels of a namespace are those of the object of the request.
    pub(super) fn writes_namespace(&self) -> bool {
        self.is_namespace()
            && self.attributes.subresource.is_empty()
            && matches!(self.target.operation, Operation::Create | Operation::Update)
    }

    /// Whether namespace selectors do not apply to the request.
    pub(super) fn is_cluster_scoped(&self) -> bool {
        self.attributes.namespace.is_empty() && !self.is_namespace()
    }

    /// Converts the objects of the request to one of the versions of its resource, if a webhook
    /// converts them; [`Request::versioned`] finds them.
    ///
    /// # Errors
    /// 500 with the error of the webhook.
    pub(super) async fn prepare(
        &self,
        objects: [Option<&Object>; 2],
        at: usize,
    ) -> Result<(), ApiError> {
        let own = self.attributes.resource;
        let Some(other) = self.equivalent(at).filter(|_| conversion::is_needed(own)) else {
            return Ok(());
        };
        for object in objects.into_iter().flatten() {
            if object.kind != own.kind || self.find_converted(object, at).is_some() {
                continue;
            }
            let mut outer = object.clone();
            own.to_outer(&mut outer);
            let version = other.api_version();
            let converted = conversion::to_version(self.api, own, &outer, &version).await?;
            let Some(mut versioned) = converted else {
                continue;
            };
            other.prune(&mut versioned);
            let mut kept = self.converted();
            if kept.len() >= CONVERTED_MAX {
                kept.remove(0);
            }
            let object = object.clone();
            kept.push(Converted {
                at,
                object,
                versioned,
            });
        }
        Ok(())
    }

    fn converted(&self) -> MutexGuard<'_, Vec<Converted>> {
        let converted = self.converted.lock();
        converted.unwrap_or_else(PoisonError::into_inner)
    }

    fn find_converted(&self, object: &Object, at: usize) -> Option<Object> {
        let kept = self.converted();
        let mut kept = kept.iter();
        let found = kept.find(|kept| kept.at == at && kept.object == *object)?;
        Some(found.versioned.clone())
    }

    /// The resource in another version; `None` for that of the request.
    fn equivalent(&self, at: usize) -> Option<&Arc<Resource>> {
        self.equivalents().get(at.checked_sub(1)?)
    }

    /// An object of the request in one of the versions of its resource, as it is served. Those that
    /// a webhook converts must have been [prepared](Self::prepare).
    pub(super) fn versioned(&self, object: &Object, at: usize) -> Object {
        if at > 0
            && let Some(versioned) = self.find_converted(object, at)
        {
            return versioned;
        }
        let mut object = object.clone();
        let own = self.attributes.resource;
        if object.kind != own.kind {
            return object;
        }
        own.to_outer(&mut object);
        if let Some(other) = self.equivalent(at) {
            own.to_storage(&mut object);
            other.out_of_storage(&mut object);
        }
        object
    }

    /// The same as JSON; null if there is none. Options of connections have no metadata.
    pub(super) fn json(&self, object: Option<&Object>, at: usize) -> Value {
        let Some(object) = object else {
            return Value::Null;
        };
        let mut value = self.versioned(object, at).into_value();
        if self.target.operation == Operation::Connect
            && let Some(map) = value.as_object_mut()
        {
            map.remove("metadata");
        }
        value
    }

    /// An object in one of the versions of the resource, in the version of the request.
    ///
    /// # Errors
    /// 500 with the error of a conversion webhook.
    pub(super) async fn unversioned(
        &self,
        mut object: Object,
        at: usize,
    ) -> Result<Object, ApiError> {
        let own = self.attributes.resource;
        let Some(other) = self
            .equivalent(at)
            .filter(|other| object.kind == other.kind)
        else {
            return Ok(object);
        };
        if conversion::is_needed(own) {
            let version = own.api_version();
            let converted = conversion::to_version(self.api, other, &object, &version).await?;
            return Ok(converted.map_or(object, |mut converted| {
                own.prune(&mut converted);
                converted
            }));
        }
        other.to_storage(&mut object);
        own.out_of_storage(&mut object);
        Ok(object)
    }

    /// The resource that an object of the request is decoded as; `None` for a subresource whose
    /// kind differs from that of the resource.
    pub(super) fn resource_of(&self, object: &Object, at: usize) -> Option<&Resource> {
        let resource = self.resources().nth(at)?;
        (resource.kind == object.kind).then_some(resource)
    }

    /// `request` of a review, without its uid and objects. Mirrors `CreateAdmissionRequest`.
    pub(super) fn to_value(&self, at: usize, object: Option<&Object>) -> Map<String, Value> {
        let own = self.attributes.resource;
        let matched = self.resources().nth(at).unwrap_or(own);
        let kind_of = |resource: &Resource| {
            if self.kind == own.kind {
                let Resource {
                    group,
                    version,
                    kind,
                    ..
                } = resource;
                return json!({"group": group, "version": version, "kind": kind});
            }
            let (group, version) = split_version(&self.api_version);
            json!({"group": group, "version": version, "kind": self.kind})
        };
        let resource_of = |resource: &Resource| json!({"group": resource.group, "version": resource.version, "resource": resource.plural});
        let mut map = Map::new();
        map.insert("kind".into(), kind_of(matched));
        map.insert("resource".into(), resource_of(matched));
        map.insert("requestKind".into(), kind_of(own));
        map.insert("requestResource".into(), resource_of(own));
        let namespace = self.namespace_name(object);
        for (field, text) in [
            ("subResource", self.attributes.subresource),
            ("requestSubResource", self.attributes.subresource),
            ("name", self.name(object)),
            ("namespace", namespace),
        ] {
            if !text.is_empty() {
                map.insert(field.into(), text.into());
            }
        }
        map.insert("operation".into(), self.target.operation.name().into());
        map.insert("userInfo".into(), self.attributes.user.to_value());
        map.insert("dryRun".into(), self.target.dry_run.into());
        map.insert("options".into(), self.options());
        map
    }

    /// `options` of a review.
    fn options(&self) -> Value {
        let Some(kind) = self.target.operation.options_kind() else {
            return Value::Null;
        };
        let mut options = Map::new();
        options.insert("kind".into(), kind.into());
        options.insert("apiVersion".into(), "meta.k8s.io/v1".into());
        if let Some(Value::Object(given)) = self.target.options {
            let given = given
                .iter()
                .map(|(key, value)| (key.clone(), value.clone()));
            options.extend(given.filter(|(key, _)| key != "kind" && key != "apiVersion"));
            return Value::Object(options);
        }
        let query = self.attributes.query;
        let stages = query.all("dryRun");
        if !stages.is_empty() {
            options.insert("dryRun".into(), json!(stages));
        }
        for field in ["fieldManager", "fieldValidation"] {
            if let Some(text) = query.get(field).filter(|text| !text.is_empty()) {
                options.insert(field.into(), text.into());
            }
        }
        Value::Object(options)
    }
}

fn split_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}
