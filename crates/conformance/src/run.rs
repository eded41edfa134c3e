//! One scenario against one server.
//! Input: a scenario, a transport, a suffix that makes its names unique. Output: a response for each
//! step.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use indexmap::IndexMap;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    answer::{Names, answer, body_of, collected, headers_of, opened},
    json::Json,
    scenario::{Action, RequestStep, Scenario, Step, Until},
    template::Values,
    transport::{Reply, Transport, TransportError},
    watch::{Timeouts, Watch},
};

/// How a replay runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Scenarios that run at the same time, among those that do not reach beyond their own names.
    pub concurrency: usize,
    /// How long a watch is read after its last expected event, for unexpected ones.
    pub settle: Duration,
    /// Between two attempts of a step that is repeated.
    pub poll: Duration,
    /// For all attempts of a step that is repeated.
    pub poll_max: Duration,
    /// What sets the names of this run apart from those of another on the same server.
    pub stamp: String,
    /// Keys left out of the comparison wherever they are.
    pub without: Vec<String>,
}

impl Options {
    /// For a fresh server in this process or on this machine, which needs no time to settle.
    pub fn nearby() -> Self {
        Self {
            concurrency: 16,
            settle: Duration::from_millis(20),
            poll: Duration::from_millis(5),
            poll_max: Duration::from_secs(2),
            stamp: "5e1f7e57".to_owned(),
            without: Vec::new(),
        }
    }

    /// For another server, with the timeouts of the recordings. `stamp` must be new on that server.
    pub fn foreign(stamp: String) -> Self {
        Self {
            concurrency: 4,
            settle: Duration::from_millis(150),
            poll: Duration::from_millis(100),
            poll_max: Duration::from_secs(10),
            stamp,
            without: Vec::new(),
        }
    }
}

/// For the answer to a single request, body included.
const ANSWER_MAX: Duration = Duration::from_secs(30);

type Headers = IndexMap<String, Option<String>>;

struct Run<'a, T> {
    transport: &'a T,
    options: &'a Options,
    values: Values,
    names: Names,
    watches: HashMap<String, Watch>,
}

/// Runs a scenario; `id` must be unique on this server.
///
/// # Errors
/// A server that cannot be reached, or on which the namespace cannot be created.
pub(crate) async fn run<T: Transport>(
    transport: &T,
    scenario: &Scenario,
    id: &str,
    options: &Options,
) -> Result<Vec<Json>, TransportError> {
    let namespace = format!("v{id}");
    let values = Values::new(&namespace, id);
    let names = Names::new(&namespace, id);
    let mut run = Run {
        transport,
        options,
        values,
        names,
        watches: HashMap::new(),
    };
    if !scenario.no_namespace {
        run.set_up("/api/v1/namespaces", "Namespace", &namespace)
            .await?;
        run.set_up(
            &format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            "ServiceAccount",
            "default",
        )
        .await?;
    }
    let mut answers = Vec::with_capacity(scenario.steps.len());
    for step in &scenario.steps {
        answers.push(run.step(step).await?);
    }
    Ok(answers)
}

