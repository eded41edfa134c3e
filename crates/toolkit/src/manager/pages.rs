//! Pages: `/healthz`, `/readyz` and `/metrics` over plain HTTP.
//!
//! In: a listener. Out: answers.
//! Holds: at most [`CONNECTIONS_MAX`] connections at once, further ones wait to be accepted; a connection that says
//! nothing for [`HEADER_TIME_MAX`] is closed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ManagerError;
use super::health::Health;
use crate::Metrics;

const CONNECTIONS_MAX: usize = 64;
const HEADER_TIME_MAX: Duration = Duration::from_secs(10);

const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until told to close. Open connections are dropped then.
pub(super) async fn serve(
    listener: TcpListener,
    health: Health,
    metrics: Metrics,
    closing: CancellationToken,
) -> Result<(), ManagerError> {
    let (mut connections, room) = (JoinSet::new(), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    let accepting = async {
        loop {
            let Ok(place) = room.clone().acquire_owned().await else {
                return;
            };
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (health, metrics) = (health.clone(), metrics.clone());
                    connections.spawn(async move {
                        let answer = service_fn(move |request: Request<Incoming>| {
                            let answer =
                                answer(request.method(), request.uri().path(), &health, &metrics);
                            async { Ok::<_, Infallible>(answer) }
                        });
                        let connection = http1::Builder::new()
                            .timer(TokioTimer::new())
                            .header_read_timeout(HEADER_TIME_MAX)
                            .serve_connection(TokioIo::new(stream), answer);
                        if let Err(error) = connection.await {
                            tracing::debug!(%error, "a connection to the pages broke");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the pages");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    };
    closing.run_until_cancelled(accepting).await;
    connections.shutdown().await;
    Ok(())
}

fn answer(method: &Method, path: &str, health: &Health, metrics: &Metrics) -> Response<String> {
    let (status, kind, body) = match (method, path) {
        (&Method::GET | &Method::HEAD, "/healthz") => (StatusCode::OK, TEXT, "ok".to_string()),
        (&Method::GET | &Method::HEAD, "/readyz") => match health.readiness() {
            Ok(page) => (StatusCode::OK, TEXT, page),
            Err(page) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, page),
        },
        (&Method::GET | &Method::HEAD, "/metrics") => {
            (StatusCode::OK, OPEN_METRICS, metrics.page())
        }
        (_, "/healthz" | "/readyz" | "/metrics") => (
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "only GET is served here\n".into(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            TEXT,
            "not found; served are /healthz, /readyz and /metrics\n".into(),
        ),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::Check;

    #[test]
    fn paths_answer_as_probes_expect() {
        let (health, metrics) = (Health::default(), Metrics::new());
        health.require(Check::new("cache pods", || Err("not synced".into())));
        for (method, path, status, words) in [
            (Method::GET, "/healthz", 200, "ok"),
            (
                Method::GET,
                "/readyz",
                500,
                "[-]cache pods failed: not synced",
            ),
            (Method::GET, "/metrics", 200, "# EOF"),
            (Method::POST, "/metrics", 405, "only GET"),
            (Method::GET, "/", 404, "not found"),
        ] {
            let answer = answer(&method, path, &health, &metrics);
            assert_eq!(answer.status().as_u16(), status, "{method} {path}");
            assert!(
                answer.body().contains(words),
                "{method} {path}: {}",
                answer.body()
            );
        }
    }
}
