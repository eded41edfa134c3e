//! Paths to responses.
//!
//! In: requests that passed the [guard](super::guard). Out: assets, JSON, or a stream of events.
//! Guarantees: every response has the same security headers; every data path needs the token.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::TextEndpoint;
use super::act::{ACTION_MAX_BYTES, Action, Actor};
use super::assets;
use super::guard::Guard;
use super::query::Query;
use super::stream::frames;
use crate::diff;
use crate::object_log::LoggedVersion;
use crate::source::Source;

/// What a browser may load: only files of this server, and nothing inline.
pub(super) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; \
    style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of every response.
const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// The records that a page reads when it is opened, if it requests no others.
const TAIL: u64 = 20_000;

/// The changes of a diff: more are not read by anyone.
const CHANGES_MAX: usize = 500;

/// The time in which the body of an action has to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What is served.
pub(super) struct Routes {
    pub(super) guard: Guard,
    pub(super) source: Source,
    pub(super) actor: Option<Arc<dyn Actor>>,
    pub(super) endpoint: Option<(&'static str, TextEndpoint)>,
}

impl Routes {
    /// The response to a request.
    pub(super) async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let mut response = match self.route(request).await {
            Ok(response) => response,
            Err(status) => plain(status),
        };
        for (name, value) in HEADERS {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<Body>, StatusCode> {
        let headers = request.headers();
        self.guard.check_site(headers)?;
        let path = request.uri().path();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if let Some((_, endpoint)) = self.endpoint.as_ref().filter(|(own, _)| *own == path) {
            self.guard.check_token(headers)?;
            return match is_read {
                true => Ok(text(endpoint(request.uri().query().unwrap_or_default()))),
                false => Err(StatusCode::METHOD_NOT_ALLOWED),
            };
        }
        if !path.starts_with("/api/") {
            return match (is_read, assets::find(path)) {
                (false, _) => Err(StatusCode::METHOD_NOT_ALLOWED),
                (true, Some(asset)) => Ok(content(asset.media_type, asset.bytes.into())),
                (true, None) => Err(StatusCode::NOT_FOUND),
            };
        }
        self.guard.check_token(headers)?;
        if path == "/api/act" {
            return match *request.method() {
                Method::POST => self.act(request).await,
                _ => Err(StatusCode::METHOD_NOT_ALLOWED),
            };
        }
        if !is_read {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let query = Query::parse(request.uri().query());
        match path {
            "/api/info" => Ok(json_response(&self.info())),
            "/api/stream" => Ok(self.stream(&query)),
            "/api/trace" => Ok(self.trace(&query)),
            "/api/objects" => {
                let existing = self.source.existing(&query.filter());
                Ok(content("application/json", existing.into()))
            }
            "/api/diff" => self.diff(&query),
            "/api/object" => self.object(&query),
            _ => Err(StatusCode::NOT_FOUND),
        }
    }

    fn info(&self) -> Value {
        let actor = self.actor.as_ref();
        let (mode, file) = match &self.source {
            Source::Live(_) => ("live", None),
            Source::Replay(replay) => ("replay", Some(&replay.name)),
        };
        json!({
            "format": crate::line::HEADER_FORMAT,
            "version": crate::line::HEADER_VERSION,
            "mode": mode,
            "file": file,
            "diffs": self.source.objects().is_some() || mode == "replay",
            "act": actor.map(|actor| json!({
                "samples": actor.samples(), "nodes": actor.nodes(), "watched": actor.watched(),
            })),
        })
    }

    /// The sequence number that a request continues after.
    fn start(&self, query: &Query) -> u64 {
        query
            .number("since")
            .unwrap_or_else(|| self.source.tail(query.number("tail").unwrap_or(TAIL)))
    }

    fn stream(&self, query: &Query) -> Response<Body> {
        let frames = frames(self.source.clone(), self.start(query), query.filter());
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        set_type(&mut response, "text/event-stream");
        response
    }

    /// The records that exist now, as lines.
    fn trace(&self, query: &Query) -> Response<Body> {
        let source = self.source.clone();
        let filter = query.filter();
        let lines = stream::unfold(Some(self.start(query)), move |since| {
            let batch = since.map(|since| source.since(since, &filter));
            let next = batch.map(|batch| {
                let mut text = String::new();
                for line in &batch.lines {
                    text.push_str(line);
                    text.push('\n');
                }
                if !batch.has_more {
                    // Records of some types are left out, so the last line is not always the last
                    // record.
                    let end = json!({ "seq": batch.last, "type": "end" });
                    text.push_str(&format!("{end}\n"));
                }
                (text, batch.has_more.then_some(batch.last))
            });
            async move { next }
        });
        let lines = lines.map(|text| Ok(Frame::data(Bytes::from(text))));
        let mut response = Response::new(StreamBody::new(lines).boxed_unsync());
        set_type(&mut response, "application/x-ndjson");
        response
    }

    fn logged(&self, version: u64) -> Result<Arc<LoggedVersion>, StatusCode> {
        let objects = self.source.objects().ok_or(StatusCode::NOT_FOUND)?;
        // Gone, and not unknown: the page shows the oldest version that is kept.
        objects.get(version).ok_or(StatusCode::GONE)
    }

    /// All changes of a write.
    fn diff(&self, query: &Query) -> Result<Response<Body>, StatusCode> {
        let version = query.number("version").ok_or(StatusCode::BAD_REQUEST)?;
        let logged = match self.logged(version) {
            Err(StatusCode::GONE) => return Ok(self.forgotten(version)),
            logged => logged?,
        };
        if !logged.has_before() {
            return Ok(self.forgotten(logged.write.previous_version.unwrap_or(version)));
        }
        let (before, after) = logged.states();
        let mut changes = before.map_or_else(Vec::new, |before| diff::changes(&before, &after));
        let total = changes.len();
        changes.truncate(CHANGES_MAX);
        Ok(json_response(&json!({
            "kind": &*logged.write.attributes.kind,
            "version": version,
            "previous": logged.write.previous_version,
            "changes": changes,
            "more": total - changes.len(),
        })))
    }

    fn forgotten(&self, version: u64) -> Response<Body> {
        let oldest = self.source.objects().and_then(|objects| objects.oldest());
        let mut response = json_response(&json!({ "forgotten": version, "oldest": oldest }));
        *response.status_mut() = StatusCode::GONE;
        response
    }

    /// An object at a version, or its newest one.
    fn object(&self, query: &Query) -> Result<Response<Body>, StatusCode> {
        let object = match query.number("version") {
            Some(version) => self.logged(version)?.states().1,
            None => {
                let kind = query.get("kind").ok_or(StatusCode::BAD_REQUEST)?;
                let key = query.key().ok_or(StatusCode::BAD_REQUEST)?;
                let newest = self.source.newest(kind, &key);
                newest.ok_or(StatusCode::NOT_FOUND)?
            }
        };
        Ok(json_response(object.value()))
    }

    async fn act(&self, request: Request<Incoming>) -> Result<Response<Body>, StatusCode> {
        let actor = self.actor.as_ref().ok_or(StatusCode::FORBIDDEN)?;
        let body = Limited::new(request.into_body(), ACTION_MAX_BYTES).collect();
        let body = timeout(BODY_TIMEOUT, body)
            .await
            .map_err(|_| StatusCode::REQUEST_TIMEOUT)?
            .map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
        let action: Action =
            serde_json::from_slice(&body.to_bytes()).map_err(|_| StatusCode::BAD_REQUEST)?;
        tracing::info!(?action, "the page acts");
        Ok(json_response(&match actor.act(action).await {
            Ok(done) => json!({ "done": done }),
            Err(error) => json!({ "error": error.to_string() }),
        }))
    }
}

fn text(chunks: BoxStream<'static, Bytes>) -> Response<Body> {
    let chunks = chunks.map(|chunk| Ok(Frame::data(chunk)));
    let mut response = Response::new(StreamBody::new(chunks).boxed_unsync());
    set_type(&mut response, "text/plain; charset=utf-8");
    response
}

fn content(media_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(bytes).boxed_unsync());
    set_type(&mut response, media_type);
    response
}

fn json_response(value: &Value) -> Response<Body> {
    content("application/json", value.to_string().into())
}

fn plain(status: StatusCode) -> Response<Body> {
    let text = match status {
        StatusCode::UNAUTHORIZED => "open the URL that bellerophon printed; it has the token",
        StatusCode::FORBIDDEN => "the request came from another site or needs --page-may-act",
        _ => status.canonical_reason().unwrap_or_default(),
    };
    let mut response = content("text/plain; charset=utf-8", text.into());
    *response.status_mut() = status;
    response
}

fn set_type(response: &mut Response<Body>, media_type: &'static str) {
    let media_type = HeaderValue::from_static(media_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
}
