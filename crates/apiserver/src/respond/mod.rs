//! The last stage of a request: from the reply of a verb to the bytes of a response.
//! In: a reply and the form that the client requested. Out: an HTTP response.
//! Guarantees: JSON of stored objects is not encoded again: gets, lists and watches send the stored
//! bytes.

use std::{borrow::Cow, sync::Arc, vec};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Body as _;
use serde_json::{Map, Value, json};

mod list_body; // lists that are encoded while they are sent

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::{
    object::{Encoded, Object},
    protobuf,
};
use bellerophon_resources::print::{IncludeObject, ListMeta, TableOptions, partial, partial_list};
use bellerophon_storage::{Change, Stored};
use list_body::ListBody;

use crate::{
    api::Api,
    conversion,
    http::{
        body::Body,
        gzip::{self, Gzip},
        negotiate::{Form, Format, Wanted},
        response::{encode, json_response, to_bytes, with_type},
    },
    registry::Resource,
    verbs::{Content, List, Reply, Watch, WatchItem},
};

/// A chunk of events has at most this size, or one event.
const EVENTS_MAX_BYTES: usize = 64 << 10;

/// The annotation of the bookmark that ends the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The format and form of a response.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) wanted: Wanted,
    pub(crate) include: IncludeObject,
    pub(crate) gzip: bool,
    pub(crate) pretty: bool,
    /// Whether a chunk of a watch is one event, as a message of a WebSocket is.
    pub(crate) one_event_per_chunk: bool,
}

/// Turns a reply into a response.
///
/// # Errors
/// The form does not fit the content.
pub(crate) fn answer(
    api: &Arc<Api>,
    resource: &Arc<Resource>,
    reply: Reply,
    shape: &Shape,
) -> Result<Response<Body>, ApiError> {
    let Reply { status, content } = reply;
    let mut response = match content {
        Content::Watch(watch) => {
            watch_response(api.clone(), resource.clone(), *watch, shape.clone())
        }
        Content::Document(value) => encode(status, &value, shape.wanted.format),
        Content::List(list) => list_response(api, resource, list, shape)?,
        Content::Stored(stored)
            if shape.wanted.form == Form::Object && shape.wanted.format == Format::Json =>
        {
            json_response(status, resource.present(&stored).bytes().clone())
        }
        Content::Stored(stored)
            if shape.wanted.form == Form::Object && shape.wanted.format == Format::Protobuf =>
        {
            with_type(
                status,
                Body::full(sealed(resource, &resource.present(&stored))),
                Format::Protobuf.content_type(),
            )
        }
        Content::Stored(stored) => encode(
            status,
            &shaped(api, resource, &resource.read(&stored), shape, true)?,
            shape.wanted.format,
        ),
        Content::Object(object) => encode(
            status,
            &shaped(api, resource, &object, shape, true)?,
            shape.wanted.format,
        ),
    };
    if shape.pretty {
        prettify(&mut response);
    }
    if shape.gzip {
        compress(&mut response);
    }
    Ok(response)
}

/// A stored object in the envelope of protobuf.
fn sealed(resource: &Resource, encoded: &Encoded) -> Vec<u8> {
    protobuf::seal(&resource.api_version(), &resource.kind, encoded.message())
}

fn prettify(response: &mut Response<Body>) {
    if let Some(value) = response
        .body()
        .bytes()
        .and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok())
    {
        let text = serde_json::to_string_pretty(&value).expect("a value has string keys");
        *response.body_mut() = Body::full(text);
    }
}

/// Compresses a large body.
pub(crate) fn compress(response: &mut Response<Body>) {
    let body = std::mem::take(response.body_mut());
    let size = body.size_hint();
    if body.is_stream()
        || size
            .upper()
            .is_some_and(|size| size < gzip::MIN_BYTES as u64)
    {
        *response.body_mut() = body;
        return;
    }
    *response.body_mut() = match body.into_chunks() {
        Ok(chunks) => Body::chunks(Gzip::new(chunks)),
        Err(whole) => Body::full(whole.bytes().map(|b| gzip::compress(b)).unwrap_or_default()),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}

/// One object in the requested form. `first` marks the first table of a watch.
fn shaped(
    api: &Api,
    resource: &Resource,
    object: &Object,
    shape: &Shape,
    first: bool,
) -> Result<Value, ApiError> {
    match shape.wanted.form {
        Form::Object => Ok(object.to_value()),
        Form::Partial(version) => Ok(partial(
            &for_metadata(resource, Cow::Borrowed(object)),
            version,
        )),
        Form::PartialList(_) => Err(ApiError::NotAcceptableForm(format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
            resource.go_type()
        ))),
        Form::Table(version) => {
            let options = TableOptions {
                version,
                include: shape.include,
                describe_columns: first,
            };
            let object = for_rows(resource, Cow::Borrowed(object), shape.include);
            Ok(resource.table(
                &[&*object],
                api.clock.now(),
                &ListMeta::of(&object),
                options,
            ))
        }
    }
}

