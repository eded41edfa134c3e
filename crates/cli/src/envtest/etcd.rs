//! The `etcd` of the drop-in: the process that a test environment starts next to the API server.
//!
//! In: a command line of etcd. Out: `/health` on every client URL, and a snapshot that an API server
//! leaves when it stops and takes when it starts.
//!
//! Guarantees: objects survive a restart of the API server alone, and nothing else: there is no
//! etcd API, and nothing is on disk. The process ends at SIGTERM, and with its parent.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use bellerophon::manager::serve_http;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    flags::{Flag, Flags},
    parent::Parent,
    program,
};
use crate::{error::CliError, signals::Signals};

/// Where an API server leaves its objects.
pub(super) const SNAPSHOT_PATH: &str = "/bellerophon/snapshot";

/// The largest snapshot. An API server that has more loses its objects in a restart.
const SNAPSHOT_BYTES_MAX: usize = 1 << 30;

/// Connections that are served concurrently.
const CONNECTIONS_MAX: usize = 256;

/// The version in `/version`: a release that Kubernetes 1.36 is used with.
const VERSION: &str = "3.6.4";

/// The flags that environments pass.
const FLAGS: &[Flag] = &[
    Flag::text("listen-client-urls"),
    Flag::text("advertise-client-urls").meaningless(),
    Flag::text("listen-peer-urls").meaningless(),
    Flag::text("initial-advertise-peer-urls").meaningless(),
    Flag::text("initial-cluster").meaningless(),
    Flag::text("initial-cluster-state").meaningless(),
    Flag::text("initial-cluster-token").meaningless(),
    Flag::text("name").meaningless(),
    Flag::text("data-dir").meaningless(),
    Flag::text("wal-dir").meaningless(),
    Flag::text("max-request-bytes").meaningless(),
    Flag::text("max-txn-ops").meaningless(),
    Flag::text("quota-backend-bytes").meaningless(),
    Flag::text("snapshot-count").meaningless(),
    Flag::text("election-timeout").meaningless(),
    Flag::text("heartbeat-interval").meaningless(),
    Flag::text("auto-compaction-mode").meaningless(),
    Flag::text("auto-compaction-retention").meaningless(),
    Flag::text("listen-metrics-urls").meaningless(),
    Flag::text("log-level").meaningless(),
    Flag::text("log-outputs").meaningless(),
    Flag::text("logger").meaningless(),
    Flag::bool("unsafe-no-fsync").meaningless(),
    Flag::bool("force-new-cluster").meaningless(),
    Flag::bool("help"),
    Flag::bool("version"),
];

const HELP: &str = "\
etcd of `bellerophon envtest`: keeps the objects of a kube-apiserver of the same directory
between its restarts. It has no etcd API.

Usage: etcd [flags]

Flags that have an effect:
  --listen-client-urls http://localhost:2379
        The addresses of /health and of the snapshot.
  --unsafe-no-fsync false
        Nothing is written to disk.
  --version
        Print the version.

Other flags of etcd are accepted and have no effect.
";

/// Runs the program.
///
/// # Errors
/// An address that cannot be parsed or listened on.
pub(super) fn main(arguments: Vec<String>) -> Result<(), CliError> {
    let parent = Parent::current();
    let flags = Flags::parse(FLAGS, arguments);
    let mut out = io::stdout();
    if flags.bool("help", false) {
        return out.write_all(HELP.as_bytes()).map_err(CliError::new);
    }
    if flags.bool("version", false) {
        return writeln!(out, "etcd Version: {VERSION}").map_err(CliError::new);
    }
    program::warn(&flags);
    let urls: Vec<&str> = match flags.has("listen-client-urls") {
        true => flags.list("listen-client-urls").collect(),
        false => vec!["http://localhost:2379"],
    };
    program::runtime()?.block_on(serve(&urls, parent))
}

/// Serves until a signal, or the end of the parent.
async fn serve(urls: &[&str], parent: Parent) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    let stop = CancellationToken::new();
    let snapshot = Snapshot::default();
    let mut servers = JoinSet::new();
    for url in urls {
        for address in addresses(url).await? {
            let step = format!("cannot listen on {address}");
            let listener = TcpListener::bind(address)
                .await
                .map_err(CliError::context(&step))?;
            let snapshot = snapshot.clone();
            let respond = move |request| snapshot.clone().respond(request);
            servers.spawn(serve_http(listener, CONNECTIONS_MAX, respond, stop.clone()));
        }
    }
    tokio::select! {
        signal = signals.next() => signal.map_err(CliError::new)?,
        () = parent.ended() => {}
    }
    stop.cancel();
    while servers.join_next().await.is_some() {}
    Ok(())
}

/// The addresses of a client URL. A name may have several, and clients may use any.
async fn addresses(url: &str) -> Result<Vec<SocketAddr>, CliError> {
    let invalid = || {
        CliError::Usage(format!("--listen-client-urls: {url:?} is not a URL"))
            .with_hint("write it as in http://127.0.0.1:2379")
    };
    let uri: http::Uri = url.parse().map_err(|_| invalid())?;
    let authority = uri.authority().ok_or_else(invalid)?;
    let host = authority.host().trim_matches(['[', ']']);
    let port = authority.port_u16().unwrap_or(2379);
    let step = format!("cannot resolve {host}");
    let found = tokio::net::lookup_host((host, port))
        .await
        .map_err(CliError::context(&step))?;
    Ok(found.collect())
}

/// What an API server left.
#[derive(Clone, Default)]
struct Snapshot(Arc<Mutex<Bytes>>);

impl Snapshot {
    async fn respond(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/health") => json(r#"{"health":"true","reason":""}"#.into()),
            (&Method::GET, "/livez" | "/readyz") => Response::new("ok\n".into()),
            (&Method::GET, "/version") => json(format!(
                r#"{{"etcdserver":"{VERSION}","etcdcluster":"3.6.0"}}"#
            )),
            (&Method::GET, SNAPSHOT_PATH) => Response::new(self.get().into()),
            (&Method::PUT, SNAPSHOT_PATH) => {
                match Limited::new(request.into_body(), SNAPSHOT_BYTES_MAX)
                    .collect()
                    .await
                {
                    Ok(body) => {
                        self.set(body.to_bytes());
                        status(StatusCode::NO_CONTENT)
                    }
                    Err(_) => status(StatusCode::PAYLOAD_TOO_LARGE),
                }
            }
            _ => status(StatusCode::NOT_FOUND),
        }
    }

    fn get(&self) -> Bytes {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.clone()
    }

    fn set(&self, bytes: Bytes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
    }
}

fn json(text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    let json = http::HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, json);
    response
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code;
    response
}