impl<T: Transport> Run<'_, T> {
    async fn set_up(&self, path: &str, kind: &str, name: &str) -> Result<(), TransportError> {
        let metadata = Json::map([("name", Json::text(name))]);
        let object = Json::map([
            ("apiVersion", Json::text("v1")),
            ("kind", Json::text(kind)),
            ("metadata", metadata),
        ]);
        let headers = Headers::from([(
            "Content-Type".to_owned(),
            Some("application/json".to_owned()),
        )]);
        let (status, ..) =
            whole(self.send("POST", path, &headers, Bytes::from(object.to_string()))).await?;
        match status {
            StatusCode::CREATED | StatusCode::CONFLICT => Ok(()),
            status => Err(TransportError(format!(
                "setting up: POST {path} gave {}",
                status.as_u16()
            ))),
        }
    }

    async fn step(&mut self, step: &Step) -> Result<Json, TransportError> {
        let fill = |value: &Option<String>| value.as_deref().map(|text| self.values.fill(text));
        let headers: Headers = step
            .headers
            .iter()
            .map(|(name, value)| (self.values.fill(name), fill(value)))
            .collect();
        match &step.action {
            Action::Request(request) => self.request(request, headers).await,
            Action::Watch { name, path } => {
                let path = self.values.fill_path(path);
                let reply = timeout(ANSWER_MAX, self.send("GET", &path, &headers, Bytes::new()))
                    .await
                    .map_err(|_| silent())??;
                let watch = Watch::start(reply);
                let answer = opened(watch.status);
                self.watches.insert(name.clone(), watch);
                Ok(answer)
            }
            Action::Collect {
                name,
                events,
                seconds,
                ended,
            } => {
                let timeouts = Timeouts {
                    events: Duration::from_secs_f64(*seconds),
                    settle: self.options.settle,
                };
                self.collect(name, *events, timeouts, *ended).await
            }
        }
    }

    async fn collect(
        &mut self,
        name: &str,
        events: usize,
        timeouts: Timeouts,
        report_end: bool,
    ) -> Result<Json, TransportError> {
        let watch = self
            .watches
            .get_mut(name)
            .ok_or_else(|| TransportError(format!("the scenario opened no watch {name:?}")))?;
        let (events, ended) = watch.collect(events, timeouts).await;
        let mut answer = collected(watch.status, events, &mut self.names);
        if let (true, Json::Map(map)) = (report_end, &mut answer) {
            map.insert("ended".to_owned(), Json::Bool(ended));
        }
        Ok(answer)
    }

    async fn request(
        &mut self,
        request: &RequestStep,
        mut headers: Headers,
    ) -> Result<Json, TransportError> {
        let path = self.values.fill_path(&request.path);
        let body = self.body(request)?;
        if body.is_some() {
            headers
                .entry("Content-Type".to_owned())
                .or_insert_with(|| Some(request.content_type.clone()));
        }
        let body = body.unwrap_or_default();
        let deadline = Instant::now() + self.options.poll_max;
        let (status, raw, kept, got) = loop {
            let (status, raw, bytes) =
                whole(self.send(&request.method, &path, &headers, body.clone())).await?;
            // Every attempt is named, so that a name does not depend on how many there were.
            let kept = headers_of(&raw, &mut self.names);
            let got = body_of(&bytes);
            if request
                .repeat_until
                .as_ref()
                .is_none_or(|until| is_met(until, &got))
                || Instant::now() > deadline
            {
                break (status, raw, kept, got);
            }
            sleep(self.options.poll).await;
        };
        for (name, path) in &request.save {
            self.values.save(name, got.at(path).cloned());
        }
        for (name, header) in &request.save_header {
            let value = raw
                .get(header)
                .map(|value| Json::text(String::from_utf8_lossy(value.as_bytes())));
            self.values.save(name, value);
        }
        Ok(answer(status, kept, got, &mut self.names))
    }

    fn body(&self, request: &RequestStep) -> Result<Option<Bytes>, TransportError> {
        let Some(body) = &request.body else {
            return Ok(None);
        };
        let mut body = self.values.fill_json(body);
        if let Some(big) = &request.big {
            let (parent, leaf) = big.path.rsplit_once('.').unwrap_or(("", &big.path));
            let place = if parent.is_empty() {
                Some(&mut body)
            } else {
                body.at_mut(parent)
            };
            let Some(Json::Map(map)) = place else {
                return Err(TransportError(format!(
                    "the body has no object at {parent:?} to make big"
                )));
            };
            map.insert(leaf.to_owned(), Json::Text("x".repeat(big.bytes)));
        }
        Ok(Some(match body {
            Json::Text(text) => Bytes::from(text),
            body => Bytes::from(body.to_string()),
        }))
    }

    /// Sends a request; a header of the scenario replaces the usual one, and null leaves it out.
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &Headers,
        body: Bytes,
    ) -> Result<Reply, TransportError> {
        let mut all = Headers::from([
            ("Accept".to_owned(), Some("application/json".to_owned())),
            ("Accept-Encoding".to_owned(), Some("identity".to_owned())),
            ("User-Agent".to_owned(), Some("replay/1".to_owned())),
            (
                "Authorization".to_owned(),
                self.transport
                    .token()
                    .map(|token| format!("Bearer {token}")),
            ),
        ]);
        all.extend(headers.clone());
        let unsendable = |e: http::Error| {
            TransportError::new(&format!("cannot make a request {method} {path}"), e)
        };
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).map_err(|e| unsendable(e.into()))?)
            .uri(path)
            .body(body)
            .map_err(unsendable)?;
        for (name, value) in all
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
        {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|e| unsendable(e.into()))?;
            request.headers_mut().append(
                name,
                HeaderValue::from_bytes(value.as_bytes()).map_err(|e| unsendable(e.into()))?,
            );
        }
        // A service in this process has no connection, so the host that a connection would add is
        // set here.
        request
            .headers_mut()
            .entry(header::HOST)
            .or_insert(HeaderValue::from_static("localhost"));
        self.transport.send(request).await
    }
}

/// An answer with all of its body.
async fn whole(
    reply: impl Future<Output = Result<Reply, TransportError>>,
) -> Result<(StatusCode, HeaderMap, Bytes), TransportError> {
    let collected = async {
        let (head, body) = reply.await?.into_parts();
        Ok((head.status, head.headers, body.collect().await?.to_bytes()))
    };
    timeout(ANSWER_MAX, collected).await.map_err(|_| silent())?
}

fn silent() -> TransportError {
    TransportError(format!("no answer within {} s", ANSWER_MAX.as_secs()))
}

fn is_met(until: &Until, got: &Json) -> bool {
    match got.at(&until.path) {
        Some(value) => value.unquoted() == until.value.unquoted(),
        None => matches!(until.value, Json::Null),
    }
}