/// An object whose metadata is shown alone.
fn for_metadata<'a>(resource: &Resource, mut object: Cow<'a, Object>) -> Cow<'a, Object> {
    for name in resource.strategy.field_annotations {
        if object.meta.annotations.contains_key(*name) {
            object.to_mut().meta.annotations.remove(*name);
        }
    }
    object
}

/// An object as the rows of a table carry it.
fn for_rows<'a>(
    resource: &Resource,
    object: Cow<'a, Object>,
    include: IncludeObject,
) -> Cow<'a, Object> {
    if include == IncludeObject::Metadata {
        for_metadata(resource, object)
    } else {
        object
    }
}

fn list_response(
    api: &Api,
    resource: &Arc<Resource>,
    list: List,
    shape: &Shape,
) -> Result<Response<Body>, ApiError> {
    let Wanted { format, form } = shape.wanted;
    let meta = ListMeta {
        resource_version: list.revision.to_string(),
        continue_token: list.next.unwrap_or_default(),
        remaining_item_count: list.remaining.map(|n| n as i64),
    };
    if form == Form::Object && format == Format::Json {
        let list = ListBody::json(resource, list.objects, &meta);
        let body = if shape.pretty {
            Body::full(list.into_bytes())
        } else {
            list.into_body()
        };
        return Ok(with_type(StatusCode::OK, body, format.content_type()));
    }
    if form == Form::Object && format == Format::Protobuf {
        let body = protobuf_list(resource, list.objects, &meta);
        return Ok(with_type(StatusCode::OK, body, format.content_type()));
    }
    let objects = || list.objects.iter().map(|o| Cow::Owned(resource.read(o)));
    let value = match form {
        Form::Object => {
            let list = ListBody::json(resource, list.objects.clone(), &meta);
            serde_json::from_slice(&list.into_bytes()).expect("written above")
        }
        Form::PartialList(version) => {
            partial_list(objects().map(|o| for_metadata(resource, o)), &meta, version)
        }
        Form::Partial(_) => {
            return Err(ApiError::NotAcceptableForm(format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({}List)",
                resource.go_type()
            )));
        }
        Form::Table(version) => {
            let options = TableOptions {
                version,
                include: shape.include,
                describe_columns: true,
            };
            let objects: Vec<_> = objects()
                .map(|o| for_rows(resource, o, shape.include))
                .collect();
            resource.table(
                &objects.iter().map(|o| &**o).collect::<Vec<_>>(),
                api.clock.now(),
                &meta,
                options,
            )
        }
    };
    Ok(encode(StatusCode::OK, &value, format))
}

/// A list in protobuf. Objects that are converted to another version are converted before, since
/// the size of the list is sent first.
fn protobuf_list(resource: &Arc<Resource>, objects: Vec<Arc<Stored>>, meta: &ListMeta) -> Body {
    if objects.iter().all(|stored| resource.is_stored_form(stored)) {
        return ListBody::protobuf(resource, objects, meta).into_body();
    }
    let items: Vec<Encoded> = objects
        .iter()
        .map(|stored| resource.present(stored))
        .collect();
    let head = serde_json::to_value(meta).expect("a value has string keys");
    let message = protobuf::list_message(head, items.iter().map(|item| item.message().as_ref()));
    Body::full(protobuf::seal(
        &resource.api_version(),
        &resource.list_kind,
        &message,
    ))
}

fn watch_response(
    api: Arc<Api>,
    resource: Arc<Resource>,
    watch: Watch,
    shape: Shape,
) -> Response<Body> {
    let content_type = match shape.wanted.format {
        Format::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Format::Json | Format::Yaml => "application/json",
    };
    let writer = EventWriter {
        api,
        resource,
        shape,
        first: true,
    };
    let ends = watch.ends();
    let events = Events {
        watch,
        writer,
        items: Vec::new().into_iter(),
    };
    let stream = futures_util::stream::unfold(events, async |mut events| {
        let chunk = events.next().await?;
        Some((chunk, events))
    });
    let body = Body::stream_until(stream, ends);
    with_type(StatusCode::OK, body, content_type)
}

