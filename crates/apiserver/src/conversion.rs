//! Conversion of custom resources by webhook.
//! In: stored objects and objects that are written. Out: the same objects in another
//! version, as the webhook of their definition converts them.
//!
//! Guarantees: resources without a conversion webhook are passed on as they are; one request for
//! all objects of a list; name, namespace, uid and the rest of the metadata but labels and
//! annotations stay what they were.
//! Mirrors `webhookConverter` of `apiextensions-apiserver/pkg/apiserver/conversion`.

use std::{sync::Arc, time::Duration};

use bellerophon_apimachinery::{error::ApiError, json_ext::JsonExt as _};
use bellerophon_codec::object::Object;
use bellerophon_storage::{Put, Stored};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    api::Api,
    endpoints,
    registry::{CONVERTED, ConversionWebhook, Resource},
    webhook_response,
};

/// How long a conversion may take; as long as that of the slowest admission webhook.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A stored object in the version of a resource.
///
/// # Errors
/// 500 with the error of the webhook.
pub(crate) async fn present(
    api: &Api,
    resource: &Resource,
    stored: Arc<Stored>,
) -> Result<Arc<Stored>, ApiError> {
    if webhook_of(resource).is_none() {
        return Ok(stored);
    }
    let mut presented = present_all(api, resource, vec![stored]).await?;
    Ok(presented.pop().expect("as many objects as before"))
}

/// Stored objects in the version of a resource.
///
/// # Errors
/// 500 with the error of the webhook.
pub(crate) async fn present_all(
    api: &Api,
    resource: &Resource,
    mut stored: Vec<Arc<Stored>>,
) -> Result<Vec<Arc<Stored>>, ApiError> {
    let Some(webhook) = webhook_of(resource) else {
        return Ok(stored);
    };
    let version = resource.api_version();
    let mut places = Vec::new();
    let mut objects = Vec::new();
    let mut unconverted = Vec::new();
    for (place, stored) in stored.iter().enumerate() {
        if resource.is_stored_form(stored) {
            continue;
        }
        let object = stored.encoded.decode();
        if object.api_version == version {
            // It was stored when this was the stored version.
            unconverted.push((place, object));
        } else {
            places.push(place);
            objects.push(resource.as_stored(object, stored.schema));
        }
    }
    let converted = convert(api, webhook, objects, &version).await?;
    for (place, mut object) in places.into_iter().zip(converted).chain(unconverted) {
        resource.prune(&mut object);
        let old = &stored[place];
        stored[place] = Arc::new(Stored {
            key: old.key.clone(),
            revision: old.revision,
            encoded: object.draft().at(old.revision),
            attributes: old.attributes.clone(),
            schema: CONVERTED,
        });
    }
    Ok(stored)
}

/// The stored form of an object.
///
/// # Errors
/// 500 with the error of the webhook.
pub(crate) async fn put(api: &Api, resource: &Resource, object: &Object) -> Result<Put, ApiError> {
    let (group, version) = resource.stored_version();
    let stored_version = format!("{group}/{version}");
    let webhook = webhook_of(resource).filter(|_| object.api_version != stored_version);
    let Some(webhook) = webhook else {
        return Ok(resource.put(object));
    };
    let objects = vec![object.clone()];
    let mut converted = convert(api, webhook, objects, &stored_version).await?;
    let converted = converted.pop().expect("as many objects as before");
    Ok(resource.put_converted(object, converted))
}

/// Whether a webhook converts the objects of a resource.
pub(crate) fn is_needed(resource: &Resource) -> bool {
    webhook_of(resource).is_some()
}

fn webhook_of(resource: &Resource) -> Option<&ConversionWebhook> {
    resource.custom()?.conversion.as_deref()
}

/// An object in another version of its resource.
///
/// # Errors
/// 500 with the error of the webhook.
pub(crate) async fn to_version(
    api: &Api,
    resource: &Resource,
    object: &Object,
    version: &str,
) -> Result<Option<Object>, ApiError> {
    let Some(webhook) = webhook_of(resource) else {
        return Ok(None);
    };
    let mut converted = convert(api, webhook, vec![object.clone()], version).await?;
    Ok(converted.pop())
}

/// Objects in another version.
async fn convert(
    api: &Api,
    webhook: &ConversionWebhook,
    objects: Vec<Object>,
    version: &str,
) -> Result<Vec<Object>, ApiError> {
    let Some(first) = objects.first() else {
        return Ok(objects);
    };
    let of = format!("{}, Kind={}", first.api_version, first.kind);
    let is_single = objects.len() == 1;
    let failed =
        |why: String| ApiError::Unnamed(format!("conversion webhook for {of} failed: {why}"));
    let uid = api.entropy.uid();
    let values: Vec<Value> = objects.iter().map(Object::to_value).collect();
    let review = json!({"kind": "ConversionReview", "apiVersion": webhook.review_version(),
        "request": {"uid": uid, "desiredAPIVersion": version, "objects": values}});
    let review = post(api, webhook, &review).await.map_err(failed)?;
    let converted = verify(&review, webhook, &uid).map_err(failed)?;
    if converted.len() != objects.len() {
        return Err(ApiError::Unnamed(format!(
            "conversion webhook for {of} returned {} objects, expected {}",
            converted.len(),
            objects.len()
        )));
    }
    let pairs = objects.into_iter().zip(converted).enumerate();
    pairs
        .map(|(index, (original, converted))| {
            let at = if is_single {
                Place::Single
            } else {
                Place::Item(index)
            };
            checked(original, converted, version, at).map_err(|why| {
                ApiError::Unnamed(format!("conversion webhook for {of} returned {why}"))
            })
        })
        .collect()
}

