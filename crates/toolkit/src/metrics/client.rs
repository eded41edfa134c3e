//! `rest_client_*`: requests to the API server by status code, and their latency.
//!
//! In: requests of a client. Out: the same requests, counted by code, method and host, and timed
//! until the response headers.
//! Guarantees: a request without a response is counted with code `<error>`, as in client-go;
//! requests and responses pass unchanged.

use http::header::USER_AGENT;
use http::{HeaderValue, Request};
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;

use super::Metrics;

/// The same client, whose requests are counted. `host` is the label of requests without one.
pub(crate) fn counted(client: Client, metrics: &Metrics, host: String) -> Client {
    let namespace = client.default_namespace().to_owned();
    let metrics = metrics.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let metrics = metrics.clone();
        let method = request.method().clone();
        let authority = request.uri().authority().map(ToString::to_string);
        let host = authority.unwrap_or_else(|| host.clone());
        async move {
            let began = Instant::now();
            let response = client.send(request).await;
            // Mirrors the `<error>` code of client-go's updateRequestResultMetric.
            let code = match &response {
                Ok(response) => response.status().as_str().to_owned(),
                Err(_) => "<error>".to_owned(),
            };
            metrics.count_request(&code, method.as_str(), &host, began.elapsed());
            response
        }
    });
    Client::new(service, namespace)
}

/// The same client with another user agent.
pub(crate) fn with_user_agent(client: &Client, agent: &str) -> Client {
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let agent = HeaderValue::from_str(agent).ok();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        if let Some(agent) = &agent {
            request.headers_mut().insert(USER_AGENT, agent.clone());
        }
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use bellerophon_apiserver::ApiServer;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_status_code() {
        let server = ApiServer::builder().seed(1).start().await.unwrap();
        let metrics = Metrics::new();
        let client = counted(server.client(), &metrics, "10.0.0.1:6443".to_owned());
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        maps.list(&Default::default()).await.unwrap();
        assert!(maps.get_opt("missing").await.unwrap().is_none());
        let text = metrics.encode();
        for code in ["200", "404"] {
            let labels = format!(r#"code="{code}",host="10.0.0.1:6443",method="GET""#);
            let line = format!("rest_client_requests_total{{{labels}}} 1");
            assert!(
                text.lines().any(|found| found == line),
                "no line {line} in\n{text}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_without_a_response_is_counted_as_error() {
        let unreachable = tower::service_fn(async |_: Request<Body>| {
            Err::<http::Response<Body>, _>(std::io::Error::other("connection refused"))
        });
        let metrics = Metrics::new();
        let client = Client::new(unreachable, "default");
        let client = counted(client, &metrics, "10.0.0.1:6443".to_owned());
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        assert!(maps.get("settings").await.is_err());
        let text = metrics.encode();
        let labels = r#"code="<error>",host="10.0.0.1:6443",method="GET""#;
        let line = format!("rest_client_requests_total{{{labels}}} 1");
        assert!(
            text.lines().any(|found| found == line),
            "no line {line} in\n{text}"
        );
    }
}
