//! Conversion: from a ConversionReview with objects of one version to one with another version.
//!
//! In: the body of a call. Out: the body of the answer.
//! Guarantees: all objects are converted or none; metadata other than labels and annotations is
//! that of the request; what a version cannot hold is kept in the annotation
//! [`CONVERSION_DATA`], so that the way back restores it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bellerophon_kinds::{Kind, KindCodec, Object, downcast};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::admission::Answer;
use crate::client::difference;

const API_VERSION: &str = "apiextensions.k8s.io/v1";

/// The annotation of an object in a version that cannot hold all of it: the rest, as a JSON merge
/// patch of the [hub](super::WebhookBuilder::convert) version.
///
/// ```
/// use bellerophon::webhook::CONVERSION_DATA;
///
/// assert_eq!(CONVERSION_DATA, "webhook.bellerophon.io/conversion-data");
/// ```
pub const CONVERSION_DATA: &str = "webhook.bellerophon.io/conversion-data";

type Convert = Arc<dyn Fn(Object) -> Result<Object, String> + Send + Sync>;

/// The conversions of one kind: between its hub version and each of the others.
pub(crate) struct Hub {
    api_version: String,
    codec: &'static KindCodec,
    spokes: BTreeMap<String, Spoke>,
}

struct Spoke {
    codec: &'static KindCodec,
    to_hub: Convert,
    from_hub: Convert,
}

/// The conversions of all kinds, by group and kind.
#[derive(Default)]
pub(crate) struct Conversions(BTreeMap<(String, String), Hub>);

impl Conversions {
    /// Adds a version; false if there is one of its name, or another hub.
    pub(crate) fn add<K, S>(&mut self) -> bool
    where
        K: Kind<DynamicType = ()> + TryFrom<S, Error: fmt::Display>,
        S: Kind<DynamicType = ()> + TryFrom<K, Error: fmt::Display>,
    {
        let spoke = Spoke {
            codec: S::codec(),
            to_hub: converted::<S, K>(),
            from_hub: converted::<K, S>(),
        };
        let id = (K::group(&()).into_owned(), K::kind(&()).into_owned());
        let hub_version = K::api_version(&()).into_owned();
        let hub = self.0.entry(id).or_insert_with(|| Hub {
            api_version: hub_version.clone(),
            codec: K::codec(),
            spokes: BTreeMap::new(),
        });
        let version = S::api_version(&()).into_owned();
        let is_new = hub.api_version == hub_version && version != hub_version;
        is_new && hub.spokes.insert(version, spoke).is_none()
    }

    /// Answers a review.
    pub(crate) fn answer(&self, body: &[u8]) -> Answer {
        let refused =
            |message, uid: Option<&str>| Answer::error(StatusCode::BAD_REQUEST, message, uid);
        let review: ReviewBody = match serde_json::from_slice(body) {
            Ok(review) => review,
            Err(error) => return refused(format!("this is no ConversionReview: {error}"), None),
        };
        if review.api_version != API_VERSION || review.kind != "ConversionReview" {
            let message = format!(
                "expected ConversionReview of {API_VERSION}, got {:?} of {:?}",
                review.kind, review.api_version
            );
            return refused(message, None);
        }
        let Some(request) = review.request else {
            return refused("the ConversionReview has no request".into(), None);
        };
        let convert = || -> Result<Vec<Value>, String> {
            let objects = request.objects.iter();
            objects
                .map(|object| self.convert(object, &request.desired_api_version))
                .collect()
        };
        // Unwind safe: nothing that a conversion changes is used after a panic.
        let (objects, result) = match catch_unwind(AssertUnwindSafe(convert)) {
            Ok(Ok(objects)) => (objects, json!({"metadata": {}, "status": "Success"})),
            Ok(Err(message)) => {
                let result = json!({"metadata": {}, "status": "Failure", "message": message});
                (Vec::new(), result)
            }
            Err(_) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                let message = "panic: the conversion panicked [recovered]".to_owned();
                return Answer {
                    is_panic: true,
                    ..Answer::error(status, message, Some(&request.uid))
                };
            }
        };
        Answer::ok(&ReviewAnswer {
            kind: "ConversionReview",
            api_version: API_VERSION,
            response: ConversionResponse {
                uid: &request.uid,
                converted_objects: objects,
                result,
            },
        })
    }

    fn convert(&self, raw: &Value, desired: &str) -> Result<Value, String> {
        let text = |name: &str| raw[name].as_str().unwrap_or_default();
        let version = text("apiVersion");
        let kind = text("kind");
        let name = raw["metadata"]["name"].as_str().unwrap_or_default();
        let failed = |why: String| {
            format!("cannot convert {kind} {name:?} from {version} to {desired}: {why}")
        };
        let group = |version: &str| {
            version
                .rsplit_once('/')
                .map_or("", |(group, _)| group)
                .to_owned()
        };
        let hub = self.0.get(&(group(version), kind.to_owned()));
        let hub = hub.ok_or_else(|| failed("no conversion of this kind is declared".into()))?;
        if group(version) != group(desired) {
            return Err(failed("the groups differ".into()));
        }
        if version == desired {
            return Ok(raw.clone());
        }
        hub.convert(raw, version, desired).map_err(failed)
    }
}

