//! The shim of tests of process nodes, and a program with several behaviors to run in containers.
//!
//! Servers listen on `$POD_IP`, or on all addresses without it, and print `listening`.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// How long an answer is waited for before a datagram is sent again.
const SEND_INTERVAL: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    if let Some(code) = bellerophon_process_runtime::shim::main(std::env::args_os()) {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("helper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "unknown arguments");
    let number = |text: &str| text.parse::<u16>().map_err(|_| invalid());
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match args[..] {
        ["open", count] => open(number(count)?),
        ["get", address, count] => get(address, number(count)?),
        ["get-once", address] => print(&get_hostname(address)?),
        ["udp", port] => serve_udp(number(port)?),
        ["send", address] => send(address),
        ["http", port] => tokio.block_on(serve_http(number(port)?, None)),
        ["https", port] => {
            let acceptor = tls_acceptor()?;
            tokio.block_on(serve_http(number(port)?, Some(acceptor)))
        }
        ["grpc", port, status] => {
            let status = status.parse().map_err(|_| invalid())?;
            tokio.block_on(serve_grpc(number(port)?, status))
        }
        _ => Err(invalid()),
    }
}

/// Prints a line.
fn print(line: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}

/// Opens files and prints their number.
fn open(count: u16) -> io::Result<()> {
    let files: io::Result<Vec<_>> = (0..count).map(|_| File::open("/dev/null")).collect();
    print(&format!("{} files", files?.len()))
}

/// Requests `/hostname` and prints the bodies. The first request is repeated until it succeeds: a
/// Service of a new pod needs a moment.
fn get(address: &str, count: u16) -> io::Result<()> {
    let mut first = get_hostname(address);
    while first.is_err() {
        std::thread::yield_now();
        first = get_hostname(address);
    }
    print(&first?)?;
    for _ in 1..count {
        print(&get_hostname(address)?)?;
    }
    Ok(())
}

fn get_hostname(address: &str) -> io::Result<String> {
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let body = response.split_once("\r\n\r\n").map(|(_, body)| body);
    body.filter(|body| !body.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no body"))
}

fn listen_ip() -> IpAddr {
    let ip = std::env::var("POD_IP").ok().and_then(|ip| ip.parse().ok());
    ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

/// Answers datagrams with the host name.
fn serve_udp(port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind((listen_ip(), port))?;
    print("listening")?;
    let hostname = std::env::var("HOSTNAME").unwrap_or_default();
    loop {
        let (_, client) = socket.recv_from(&mut [0; 16])?;
        socket.send_to(hostname.as_bytes(), client)?;
    }
}

/// Sends datagrams until one is answered, and prints the answer.
fn send(address: &str) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(SEND_INTERVAL))?;
    let mut buffer = [0; 256];
    loop {
        // The server may not listen yet.
        let answered = socket.connect(address).and_then(|()| {
            socket.send(b"hello")?;
            socket.recv(&mut buffer)
        });
        if let Ok(len) = answered {
            return print(&String::from_utf8_lossy(&buffer[..len]));
        }
    }
}

async fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((listen_ip(), port)).await?;
    print("listening")?;
    Ok(listener)
}

/// A TLS server with the certificate and key of `$TLS_CERT` and `$TLS_KEY`, in PEM.
fn tls_acceptor() -> io::Result<TlsAcceptor> {
    let variable = |name: &str| std::env::var(name).map_err(io::Error::other);
    let certificate = CertificateDer::from_pem_slice(variable("TLS_CERT")?.as_bytes());
    let certificate = certificate.map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(variable("TLS_KEY")?.as_bytes());
    let key = key.map_err(io::Error::other)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves `/hostname`, `/status/CODE` and `/redirect?LOCATION`, and prints requests with their
/// host.
async fn serve_http(port: u16, tls: Option<TlsAcceptor>) -> io::Result<()> {
    let listener = listen(port).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let tls = tls.clone();
        tokio::spawn(async move {
            match tls {
                None => serve_connection(stream).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => serve_connection(stream).await,
                    Err(error) => eprintln!("helper: {error}"),
                },
            }
        });
    }
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let respond = async |request: Request<Incoming>| {
        let uri = request.uri().clone();
        let host = request.headers().get(http::header::HOST);
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        // A log that cannot be written does not concern the client.
        let _ = print(&format!("GET {uri} {host}"));
        let mut response = Response::new(Full::new(Bytes::from_static(b"body")));
        if uri.path() == "/hostname" {
            let hostname = std::env::var("HOSTNAME").unwrap_or_default();
            *response.body_mut() = Full::new(hostname.into());
        }
        let code = uri.path().strip_prefix("/status/");
        let code = code.and_then(|code| code.parse().ok());
        if let Some(code) = code {
            *response.status_mut() = code;
        }
        if let Some(location) = uri.query().filter(|_| uri.path() == "/redirect") {
            *response.status_mut() = StatusCode::FOUND;
            if let Ok(location) = location.parse() {
                response
                    .headers_mut()
                    .insert(http::header::LOCATION, location);
            }
        }
        Ok::<_, Infallible>(response)
    };
    let connection = http1::Builder::new();
    let connection = connection.serve_connection(TokioIo::new(stream), service_fn(respond));
    if let Err(error) = connection.await {
        eprintln!("helper: {error}");
    }
}

/// Serves a gRPC health service whose status is that number.
async fn serve_grpc(port: u16, status: u8) -> io::Result<()> {
    let listener = listen(port).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let respond = move |_: Request<Incoming>| async move {
            let message = Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]);
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            let frames = [
                Ok::<_, Infallible>(Frame::data(message)),
                Ok(Frame::trailers(trailers)),
            ];
            let body = StreamBody::new(futures_util::stream::iter(frames));
            Ok::<_, Infallible>(Response::new(body))
        };
        tokio::spawn(async move {
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service_fn(respond));
            if let Err(error) = connection.await {
                eprintln!("helper: {error}");
            }
        });
    }
}
