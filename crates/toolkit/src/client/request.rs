//! From an object to a request, and from a response to its metadata.
//! Guarantees: nothing here knows the type of an object.

use std::borrow::Cow;
use std::sync::Arc;

use bellerophon_kinds::{KindCodec, Object, decode};
use futures_util::future::BoxFuture;
use http::header::USER_AGENT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::Resource;
use kube::api::{GetParams, ListParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta, request};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{AnyObject, OperationResult, ReconcileClient, WriteError, path_segment};
use crate::ObjectKey;
use crate::informer::kind_name;

/// Objects per page of a list.
const PAGE_SIZE: u32 = 500;

/// The object of a request.
pub(super) struct Target {
    pub(super) verb: &'static str,
    pub(super) resource: ApiResource,
    pub(super) key: ObjectKey,
    /// The path of its collection.
    pub(super) path: String,
    /// Its name as a segment of a path.
    pub(super) name: String,
}

impl Target {
    /// Fails if namespace or name cannot be in a path.
    fn new(verb: &'static str, resource: ApiResource, key: ObjectKey) -> Result<Self, WriteError> {
        let namespace = path_segment(key.namespace().unwrap_or_default());
        let name = path_segment(key.name()).map(Cow::into_owned);
        let Some((namespace, name)) = namespace.zip(name) else {
            let invalid = "its namespace or name cannot be in a path".to_owned();
            let source = kube::Error::BuildRequest(request::Error::Validation(invalid));
            return Err(WriteError {
                verb,
                kind: resource.kind,
                key,
                source: Box::new(source),
            });
        };
        Ok(Self {
            verb,
            path: DynamicObject::url_path(&resource, key.namespace().map(|_| &*namespace)),
            resource,
            name,
            key,
        })
    }

    pub(super) fn failed(&self, source: kube::Error) -> WriteError {
        WriteError {
            verb: self.verb,
            kind: self.resource.kind.clone(),
            key: self.key.clone(),
            source: Box::new(source),
        }
    }
}

/// A response, of which the metadata is decoded.
pub(super) struct Response {
    pub(super) operation: OperationResult,
    pub(super) metadata: ObjectMeta,
    pub(super) json: Vec<u8>,
    /// It is a `Status` and no object.
    pub(super) is_status: bool,
}

impl Response {
    /// No request was sent, because the object is as desired.
    pub(super) fn unchanged(metadata: &ObjectMeta, object: Value) -> Self {
        Self {
            operation: OperationResult::Unchanged,
            metadata: metadata.clone(),
            json: object.to_string().into_bytes(),
            is_status: false,
        }
    }
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ObjectMeta,
}

impl Head {
    /// Decodes a response as caches decode objects, whose times may be out of range.
    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let object = decode::<PartialObjectMeta<DynamicObject>>(json.as_bytes())?;
        let PartialObjectMeta {
            types, metadata, ..
        } = Arc::unwrap_or_clone(object);
        Ok(Self {
            kind: types.map(|types| types.kind).unwrap_or_default(),
            metadata,
        })
    }
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

