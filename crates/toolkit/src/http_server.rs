//! A small HTTP/1.1 server: of the Manager's endpoints, and of runnables.
//!
//! In: a listener and a handler. Out: responses.
//! Guarantees: the number of connections is bounded, further clients wait in the backlog of the
//! kernel; a connection that sends no header within [`HEADER_TIMEOUT`] is closed.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Most often the process is out of file descriptors, and an immediate retry would only spin.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// Serves HTTP/1.1 without TLS until `stop`, on at most `connections_max` connections. Open
/// connections are dropped then: a client that keeps one open does not delay the end of the process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use bellerophon::manager::serve_http;
/// use tokio_util::sync::CancellationToken;
///
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let stop = CancellationToken::new();
/// # stop.cancel();
/// serve_http(listener, 64, |_request| async { http::Response::new("hello\n".to_owned()) }, stop).await;
/// # Ok(())
/// # }
/// ```
pub async fn serve_http<F, B>(
    listener: TcpListener,
    connections_max: usize,
    respond: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    stop: CancellationToken,
) where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>, Data: Send> + Send + 'static,
{
    let serve = move |stream| {
        let respond = respond.clone();
        async move {
            let service = service_fn(move |request| {
                let response = respond(request);
                async move { Ok::<_, Infallible>(response.await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection failed");
            }
        }
    };
    let mut connections = accept(listener, connections_max, serve, &stop).await;
    connections.shutdown().await;
}

/// Accepts connections until `stop`, at most `connections_max` at a time, and serves each in its
/// own task. Returns the tasks that have not ended.
pub(crate) async fn accept<F>(
    listener: TcpListener,
    connections_max: usize,
    serve: impl Fn(TcpStream) -> F,
    stop: &CancellationToken,
) -> JoinSet<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let permits = Arc::new(Semaphore::new(connections_max));
    let accepting = async {
        loop {
            // The permit is taken before the connection, so that further clients wait.
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return;
            };
            while connections.try_join_next().is_some() {}
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let serving = serve(stream);
            connections.spawn(async move {
                serving.await;
                drop(permit);
            });
        }
    };
    stop.run_until_cancelled(accepting).await;
    connections
}
