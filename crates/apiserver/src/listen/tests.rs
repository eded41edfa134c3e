//! Real clients over loopback: what they get, and what the server does when they misbehave.

mod unread; // peers that do not read responses

use std::time::Duration;

use bellerophon_apimachinery::time::Time;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::service_fn;

use super::*;
use crate::{auth::PeerCertificate, tls::Certificates};

/// A served listener and its certificates.
struct Served {
    address: SocketAddr,
    certificates: Certificates,
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// Lets the answer to `/slow` end.
    release: Arc<Notify>,
    /// Notified when a request to `/slow` came in.
    began: Arc<Notify>,
    tracker: Arc<ConnectionTracker>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clients of these tests check certificates by the wall clock"
)]
fn certificates() -> Certificates {
    Certificates::issue(&[], Time::from_timestamp(jiff::Timestamp::now())).expect("certificates")
}

async fn served(limits: Limits) -> Served {
    let certificates = certificates();
    let tls = certificates.server_config().expect("a configuration");
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), tls, limits)
        .await
        .expect("a free port");
    let release = Arc::new(Notify::new());
    let began = Arc::new(Notify::new());
    let stop = CancellationToken::new();
    let released = release.clone();
    let begun = began.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let released = released.clone();
        let begun = begun.clone();
        async move {
            if request.uri().path() == "/slow" {
                begun.notify_one();
                released.notified().await;
            }
            if let Some(body) = unread::body(request.uri().path()) {
                return Ok(Response::new(body));
            }
            let peer = request
                .extensions()
                .get::<PeerCertificate>()
                .map(|p| format!("{p:?}"))
                .unwrap_or_default();
            let text = format!("{:?} {peer}", request.version());
            Ok(Response::new(Body::full(text)))
        }
    });
    let address = listener.local_addr().expect("an address");
    let tracker = listener.tracker.clone();
    let task = tokio::spawn(listener.serve(service, stop.clone()));
    Served {
        address,
        certificates,
        stop,
        task,
        release,
        began,
        tracker,
    }
}

impl Served {
    fn client(&self, protocol: &str) -> ClientConfig {
        client(&self.certificates.ca_pem, protocol, None)
    }

    async fn connect(&self, config: ClientConfig) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from("localhost").expect("a name"), stream)
            .await
    }

    async fn get(
        &self,
        config: ClientConfig,
        path: &str,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let http2 = config.alpn_protocols == [b"h2".to_vec()];
        let io = TokioIo::new(self.connect(config).await?);
        let request = Request::get(format!("https://localhost{path}"))
            .header("host", "localhost")
            .body(Empty::<Bytes>::new())?;
        let response = if http2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        };
        Ok(String::from_utf8(
            response.into_body().collect().await?.to_bytes().to_vec(),
        )?)
    }

    async fn finish(self) {
        self.stop.cancel();
        timeout(Duration::from_secs(30), self.task)
            .await
            .expect("serve returns after a stop")
            .expect("no panic");
    }
}

fn client(ca_pem: &str, protocol: &str, identity: Option<&crate::tls::Identity>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).expect("PEM"))
        .expect("a CA");
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let certificate =
                CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("PEM");
            builder
                .with_client_auth_cert(vec![certificate], key)
                .expect("an identity")
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config
}

#[tokio::test]
async fn both_protocols_are_served() {
    let served = served(Limits::default()).await;
    assert_eq!(
        served
            .get(served.client("http/1.1"), "/")
            .await
            .expect("an answer"),
        "HTTP/1.1 "
    );
    assert_eq!(
        served
            .get(served.client("h2"), "/")
            .await
            .expect("an answer"),
        "HTTP/2.0 "
    );
    served.finish().await;
}

#[tokio::test]
async fn client_certificate_reaches_the_service() {
    let served = served(Limits::default()).await;
    for protocol in ["http/1.1", "h2"] {
        let config = client(
            &served.certificates.ca_pem,
            protocol,
            Some(&served.certificates.admin),
        );
        let seen = served.get(config, "/").await.expect("an answer");
        assert!(
            seen.contains("admin") && seen.contains("system:masters"),
            "{seen}"
        );
    }
    served.finish().await;
}

#[tokio::test]
async fn strangers_are_refused_on_either_side() {
    let served = served(Limits::default()).await;
    let other = certificates();
    assert!(
        served
            .get(client(&other.ca_pem, "h2", None), "/")
            .await
            .is_err(),
        "the client does not trust the server"
    );
    let config = client(&served.certificates.ca_pem, "http/1.1", Some(&other.admin));
    assert!(
        served.get(config, "/").await.is_err(),
        "the server does not trust the client"
    );
    assert!(
        served.get(served.client("h2"), "/").await.is_ok(),
        "the loop continues"
    );
    served.finish().await;
}

