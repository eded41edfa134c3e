//! Service: from an HTTP request to the answer of a webhook.
//!
//! In: requests of the API server. Out: reviews with responses.
//! Guarantees: a body is bounded by [`BODY_BYTES_MAX`]; a handler has less time than the API server
//! waits; every request is counted under the path of its webhook.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::time::Instant;
use tower::Service;

use super::admission::{AdmissionHandler, Answer};
use super::conversion::Conversions;
use super::declaration::CONVERT_PATH;
use crate::error::BoxError;
use crate::metrics::{Metrics, WebhookMetrics};

/// The largest body of a review, as in controller-runtime: a request of 3 MiB, twice, and more.
const BODY_BYTES_MAX: usize = 7 * 1024 * 1024;

/// The time of a handler if the request has no `timeout`: the longest that the API allows.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// What the answer needs on its way: a tenth of the timeout, and this at most.
const MARGIN_MAX: Duration = Duration::from_millis(500);

/// The webhooks of a Manager as an HTTP service, without its server and certificates.
///
/// It is for tests of webhooks in the same process, and for servers of your own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use bellerophon::prelude::*;
/// use bellerophon::webhook::{FailurePolicy, Rejection, Review};
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use tower::ServiceExt;
///
/// fn check(_review: &Review<ConfigMap>, _map: &ConfigMap) -> Result<(), Rejection> {
///     Err(Rejection::denied("no ConfigMaps today"))
/// }
///
/// # let never = tower::service_fn(|_: http::Request<kube::client::Body>| {
/// #     std::future::pending::<Result<http::Response<String>, std::convert::Infallible>>()
/// # });
/// # let client = kube::Client::new(never, "default");
/// let mut mgr = Manager::new(client, ManagerOptions::default());
/// mgr.webhook::<ConfigMap>().validate(FailurePolicy::Fail, check);
///
/// let review = serde_json::json!({
///     "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
///     "request": {
///         "uid": "1", "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
///         "operation": "CREATE", "object": {"metadata": {"name": "settings"}},
///     },
/// });
/// let request = http::Request::post("/validate--v1-configmap?timeout=10s")
///     .header("content-type", "application/json")
///     .body(review.to_string())?;
/// let response = mgr.webhook_service().oneshot(request).await?;
/// assert_eq!(response.status(), 200);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct WebhookService(Arc<RwLock<Routes>>);

#[derive(Default)]
struct Routes {
    admission: BTreeMap<String, Arc<Route>>,
    conversions: Conversions,
    conversion_metrics: Option<Arc<WebhookMetrics>>,
}

struct Route {
    handler: AdmissionHandler,
    metrics: WebhookMetrics,
}

impl WebhookService {
    /// Adds a webhook; false if there is one with its path.
    pub(crate) fn add(&self, path: String, handler: AdmissionHandler, metrics: &Metrics) -> bool {
        let metrics = metrics.webhook(&path);
        let route = Arc::new(Route { handler, metrics });
        let mut routes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        routes.admission.insert(path, route).is_none()
    }

    /// Adds a conversion by a function; its result is returned.
    pub(crate) fn add_conversion(
        &self,
        metrics: &Metrics,
        add: impl FnOnce(&mut Conversions) -> bool,
    ) -> bool {
        let mut routes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        routes
            .conversion_metrics
            .get_or_insert_with(|| Arc::new(metrics.webhook(CONVERT_PATH)));
        add(&mut routes.conversions)
    }