impl Hub {
    fn spoke(&self, version: &str) -> Result<&Spoke, String> {
        let spoke = self.spokes.get(version);
        spoke.ok_or_else(|| format!("no conversion of {version} is declared"))
    }

    fn convert(&self, raw: &Value, version: &str, desired: &str) -> Result<Value, String> {
        let mut raw = raw.clone();
        let hub = match version == self.api_version {
            true => raw.clone(),
            false => self.up(self.spoke(version)?, &mut raw)?,
        };
        let (mut converted, data) = match desired == self.api_version {
            true => (hub, None),
            false => self.down(self.spoke(desired)?, &hub)?,
        };
        converted["metadata"] = metadata(&raw, &converted, data)?;
        converted["apiVersion"] = desired.into();
        Ok(converted)
    }

    /// The object in the hub version. The conversion data is taken out of `raw`.
    fn up(&self, spoke: &Spoke, raw: &mut Value) -> Result<Value, String> {
        let data = take_conversion_data(raw);
        let typed = decode(spoke.codec, raw)?;
        let known = encode(spoke.codec, &typed)?;
        let hub = (spoke.to_hub)(typed)?;
        let mut hub = encode(self.codec, &hub)?;
        add_unknown(&mut hub, raw, &known);
        // What a client wrote in its own version is newer than the data: neither a field of the
        // request nor anything that its version shows is restored.
        let Some(data) = data.and_then(|data| without(&data, raw)) else {
            return Ok(hub);
        };
        let view = |hub: &Value| -> Option<Value> {
            let back = (spoke.from_hub)(decode(self.codec, hub).ok()?).ok()?;
            Some(fields(&encode(spoke.codec, &back).ok()?))
        };
        let shown = view(&hub);
        let restored = |hub: &Value, data: &Value| {
            let mut restored = hub.clone();
            apply(&mut restored, data);
            (view(&restored) == shown).then_some(restored)
        };
        if let Some(restored) = restored(&hub, &data) {
            return Ok(restored);
        }
        for leaf in leaves(&data) {
            hub = restored(&hub, &leaf).unwrap_or(hub);
        }
        Ok(hub)
    }

    /// The object in another version, and what that cannot hold.
    fn down(&self, spoke: &Spoke, hub: &Value) -> Result<(Value, Option<Value>), String> {
        let typed = decode(self.codec, hub)?;
        let known = encode(self.codec, &typed)?;
        let converted = (spoke.from_hub)(typed)?;
        let mut down = encode(spoke.codec, &converted)?;
        let back = encode(self.codec, &(spoke.to_hub)(converted)?)?;
        let data = difference(&fields(&back), &fields(&known));
        add_unknown(&mut down, hub, &known);
        Ok((down, data))
    }
}

fn converted<A, B>() -> Convert
where
    A: Kind<DynamicType = ()>,
    B: Kind<DynamicType = ()> + TryFrom<A, Error: fmt::Display>,
{
    Arc::new(|object| {
        let object = Arc::unwrap_or_clone(downcast::<A>(object));
        let converted = B::try_from(object).map_err(|error| error.to_string())?;
        Ok(Arc::new(converted) as Object)
    })
}

