//! `rest_client_*`: what the API server answered, and how soon.
//!
//! In: requests of a client. Out: the same requests, counted by answer, method and host, and timed up to the answer's head.
//! Holds: a request without an answer is counted as `<error>`, as client-go does; nothing is changed or held back.

use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, Service};

use super::Metrics;

/// Counts requests on their way through; as a layer it wraps a client's service.
#[derive(Clone, Debug)]
pub struct CountRequests<S> {
    inner: S,
    metrics: Metrics,
}

impl<S> CountRequests<S> {
    pub(super) fn new(inner: S, metrics: Metrics) -> Self {
        Self { inner, metrics }
    }
}

impl<S> Layer<S> for CountRequests<()> {
    type Service = CountRequests<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CountRequests::new(inner, self.metrics.clone())
    }
}

impl<S, A, B> Service<Request<A>> for CountRequests<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (metrics, method, began) = (
            self.metrics.clone(),
            request.method().clone(),
            Instant::now(),
        );
        let host = request
            .uri()
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default();
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or("<error>".into(), |answer| {
                answer.status().as_str().to_string()
            });
            metrics.count_request(&code, method.as_str(), &host, began.elapsed());
            answer
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use bellerophon_apiserver::ApiServer;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, client::ClientBuilder};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_their_answer() {
        let (server, metrics) = (
            ApiServer::builder().seed(1).start().await.unwrap(),
            Metrics::new(),
        );
        let client = ClientBuilder::new(server.service(), "default")
            .with_layer(&metrics.client_layer())
            .build();
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        maps.list(&Default::default()).await.unwrap();
        assert!(maps.get_opt("nobody").await.unwrap().is_none());
        let page = metrics.page();
        for code in ["200", "404"] {
            let line =
                format!(r#"rest_client_requests_total{{code="{code}",host="",method="GET"}} 1"#);
            assert!(
                page.lines().any(|found| found == line),
                "no line {line} in\n{page}"
            );
        }
    }
}