#[tokio::test]
async fn plain_http_gets_an_error() {
    let served = served(Limits::default()).await;
    let mut plain = TcpStream::connect(served.address).await.expect("accepted");
    plain
        .write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.0 400 ")
            && answer.ends_with("Client sent an HTTP request to an HTTPS server.\n"),
        "{answer}"
    );
    served.finish().await;
}

#[tokio::test]
async fn slow_peers_are_cut() {
    let short = Duration::from_millis(50);
    let limits = Limits {
        handshake_timeout: short,
        header_read_timeout: short,
        idle_timeout: short,
        ..Limits::default()
    };
    let served = served(limits).await;
    let mut silent = TcpStream::connect(served.address).await.expect("accepted");
    assert_eq!(
        silent.read(&mut [0; 1]).await.unwrap_or(0),
        0,
        "no handshake"
    );
    let mut halting = served
        .connect(served.client("http/1.1"))
        .await
        .expect("a connection");
    halting
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nslow")
        .await
        .expect("sent");
    let mut answer = Vec::new();
    // A cut without a TLS goodbye is an error to the client, and just as good.
    drop(halting.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "half a header");
    let mut idle = served
        .connect(served.client("h2"))
        .await
        .expect("a connection");
    drop(idle.read_to_end(&mut answer).await);
    served.finish().await;
}

#[tokio::test]
async fn stop_lets_running_requests_end() {
    let served = served(Limits::default()).await;
    let steer = async {
        served.began.notified().await;
        served.stop.cancel();
        served.release.notify_one();
    };
    let (answer, ()) = tokio::join!(served.get(served.client("h2"), "/slow"), steer);
    assert_eq!(answer.expect("the request ends well"), "HTTP/2.0 ");
    let address = served.address;
    served.finish().await;
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nothing listens any more"
    );
}

#[tokio::test]
async fn stop_cuts_what_outlasts_the_drain() {
    let served = served(Limits {
        drain_timeout: Duration::from_millis(50),
        ..Limits::default()
    })
    .await;
    let steer = async {
        served.began.notified().await;
        served.stop.cancel();
    };
    let (answer, ()) = tokio::join!(served.get(served.client("h2"), "/slow"), steer);
    assert!(answer.is_err(), "cut");
    served.finish().await;
}

#[tokio::test]
async fn full_house_waits_for_a_place() {
    let served = served(Limits {
        connections_max: 1,
        ..Limits::default()
    })
    .await;
    let first = served.get(served.client("http/1.1"), "/slow");
    let second = async {
        served.began.notified().await;
        let second = served.get(served.client("http/1.1"), "/");
        let release = async {
            tokio::task::yield_now().await;
            served.release.notify_one();
        };
        tokio::join!(second, release).0
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.expect("it is not closed for others"), "HTTP/1.1 ");
    assert_eq!(second.expect("served once the first has left"), "HTTP/1.1 ");
    served.finish().await;
}

#[tokio::test]
async fn idle_connections_do_not_exclude_new_ones() {
    let served = served(Limits {
        connections_max: 8,
        ..Limits::default()
    })
    .await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(served.address).await.expect("accepted"));
    }
    let mut idle = Vec::new();
    for _ in 0..4 {
        let connection = served.connect(served.client("h2")).await;
        idle.push(connection.expect("a connection"));
    }
    for _ in 0..20 {
        let answer = served.get(served.client("http/1.1"), "/").await;
        assert_eq!(answer.expect("an answer"), "HTTP/1.1 ");
    }
    served.finish().await;
}

#[tokio::test]
async fn connection_without_a_first_request_is_closed() {
    let served = served(Limits::default()).await;
    for protocol in ["http/1.1", "h2"] {
        let mut idle = served
            .connect(served.client(protocol))
            .await
            .expect("a connection");
        tokio::time::pause();
        let started = tokio::time::Instant::now();
        let mut answer = Vec::new();
        // A close without a TLS goodbye is an error to the client, and just as good.
        drop(idle.read_to_end(&mut answer).await);
        let open_for = started.elapsed();
        tokio::time::resume();
        assert!(open_for >= Duration::from_secs(9), "{open_for:?}");
        assert!(open_for <= Duration::from_secs(15), "{open_for:?}");
    }
    served.finish().await;
}
