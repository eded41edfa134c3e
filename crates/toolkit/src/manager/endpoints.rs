//! Endpoints: `/healthz`, `/readyz` and `/metrics` over plain HTTP.
//!
//! In: a listener. Out: responses.
//! Guarantees: those of [`serve_http`], with at most [`CONNECTIONS_MAX`] connections.

use std::net::SocketAddr;

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::health::Health;
use super::{ManagerError, ManagerOptions};
use crate::http_server::serve_http;
use crate::metrics::Metrics;

const CONNECTIONS_MAX: usize = 64;

const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The endpoints of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    metrics: bool,
    probes: bool,
}

/// The addresses to bind, and what each serves. One address may serve both.
pub(super) fn addresses(options: &ManagerOptions) -> Vec<(SocketAddr, Served)> {
    let metrics = options.metrics_bind_address;
    let probes = options.health_probe_bind_address;
    let both = metrics.is_some() && metrics == probes;
    let serve = |address: Option<SocketAddr>, served| address.map(|address| (address, served));
    match both {
        true => {
            let served = Served {
                metrics: true,
                probes: true,
            };
            serve(metrics, served).into_iter().collect()
        }
        false => {
            let only_metrics = Served {
                metrics: true,
                probes: false,
            };
            let only_probes = Served {
                metrics: false,
                probes: true,
            };
            let all = [serve(metrics, only_metrics), serve(probes, only_probes)];
            all.into_iter().flatten().collect()
        }
    }
}

/// Serves until `closing`. Open connections are dropped then.
pub(super) async fn serve(
    listener: TcpListener,
    served: Served,
    health: Health,
    metrics: Metrics,
    closing: CancellationToken,
) -> Result<(), ManagerError> {
    let respond = move |request: Request<Incoming>| {
        let path = request.uri().path();
        let response = respond(request.method(), path, served, &health, &metrics);
        std::future::ready(response)
    };
    serve_http(listener, CONNECTIONS_MAX, respond, closing).await;
    Ok(())
}

fn respond(
    method: &Method,
    path: &str,
    served: Served,
    health: &Health,
    metrics: &Metrics,
) -> Response<String> {
    let probe = |result: Result<String, String>| match result {
        Ok(text) => (StatusCode::OK, TEXT, text),
        Err(text) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, text),
    };
    let is_get = matches!(*method, Method::GET | Method::HEAD);
    let (status, content_type, body) = match path {
        "/healthz" | "/readyz" | "/metrics" if !is_get => (
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "only GET is allowed\n".into(),
        ),
        "/healthz" if served.probes => probe(health.healthz()),
        "/readyz" if served.probes => probe(health.readyz()),
        "/metrics" if served.metrics => (StatusCode::OK, OPEN_METRICS, metrics.encode()),
        _ => (StatusCode::NOT_FOUND, TEXT, "not found\n".into()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn paths_respond_as_probes_expect() {
        let health = Health::default();
        let metrics = Metrics::new();
        health.add_readyz(
            "informer-sync".into(),
            Arc::new(|| Err("not synced".into())),
        );
        let both = Served {
            metrics: true,
            probes: true,
        };
        let only_metrics = Served {
            metrics: true,
            probes: false,
        };
        for (method, path, served, status, text) in [
            (Method::GET, "/healthz", both, 200, "healthz check passed"),
            (
                Method::GET,
                "/readyz",
                both,
                500,
                "[-]informer-sync failed: not synced",
            ),
            (Method::GET, "/metrics", both, 200, "# EOF"),
            (Method::POST, "/metrics", both, 405, "only GET"),
            (Method::GET, "/", both, 404, "not found"),
            (Method::GET, "/readyz", only_metrics, 404, "not found"),
        ] {
            let response = respond(&method, path, served, &health, &metrics);
            assert_eq!(response.status().as_u16(), status, "{method} {path}");
            let body = response.body();
            assert!(body.contains(text), "{method} {path}: {body}");
        }
    }

    #[tokio::test]
    async fn one_address_may_serve_metrics_and_probes() {
        let address = Some(([127, 0, 0, 1], 0).into());
        let options = ManagerOptions {
            metrics_bind_address: address,
            health_probe_bind_address: address,
            ..ManagerOptions::default()
        };
        assert_eq!(addresses(&options).len(), 1);
    }
}
