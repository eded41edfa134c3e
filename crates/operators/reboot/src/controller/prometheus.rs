//! Instant queries to Prometheus.
//!
//! Guarantee: a query takes at most ten seconds, and its response has at most 1 MiB.

use std::{collections::BTreeMap, time::Duration};

use http_body_util::{BodyExt as _, Limited};
use kube::{Client, Config, client::Body};
use serde::Deserialize;
use tokio::time::timeout;

/// The timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of a response.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// The labels of one series.
pub(crate) type Labels = BTreeMap<String, String>;

/// The response of `/api/v1/query`.
#[derive(Deserialize)]
struct QueryResponse {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    metric: Labels,
}

/// The labels of all series in the result of an instant query.
///
/// # Errors
/// The request fails or times out, or the response is invalid.
pub(crate) async fn query(url: &str, query: &str) -> Result<Vec<Labels>, String> {
    timeout(QUERY_TIMEOUT, send(url, query))
        .await
        .unwrap_or_else(|_| Err("the query timed out".into()))
}

async fn send(url: &str, query: &str) -> Result<Vec<Labels>, String> {
    let url = url.parse().map_err(|_| "not a URL".to_owned())?;
    // Without credentials, the Kubernetes client is a plain HTTP client.
    let client = Client::try_from(Config::new(url)).map_err(|error| error.to_string())?;
    let request = http::Request::get(format!("/api/v1/query?query={}", percent_encode(query)))
        .body(Body::empty());
    let response = client
        .send(request.map_err(|error| error.to_string())?)
        .await
        .map_err(|error| error.to_string())?;
    if !response.status().is_success() {
        return Err(format!("the response is {}", response.status()));
    }
    // The URL is a user's, so the size of what it returns is not trusted.
    let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| error.to_string())?
        .to_bytes();
    let response: QueryResponse =
        serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    let series = response.data.result.into_iter();
    Ok(series.map(|series| series.metric).collect())
}

/// Percent-encodes all but unreserved characters of a query parameter.
fn percent_encode(text: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if is_unreserved(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// A server that sends this response once. Returns its URL, and the request line it received.
    pub(crate) async fn serve(
        status: &str,
        body: String,
    ) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let response = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let request = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut text = Vec::new();
            while !text.windows(4).any(|end| end == b"\r\n\r\n") {
                stream.read_buf(&mut text).await.expect("a request");
            }
            // A client closes the connection of a response that is too long.
            _ = stream.write_all(response.as_bytes()).await;
            String::from_utf8_lossy(&text)
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        });
        (url, request)
    }

    pub(crate) const TWO_SERIES: &str = r#"{
        "status": "success",
        "data": {"resultType": "vector", "result": [
            {"metric": {"alertname": "DiskFull", "node": "a"}, "value": [1, "1"]},
            {"metric": {"instance": "b:9100"}, "value": [1, "1"]}
        ]}
    }"#;

    #[tokio::test]
    async fn query_is_encoded_and_returns_labels() {
        let (url, request) = serve("200 OK", TWO_SERIES.into()).await;
        let series = query(&url, r#"ALERTS{alertstate="firing"} > 0"#)
            .await
            .expect("a result");
        assert_eq!(series[0]["alertname"], "DiskFull");
        assert_eq!(series[0]["node"], "a");
        assert_eq!(series[1]["instance"], "b:9100");
        let request_line = request.await.expect("a request");
        assert_eq!(
            request_line,
            "GET /api/v1/query?query=ALERTS%7Balertstate%3D%22firing%22%7D%20%3E%200 HTTP/1.1"
        );
    }

    #[tokio::test]
    async fn failed_requests_and_invalid_responses_are_errors() {
        let empty = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
        let (url, _request) = serve("200 OK", empty.into()).await;
        assert_eq!(query(&url, "up").await, Ok(Vec::new()));
        let too_long = format!("{}{empty}", " ".repeat(RESPONSE_BYTES_MAX));
        for (what, status, body) in [
            ("an error", "503 Service Unavailable", empty.to_owned()),
            ("no JSON", "200 OK", "<html>".into()),
            ("too long", "200 OK", too_long),
        ] {
            let (url, _request) = serve(status, body).await;
            assert!(query(&url, "up").await.is_err(), "{what}");
        }
        let closed = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port")
            .local_addr()
            .expect("an address");
        let refused = query(&format!("http://{closed}"), "up").await;
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(query("http://a b", "up").await, Err("not a URL".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn missing_response_is_a_timeout() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", silent.local_addr().expect("an address"));
        assert_eq!(query(&url, "up").await, Err("the query timed out".into()));
    }
}