async fn post(api: &Api, webhook: &ConversionWebhook, review: &Value) -> Result<Value, String> {
    let Some(client) = &webhook.client else {
        return Err("the client configuration is not valid".into());
    };
    let transport = api
        .webhook_transport()
        .ok_or("webhooks cannot be called by this server")?;
    let address = endpoints::webhook_address(api, client);
    let body = Bytes::from(serde_json::to_vec(review).expect("a review has string keys"));
    let request = client.post(address, None, body);
    let url = request.url.clone();
    let response = match timeout(TIMEOUT, transport.post(request)).await {
        Ok(response) => response?,
        Err(_) => return Err(format!("Post {url:?}: context deadline exceeded")),
    };
    if !response.status().is_success() {
        return Err(webhook_response::describe(&response).0);
    }
    webhook_response::decode(&response)
}

/// Mirrors `getConvertedObjectsFromResponse`.
fn verify(review: &Value, webhook: &ConversionWebhook, uid: &str) -> Result<Vec<Value>, String> {
    let Some(response) = review.get_set("response") else {
        return Err("no response provided".into());
    };
    let expected = webhook.review_version();
    if expected == "apiextensions.k8s.io/v1" {
        let found = review.text("apiVersion");
        let kind = review.text("kind");
        if found != expected || kind != "ConversionReview" {
            let (group, version) = found.split_once('/').unwrap_or(("", found));
            return Err(format!(
                "expected webhook response of {expected}, Kind=ConversionReview, got {group}/{version}, Kind={kind}"
            ));
        }
        let found = response.text("uid");
        if found != uid {
            return Err(format!("expected response.uid={uid:?}, got {found:?}"));
        }
    }
    let result = response.field("result");
    let status = result.text("status");
    if status != "Success" {
        let message = result.text("message");
        return Err(if message.is_empty() {
            format!("response.result.status was '{status}', not 'Success'")
        } else {
            message.to_owned()
        });
    }
    Ok(response.list("convertedObjects").to_vec())
}

/// The position of an object in a response, as in error messages.
#[derive(Clone, Copy)]
enum Place {
    Single,
    Item(usize),
}

impl Place {
    fn object(self) -> String {
        match self {
            Self::Single => "invalid object at index 0".into(),
            Self::Item(index) => format!("invalid converted object at index {index}"),
        }
    }

    fn invalid(self) -> String {
        match self {
            Self::Single => "invalid object".into(),
            Self::Item(index) => format!("invalid converted object at index {index}"),
        }
    }

    fn metadata(self) -> String {
        match self {
            Self::Single => "invalid metadata".into(),
            Self::Item(index) => format!("invalid metadata in object at index {index}"),
        }
    }
}

/// A converted object with the metadata of the original. Mirrors `validateConvertedObject` and
/// `restoreObjectMeta`.
fn checked(
    original: Object,
    converted: Value,
    version: &str,
    place: Place,
) -> Result<Object, String> {
    let found = converted.text("apiVersion");
    if found != version {
        return Err(format!(
            "{}: invalid groupVersion (expected {version}, received {found})",
            place.object()
        ));
    }
    let kind = converted.text("kind");
    if kind != original.kind {
        return Err(format!(
            "{}: invalid kind (expected {}, received {kind})",
            place.object(),
            original.kind
        ));
    }
    let metadata = converted.field("metadata");
    if !metadata.is_object() {
        return Err(format!(
            "{}: missing metadata in converted object",
            place.metadata()
        ));
    }
    let meta = &original.meta;
    let same = [
        ("name", &meta.name, metadata.text("name")),
        ("namespace", &meta.namespace, metadata.text("namespace")),
        ("UID", &meta.uid, metadata.text("uid")),
    ];
    for (what, before, after) in same {
        if before != after {
            return Err(format!(
                "{}: must have the same {what}: {before} != {after}",
                place.invalid()
            ));
        }
    }
    let Value::Object(map) = converted else {
        return Err(format!("{}: it is no object", place.invalid()));
    };
    let mut object =
        Object::from_map(map).map_err(|error| format!("{}: {error}", place.metadata()))?;
    let labels = std::mem::take(&mut object.meta.labels);
    let annotations = std::mem::take(&mut object.meta.annotations);
    object.meta = original.meta;
    object.meta.labels = labels;
    object.meta.annotations = annotations;
    Ok(object)
}
