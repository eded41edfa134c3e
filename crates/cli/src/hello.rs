//! `bellerophon hello`: a small HTTP server, to have a program for samples and tests.
//!
//! Input: HTTP/1.1 requests. Output: responses that name pod, node and client; one line per request
//! on stdout.
//!
//! Guarantee: after SIGTERM, requests that were received are answered before the process ends.

use std::{
    convert::Infallible,
    env,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
};

use bytes::Bytes;
use clap::Args;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tracing::debug;

use crate::{error::CliError, flags::address, signals::Signals};

/// The default port.
const PORT: u16 = 8080;

/// Connections that are served concurrently; others wait in the backlog of the listener.
const CONNECTIONS_MAX: usize = 1024;

/// The path that answers with the body of the request.
const ECHO: &str = "/echo";

#[derive(Debug, Args)]
pub(crate) struct HelloOptions {
    /// The address of the server; default: port 8080 of the environment variable POD_IP, or of all
    /// addresses
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    listen: Option<SocketAddr>,

    /// The first line of every response
    #[arg(long, value_name = "TEXT", default_value = "Hello!")]
    message: String,
}

/// Serves until a signal.
///
/// # Errors
/// The address is in use, or does not belong to this machine.
pub(crate) async fn hello(options: HelloOptions) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    let address = options.listen.unwrap_or_else(default_address);
    let step = format!("cannot listen on {address}");
    let listener = TcpListener::bind(address)
        .await
        .map_err(CliError::context(&step))?;
    let bound = listener.local_addr().map_err(CliError::context(&step))?;
    log(&format!("listening on {bound}"));
    let greeting = Greeting::new(options.message);
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let accept = async {
        loop {
            while connections.len() >= CONNECTIONS_MAX {
                connections.join_next().await;
            }
            // Of connections that end before they are accepted, and of too many open files.
            let Ok((stream, client)) = listener.accept().await else {
                tokio::task::yield_now().await;
                continue;
            };
            connections.spawn(serve(stream, client, greeting.clone(), stopped.clone()));
        }
    };
    tokio::select! {
        signal = signals.next() => signal.map_err(CliError::new)?,
        () = accept => {}
    }
    drop(listener);
    drop(stop);
    log("shutting down");
    signals
        .wait_for_shutdown(async move { while connections.join_next().await.is_some() {} })
        .await
        .map_err(CliError::new)
}

/// Without a network namespace, a pod must listen on its address only.
fn default_address() -> SocketAddr {
    let pod_ip = env::var("POD_IP").ok().and_then(|ip| ip.parse().ok());
    let ip = pod_ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    SocketAddr::new(ip, PORT)
}

/// The content of a response.
#[derive(Clone)]
struct Greeting {
    message: String,
    pod: String,
    node: String,
}

impl Greeting {
    fn new(message: String) -> Self {
        let variable = |names: &[&str]| {
            let value = names.iter().find_map(|name| env::var(name).ok());
            value.unwrap_or_else(|| "unknown".to_owned())
        };
        Self {
            message,
            pod: variable(&["POD_NAME", "HOSTNAME"]),
            node: variable(&["NODE_NAME"]),
        }
    }

    fn text(&self, client: SocketAddr) -> String {
        let Self { message, pod, node } = self;
        format!("{message}\npod: {pod}\nnode: {node}\nclient: {client}\n")
    }
}

/// Serves a connection. When `stopped` closes, the request that is being answered is its last.
async fn serve(
    stream: TcpStream,
    client: SocketAddr,
    greeting: Greeting,
    mut stopped: watch::Receiver<()>,
) {
    let respond = service_fn(|request| {
        let response = respond(request, client, &greeting);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), respond);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, %client, "connection failed");
    }
}

fn respond(
    request: Request<Incoming>,
    client: SocketAddr,
    greeting: &Greeting,
) -> Response<BoxBody<Bytes, hyper::Error>> {
    let method = request.method();
    let path = request.uri().path();
    log(&format!("{method} {path} from {client}"));
    if method == Method::POST && path == ECHO {
        return Response::new(request.into_body().boxed());
    }
    let text = Full::from(greeting.text(client));
    Response::new(text.map_err(|never| match never {}).boxed())
}

/// Prints a line on stdout, which is the log of a container.
fn log(line: &str) {
    let mut out = io::stdout().lock();
    // Requests are answered even if the log is not read.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