    /// Answers one request.
    async fn respond<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body<Data: Send, Error: Into<BoxError>> + Send,
    {
        let path = cleaned(request.uri().path());
        let routes = || self.0.read().unwrap_or_else(PoisonError::into_inner);
        let route = routes().admission.get(&path).cloned();
        let conversion = match path == CONVERT_PATH {
            true => routes().conversion_metrics.clone(),
            false => None,
        };
        let started = Instant::now();
        match (route, conversion) {
            (Some(route), _) => {
                let _in_flight = route.metrics.begin();
                let deadline = deadline(request.uri().query());
                let answer = match body_of(request).await {
                    Ok(body) => route.handler.answer(&body, deadline).await,
                    Err(answer) => answer,
                };
                counted(&route.metrics, answer, started)
            }
            (None, Some(metrics)) => {
                let _in_flight = metrics.begin();
                let answer = match body_of(request).await {
                    Ok(body) => routes().conversions.answer(&body),
                    Err(answer) => answer,
                };
                counted(&metrics, answer, started)
            }
            (None, None) => {
                let message = format!("there is no webhook at {path}");
                response(Answer::error(StatusCode::NOT_FOUND, message, None))
            }
        }
    }
}

impl<B> Service<Request<B>> for WebhookService
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.respond(request).await) })
    }
}

impl fmt::Debug for WebhookService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_tuple("WebhookService")
            .field(&routes.admission.keys())
            .finish()
    }
}

/// The body of a review.
async fn body_of<B>(request: Request<B>) -> Result<Bytes, Answer>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send,
{
    let refused = |status, message: String| Answer::error(status, message, None);
    if request.method() != Method::POST {
        let message = "only POST is allowed".to_owned();
        return Err(refused(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let content_type = content_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let message = format!("contentType={content_type}, expected application/json");
        return Err(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX);
    match body.collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("a review has {BODY_BYTES_MAX} bytes at most");
            Err(refused(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        Err(error) => {
            let message = format!("cannot read the review: {error}");
            Err(refused(StatusCode::BAD_REQUEST, message))
        }
    }
}

fn counted(metrics: &WebhookMetrics, answer: Answer, started: Instant) -> Response<Full<Bytes>> {
    if answer.is_panic {
        metrics.panics.inc();
    }
    metrics.answered(answer.status.as_u16(), started.elapsed());
    response(answer)
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(answer.body.into()));
    *response.status_mut() = answer.status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// A path without empty segments: some clients of the API register `//validate`.
fn cleaned(path: &str) -> String {
    let segments = path.split('/').filter(|segment| !segment.is_empty());
    segments.fold(String::with_capacity(path.len()), |cleaned, segment| {
        cleaned + "/" + segment
    })
}

/// How long a handler may take: the `timeout` of the request, less what the answer needs.
fn deadline(query: Option<&str>) -> Duration {
    let mut parameters = query.unwrap_or_default().split('&');
    let timeout = parameters.find_map(|parameter| parameter.strip_prefix("timeout="));
    let timeout = timeout.and_then(parse_duration).unwrap_or(TIMEOUT_MAX);
    let timeout = timeout.min(TIMEOUT_MAX);
    timeout - (timeout / 10).min(MARGIN_MAX)
}

/// Parses a duration as Go prints it: `10s`, `1m30s`, `2.5s`, `750ms`.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let unit_start = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(unit_start);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let part = number.parse::<f64>().ok()? * seconds;
        total = total.checked_add(Duration::try_from_secs_f64(part).ok()?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_have_less_time_than_the_api_server_waits() {
        for (query, milliseconds) in [
            (None, 29_500),
            (Some("timeout=10s"), 9_500),
            (Some("a=b&timeout=1s"), 900),
            (Some("timeout=1m30s"), 29_500),
            (Some("timeout=2.5s"), 2_250),
            (Some("timeout=750ms"), 675),
            (Some("timeout=soon"), 29_500),
            (Some("timeout="), 29_500),
            (Some("timeout=99999999999999999999h"), 29_500),
        ] {
            assert_eq!(
                deadline(query),
                Duration::from_millis(milliseconds),
                "{query:?}"
            );
        }
    }

    #[test]
    fn empty_segments_of_paths_are_ignored() {
        for (path, expected) in [("//validate", "/validate"), ("/a//b/", "/a/b"), ("/", "")] {
            assert_eq!(cleaned(path), expected);
        }
    }
}