fn decode(codec: &KindCodec, value: &Value) -> Result<Object, String> {
    let decoded = codec.decode(value.to_string().as_bytes());
    decoded.map_err(|error| error.to_string())
}

fn encode(codec: &KindCodec, object: &Object) -> Result<Value, String> {
    let json = codec.encode(&**object);
    let value = json.and_then(|json| serde_json::from_slice(&json));
    value.map_err(|error| error.to_string())
}

/// An object without what is common to all versions.
fn fields(object: &Value) -> Value {
    let mut fields = object.clone();
    if let Some(object) = fields.as_object_mut() {
        for name in ["apiVersion", "kind", "metadata"] {
            object.remove(name);
        }
    }
    fields
}

/// Removes the conversion data of an object, and returns it.
fn take_conversion_data(object: &mut Value) -> Option<Value> {
    let annotations = object
        .pointer_mut("/metadata/annotations")?
        .as_object_mut()?;
    let data = annotations.remove(CONVERSION_DATA)?;
    if annotations.is_empty() {
        object["metadata"].as_object_mut()?.remove("annotations");
    }
    // Data that a client damaged is as good as none.
    serde_json::from_str(data.as_str()?).ok()
}

/// The metadata of the request, with the labels and annotations of the conversion.
fn metadata(raw: &Value, converted: &Value, data: Option<Value>) -> Result<Value, String> {
    let mut metadata = raw["metadata"].clone();
    if !metadata["name"].is_null() && converted["metadata"]["name"].is_null() {
        return Err("the conversion does not keep the metadata".to_owned());
    }
    for name in ["labels", "annotations"] {
        match converted["metadata"].get(name) {
            Some(value) => metadata[name] = value.clone(),
            None => {
                metadata
                    .as_object_mut()
                    .map(|metadata| metadata.remove(name));
            }
        }
    }
    if let Some(data) = data {
        metadata["annotations"][CONVERSION_DATA] = data.to_string().into();
    }
    Ok(metadata)
}

/// Adds to `object` the fields of `raw` that its type does not know, where there are none.
fn add_unknown(object: &mut Value, raw: &Value, known: &Value) {
    let (Some(object), Some(raw), Some(known)) =
        (object.as_object_mut(), raw.as_object(), known.as_object())
    else {
        return;
    };
    for (name, raw) in raw.iter().filter(|(_, value)| !value.is_null()) {
        match (object.get_mut(name), known.get(name)) {
            (Some(object), Some(known)) => add_unknown(object, raw, known),
            (None, None) => {
                object.insert(name.clone(), raw.clone());
            }
            _ => {}
        }
    }
}

/// Applies a JSON merge patch.
fn apply(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in patch {
        match value.is_null() {
            true => {
                object.as_object_mut().map(|object| object.remove(name));
            }
            false => apply(&mut object[name.as_str()], value),
        }
    }
}

/// A merge patch without the fields that an object has; `None` if nothing is left.
fn without(patch: &Value, object: &Value) -> Option<Value> {
    let (Some(patch), Some(object)) = (patch.as_object(), object.as_object()) else {
        return None;
    };
    let left = patch.iter().filter_map(|(name, value)| {
        let left = match object.get(name) {
            Some(present) => without(value, present)?,
            None => value.clone(),
        };
        Some((name.clone(), left))
    });
    let left: Map<String, Value> = left.collect();
    (!left.is_empty()).then_some(Value::Object(left))
}

/// The parts of a merge patch that change one field each.
fn leaves(patch: &Value) -> Vec<Value> {
    let Some(fields) = patch.as_object().filter(|fields| !fields.is_empty()) else {
        return vec![patch.clone()];
    };
    let leaves = fields.iter().flat_map(|(name, value)| {
        let inner = leaves(value).into_iter();
        inner.map(move |leaf| json!({name: leaf}))
    });
    leaves.collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewBody {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<ConversionRequest>,
}

#[derive(Deserialize)]
struct ConversionRequest {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    objects: Vec<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewAnswer<'a> {
    kind: &'static str,
    api_version: &'static str,
    response: ConversionResponse<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConversionResponse<'a> {
    uid: &'a str,
    converted_objects: Vec<Value>,
    result: Value,
}