/// The events of a watch, encoded while they are sent.
struct Events {
    watch: Watch,
    writer: EventWriter,
    /// Known and not yet encoded, in order.
    items: vec::IntoIter<WatchItem>,
}

impl Events {
    /// The next events, at least one; `None` when the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        if self.items.as_slice().is_empty() {
            let items = self.watch.next().await?;
            self.items = self.writer.converted(items).await.into_iter();
        }
        let size: usize = self.items.as_slice().iter().map(WatchItem::size_hint).sum();
        let mut chunk = BytesMut::with_capacity(size.min(EVENTS_MAX_BYTES));
        while let Some(item) = self.items.next() {
            self.writer.write(&item, &mut chunk);
            let next = self
                .items
                .as_slice()
                .first()
                .map_or(0, WatchItem::size_hint);
            let is_full = chunk.len() + next > EVENTS_MAX_BYTES;
            if is_full || self.writer.shape.one_event_per_chunk {
                break;
            }
        }
        Some(chunk.freeze())
    }
}

/// Writes events: a line each, or a frame each in protobuf.
struct EventWriter {
    api: Arc<Api>,
    resource: Arc<Resource>,
    shape: Shape,
    /// Whether no table was sent yet.
    first: bool,
}

impl EventWriter {
    /// The same events with objects in the version that is watched, if a webhook converts them.
    async fn converted(&self, items: Vec<WatchItem>) -> Vec<WatchItem> {
        let is_converted = self
            .resource
            .custom()
            .is_some_and(|custom| custom.conversion.is_some());
        if !is_converted {
            return items;
        }
        let mut converted = Vec::with_capacity(items.len());
        for item in items {
            let (change, object) = match &item {
                WatchItem::Shared(event) => (event.change, event.object.clone()),
                WatchItem::Changed(change, object) => (*change, object.clone()),
                WatchItem::Bookmark(..) | WatchItem::Error(_) => {
                    converted.push(item);
                    continue;
                }
            };
            let presented = conversion::present(&self.api, &self.resource, object).await;
            converted.push(match presented {
                Ok(object) => WatchItem::Changed(change, object),
                Err(error) => WatchItem::Error(error),
            });
        }
        converted
    }

    fn write(&mut self, item: &WatchItem, out: &mut BytesMut) {
        match item {
            WatchItem::Shared(event) => self.event(event.change, &event.object, out),
            WatchItem::Changed(change, object) => self.event(*change, object, out),
            WatchItem::Bookmark(revision, ends_initial) => {
                self.bookmark(*revision, *ends_initial, out)
            }
            WatchItem::Error(error) => self.value("ERROR", &error.to_status(), out),
        }
    }

    fn event(&mut self, change: Change, stored: &Stored, out: &mut BytesMut) {
        let name = match change {
            Change::Added => "ADDED",
            Change::Modified => "MODIFIED",
            Change::Deleted => "DELETED",
        };
        if self.shape.wanted.form == Form::Object {
            let encoded = self.resource.present(stored);
            return match self.shape.wanted.format {
                Format::Protobuf => protobuf::frame(name, &sealed(&self.resource, &encoded), out),
                Format::Json | Format::Yaml => line(name, encoded.bytes(), out),
            };
        }
        self.shaped(name, &self.resource.read(stored), out);
    }

    fn bookmark(&mut self, revision: u64, ends_initial: bool, out: &mut BytesMut) {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if ends_initial {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let mut map = Map::new();
        map.insert("kind".into(), self.resource.kind.clone().into());
        map.insert("apiVersion".into(), self.resource.api_version().into());
        map.insert("metadata".into(), metadata);
        if self.shape.wanted.form == Form::Object {
            return self.value("BOOKMARK", &Value::Object(map), out);
        }
        let object = Object::from_map(map).expect("written above");
        self.shaped("BOOKMARK", &object, out);
    }

    fn shaped(&mut self, name: &str, object: &Object, out: &mut BytesMut) {
        match shaped(&self.api, &self.resource, object, &self.shape, self.first) {
            Ok(value) => self.value(name, &value, out),
            Err(error) => self.value("ERROR", &error.to_status(), out),
        }
        self.first = false;
    }

    fn value(&self, name: &str, value: &Value, out: &mut BytesMut) {
        match self.shape.wanted.format {
            Format::Protobuf => {
                let bytes =
                    protobuf::encode(value).expect("a watch in protobuf is of kinds that have it");
                protobuf::frame(name, &bytes, out);
            }
            Format::Json | Format::Yaml => line(name, &to_bytes(value), out),
        }
    }
}

fn line(name: &str, object: &[u8], out: &mut BytesMut) {
    out.reserve(object.len() + 40);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
}