impl ReconcileClient {
    /// The resource, key and path of an object.
    pub(super) fn target_of<'a>(
        &'a self,
        verb: &'static str,
        object: &'a AnyObject,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Target, WriteError>> {
        Box::pin(async move {
            let metadata = codec.metadata(object);
            let name = metadata.name.as_deref().unwrap_or_default();
            let key = ObjectKey::new(metadata.namespace.as_deref(), name);
            if let Some(resource) = codec.resource() {
                // Only kinds known at run time need discovery, which may send a request.
                return Target::new(verb, resource, key);
            }
            let failed = |key: ObjectKey, source| WriteError {
                verb,
                kind: "object".to_owned(),
                key,
                source: Box::new(source),
            };
            let Some(types) = codec.types(object) else {
                let missing = "it has no apiVersion and kind".into();
                return Err(failed(key, kube::Error::Service(missing)));
            };
            match self.config.mapper.resource(types).await {
                Ok(resource) => Target::new(verb, resource, key),
                Err(error) => Err(failed(key, error)),
            }
        })
    }

    /// The same for a type that knows its kind.
    pub(super) fn static_target(
        &self,
        verb: &'static str,
        key: ObjectKey,
        codec: &'static KindCodec,
    ) -> Result<Target, WriteError> {
        let resource = codec.resource().expect("the type knows its kind");
        Target::new(verb, resource, key)
    }

    /// The name of an object's kind in traces; `None` for a dynamic object without types.
    pub(super) fn kind_of(
        &self,
        object: &AnyObject,
        codec: &'static KindCodec,
    ) -> Option<Arc<str>> {
        if let Some(resource) = codec.resource() {
            return Some(kind_name(&resource));
        }
        let types = codec.types(object)?;
        let group = types
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group);
        Some(match group {
            "" => types.kind.as_str().into(),
            group => format!("{}.{group}", types.kind).into(),
        })
    }

    /// An object as JSON, with its `apiVersion` and `kind`.
    pub(super) fn value(
        &self,
        target: &Target,
        object: &AnyObject,
        codec: &'static KindCodec,
    ) -> Result<Value, WriteError> {
        let json = codec.encode(object);
        let value = json.and_then(|json| serde_json::from_slice::<Value>(&json));
        let mut value = value.map_err(|error| target.failed(kube::Error::SerdeError(error)))?;
        value["apiVersion"] = target.resource.api_version.clone().into();
        value["kind"] = target.resource.kind.clone().into();
        Ok(value)
    }

    /// The same as the body of a request. Types of Kubernetes and custom resources encode their
    /// `apiVersion` and `kind` themselves.
    pub(super) fn body(
        &self,
        target: &Target,
        object: &AnyObject,
        codec: &'static KindCodec,
    ) -> Result<Vec<u8>, WriteError> {
        codec
            .encode(object)
            .map_err(|error| target.failed(kube::Error::SerdeError(error)))
    }

    /// Sends a request and decodes the metadata of the response.
    pub(super) fn send<'a>(
        &'a self,
        target: &'a Target,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> BoxFuture<'a, Result<Response, WriteError>> {
        Box::pin(async move {
            let text = self.text(target, request).await?;
            let head = serde_json::from_str::<Head>(&text).or_else(|_| Head::decode(&text));
            let head = head.map_err(|error| target.failed(kube::Error::SerdeError(error)))?;
            Ok(Response {
                operation: OperationResult::Updated,
                metadata: head.metadata,
                json: text.into_bytes(),
                is_status: head.kind == "Status",
            })
        })
    }

    async fn text(
        &self,
        target: &Target,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String, WriteError> {
        let request = request.map_err(kube::Error::BuildRequest);
        let mut request = request.map_err(|error| target.failed(error))?;
        // The verb in the extensions is how layers of the client distinguish requests.
        request.extensions_mut().insert(target.verb);
        // Per request and not per client: all controllers of a process share one connection pool.
        if let Some(agent) = self.user_agent() {
            request.headers_mut().insert(USER_AGENT, agent);
        }
        let sent = self.config.client.request_text(request).await;
        sent.map_err(|error| target.failed(error))
    }

    pub(super) fn get_erased<'a>(
        &'a self,
        target: &'a Target,
        codec: &'static KindCodec,
    ) -> BoxFuture<'a, Result<Option<Object>, WriteError>> {
        Box::pin(async move {
            let path = kube::core::Request::new(&*target.path);
            let params = GetParams::default();
            let request = match codec.is_metadata_only() {
                true => path.get_metadata(&target.name, &params),
                false => path.get(&target.name, &params),
            };
            match self.text(target, request).await {
                Ok(text) => {
                    let object = codec.decode(text.as_bytes());
                    let object =
                        object.map_err(|error| target.failed(kube::Error::SerdeError(error)))?;
                    Ok(Some(object))
                }
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    pub(super) fn list_erased<'a>(
        &'a self,
        target: &'a Target,
        codec: &'static KindCodec,
        params: &'a ListParams,
    ) -> BoxFuture<'a, Result<Vec<Object>, WriteError>> {
        Box::pin(async move {
            let undecodable = |error| target.failed(kube::Error::SerdeError(error));
            let mut params = params.clone();
            params.limit.get_or_insert(PAGE_SIZE);
            let mut objects = Vec::new();
            loop {
                let path = kube::core::Request::new(&*target.path);
                let request = match codec.is_metadata_only() {
                    true => path.list_metadata(&params),
                    false => path.list(&params),
                };
                let text = self.text(target, request).await?;
                let list: List<'_> = serde_json::from_str(&text).map_err(undecodable)?;
                for item in list.items.unwrap_or_default() {
                    objects.push(codec.decode(item.get().as_bytes()).map_err(undecodable)?);
                }
                // An empty token is how a server marks the last page.
                params.continue_token = list.metadata.continue_.filter(|token| !token.is_empty());
                if params.continue_token.is_none() {
                    return Ok(objects);
                }
            }
        })
    }
}
