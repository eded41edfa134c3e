//! A server with commands and ports that need no processes and no sockets.

use std::{convert::Infallible, io, net::SocketAddr};

use bellerophon_streaming::{
    ConnectionOptions, port_forward,
    remote_command::{self, Outcome, RemoteCommand, StreamOptions},
};
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex},
    net::TcpListener,
    sync::mpsc,
};

/// Sends back what it receives.
pub(crate) const ECHO: u16 = 7;
/// Sends the number of bytes received, once the client has ended its direction.
pub(crate) const COUNT: u16 = 8;
/// Sends a greeting, ends its direction, and reports what it receives then.
pub(crate) const GREET: u16 = 9;
/// Reports what it receives.
pub(crate) const RECORD: u16 = 11;
/// Never reads.
pub(crate) const STALL: u16 = 12;
/// Cannot be dialed.
pub(crate) const REFUSED: u16 = 10;

/// Events that are not yet read; more fail the test.
const EVENTS_MAX: usize = 1024;

/// What a server does, and where it reports events.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) options: ConnectionOptions,
    events: mpsc::Sender<String>,
}

impl Server {
    /// A server, and the events that it reports.
    pub(crate) fn new(options: ConnectionOptions) -> (Self, mpsc::Receiver<String>) {
        let (events, reported) = mpsc::channel(EVENTS_MAX);
        (Self { options, events }, reported)
    }

    /// Serves one connection in memory.
    pub(crate) fn connect(&self) -> DuplexStream {
        self.connect_with_buffer(64 << 10)
    }

    /// The same with a buffer of this size in each direction.
    pub(crate) fn connect_with_buffer(&self, bytes: usize) -> DuplexStream {
        let (client, server) = duplex(bytes);
        tokio::spawn(self.clone().serve(server));
        client
    }

    /// Serves connections on a free port of the loopback interface.
    pub(crate) async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = self.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(server.clone().serve(connection));
            }
        });
        address
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, io: S) {
        let service = service_fn(move |request| {
            let response = self.respond(request);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(io), service);
        let _ = connection.with_upgrades().await;
    }

    fn respond(&self, mut request: Request<Incoming>) -> Response<String> {
        match request.uri().path().rsplit('/').next() {
            Some("exec" | "attach") => self.exec(&mut request),
            Some("portforward") => self.forward(&mut request),
            _ => {
                let mut response = Response::new(String::new());
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        }
    }

    fn exec(&self, request: &mut Request<Incoming>) -> Response<String> {
        let streams = StreamOptions::from_query(request.uri().query().unwrap_or_default());
        let mut arguments = streams.command.clone();
        if request.uri().path().ends_with("/attach") {
            arguments = vec!["sizes".to_owned(), "2".to_owned()];
        }
        let upgrade = remote_command::upgrade(request, streams, &self.options);
        if let Some(upgraded) = upgrade.upgraded {
            let events = self.events.clone();
            tokio::spawn(async move {
                match upgraded.streams().await {
                    Ok(command) => run(command, &arguments, &events).await,
                    Err(error) => events.try_send(error.to_string()).unwrap(),
                }
            });
        }
        upgrade.response
    }

    fn forward(&self, request: &mut Request<Incoming>) -> Response<String> {
        let upgrade = port_forward::upgrade(request, &self.options);
        if let Some(upgraded) = upgrade.upgraded {
            let events = self.events.clone();
            tokio::spawn(async move {
                let forward = upgraded.connections().await.unwrap();
                let dialed = events.clone();
                forward
                    .run("pod web", move |port| dial(port, dialed.clone()))
                    .await;
                // The test may be over.
                let _ = events.try_send("port-forward ended".to_owned());
            });
        }
        upgrade.response
    }
}

/// Runs one of the commands.
async fn run(mut command: RemoteCommand, arguments: &[String], events: &mpsc::Sender<String>) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["cat"] => {
            let mut stdin = command.stdin.take().unwrap();
            let stdout = command.stdout.as_mut().unwrap();
            let copied = tokio::io::copy(&mut stdin, stdout).await;
            // Protocols without a close signal end stdin with the connection.
            let _ = events.try_send(format!("copied {:?}", copied.map_err(|e| e.kind())));
            Outcome::Exited(0)
        }
        ["echo", text] => {
            let stdout = command.stdout.as_mut().unwrap();
            stdout.write_all(text.as_bytes()).await.unwrap();
            if let Some(stderr) = &mut command.stderr {
                stderr.write_all(b"warning").await.unwrap();
            }
            Outcome::Exited(0)
        }
        ["sizes", count] => {
            for _ in 0..count.parse().unwrap() {
                let size = command.sizes.next().await.unwrap();
                let line = format!("{}x{}\n", size.width, size.height);
                let stdout = command.stdout.as_mut().unwrap();
                stdout.write_all(line.as_bytes()).await.unwrap();
            }
            Outcome::Exited(0)
        }
        ["abandon"] => return,
        ["exit", code] => Outcome::Exited(code.parse().unwrap()),
        ["ignore-stdin"] => {
            events.try_send("started".to_owned()).unwrap();
            command.closed().cancelled().await;
            events.try_send("closed".to_owned()).unwrap();
            Outcome::Exited(0)
        }
        _ => {
            let error = "error executing command in container: no such file";
            Outcome::Failed(error.to_owned())
        }
    };
    command.finish(outcome).await;
    let _ = events.try_send("finished".to_owned());
}

async fn dial(port: u16, events: mpsc::Sender<String>) -> io::Result<DuplexStream> {
    if port == REFUSED {
        return Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "connection refused",
        ));
    }
    let (client, mut server) = duplex(16 << 10);
    tokio::spawn(async move {
        match port {
            ECHO => {
                let (mut reader, mut writer) = tokio::io::split(server);
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            }
            COUNT => {
                let mut received = Vec::new();
                server.read_to_end(&mut received).await.unwrap();
                let count = received.len().to_string();
                server.write_all(count.as_bytes()).await.unwrap();
            }
            GREET | RECORD => {
                if port == GREET {
                    server.write_all(b"hello").await.unwrap();
                    server.shutdown().await.unwrap();
                }
                let mut received = Vec::new();
                server.read_to_end(&mut received).await.unwrap();
                let received = String::from_utf8_lossy(&received);
                let _ = events.try_send(format!("received {received}"));
            }
            STALL => {
                std::future::pending::<()>().await;
                drop(server);
            }
            other => panic!("nothing listens on port {other}"),
        }
    });
    Ok(client)
}
