//! Prometheus: one question, and the series that answer it.
//!
//! Holds: an answer takes ten seconds and a megabyte at most; whatever else comes back is an error in words.

use std::{collections::BTreeMap, time::Duration};

use http_body_util::{BodyExt as _, Limited};
use kube::{Client, Config, client::Body};
use serde::Deserialize;
use tokio::time::timeout;

/// How long Prometheus has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much of an answer is read.
const ANSWER_MAX: usize = 1 << 20;

/// The labels of one series.
pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Deserialize)]
struct Answer {
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

/// The series that a query finds.
///
/// # Errors
/// There is no answer, or none that can be read.
pub(crate) async fn ask(url: &str, query: &str) -> Result<Vec<Labels>, String> {
    timeout(PATIENCE, answer(url, query))
        .await
        .unwrap_or_else(|_| Err("it does not answer".into()))
}

async fn answer(url: &str, query: &str) -> Result<Vec<Labels>, String> {
    let url = url.parse().map_err(|_| "not a URL".to_owned())?;
    // Any HTTP server can be asked by a client without credentials.
    let client = Client::try_from(Config::new(url)).map_err(|error| error.to_string())?;
    let request =
        http::Request::get(format!("/api/v1/query?query={}", escaped(query))).body(Body::empty());
    let answer = client
        .send(request.map_err(|error| error.to_string())?)
        .await
        .map_err(|error| error.to_string())?;
    if !answer.status().is_success() {
        return Err(format!("it answers {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), ANSWER_MAX)
        .collect()
        .await
        .map_err(|error| error.to_string())?
        .to_bytes();
    let answer: Answer = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    Ok(answer
        .data
        .result
        .into_iter()
        .map(|series| series.metric)
        .collect())
}

/// A query as part of a URL.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
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

    /// A server that gives this answer once; its address, and the first line of what it was asked.
    pub(crate) async fn serve(
        status: &str,
        body: String,
    ) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("somebody asks");
            let mut text = Vec::new();
            while !text.windows(4).any(|end| end == b"\r\n\r\n") {
                stream.read_buf(&mut text).await.expect("a request");
            }
            // Who finds an answer too long hangs up.
            _ = stream.write_all(answer.as_bytes()).await;
            String::from_utf8_lossy(&text)
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        });
        (url, asked)
    }

    pub(crate) const TWO: &str = r#"{"status":"success","data":{"resultType":"vector","result":[
        {"metric":{"alertname":"DiskFull","node":"a"},"value":[1,"1"]},{"metric":{"instance":"b:9100"},"value":[1,"1"]}]}}"#;

    #[tokio::test]
    async fn query_is_asked_as_it_is_and_its_series_are_told() {
        let (url, asked) = serve("200 OK", TWO.into()).await;
        let found = ask(&url, r#"ALERTS{alertstate="firing"} > 0"#)
            .await
            .expect("an answer");
        let label = |place: usize, name: &str| found[place].get(name).map(String::as_str);
        assert_eq!(
            (
                label(0, "alertname"),
                label(0, "node"),
                label(1, "instance")
            ),
            (Some("DiskFull"), Some("a"), Some("b:9100"))
        );
        let line = asked.await.expect("it was asked");
        assert_eq!(
            line,
            "GET /api/v1/query?query=ALERTS%7Balertstate%3D%22firing%22%7D%20%3E%200 HTTP/1.1"
        );
    }

    #[tokio::test]
    async fn whatever_is_no_answer_is_an_error() {
        let none = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
        let (url, _asked) = serve("200 OK", none.into()).await;
        assert_eq!(
            ask(&url, "up").await,
            Ok(Vec::new()),
            "nothing found is an answer"
        );
        let huge = format!("{}{none}", " ".repeat(ANSWER_MAX));
        for (what, status, body) in [
            ("an error", "503 Service Unavailable", none.to_owned()),
            ("no JSON", "200 OK", "<html>".into()),
            ("too long", "200 OK", huge),
        ] {
            let (url, _asked) = serve(status, body).await;
            assert!(ask(&url, "up").await.is_err(), "{what}");
        }
        let closed = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port")
            .local_addr()
            .expect("an address");
        assert!(
            ask(&format!("http://{closed}"), "up").await.is_err(),
            "nobody listens"
        );
        assert_eq!(ask("http://a b", "up").await, Err("not a URL".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_an_error_too() {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", silent.local_addr().expect("an address"));
        assert_eq!(ask(&url, "up").await, Err("it does not answer".into()));
    }
}
