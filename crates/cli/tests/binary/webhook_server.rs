//! Serves the webhook of `label_webhook` over HTTPS, with the certificate of a test.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::label_webhook;

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.expect("a body");
    let body = body.to_bytes();
    if body.is_empty() {
        let mut response = Response::new(Full::default());
        *response.status_mut() = http::StatusCode::NOT_FOUND;
        return Ok(response);
    }
    Ok(Response::new(Full::new(
        label_webhook::respond(&body).into(),
    )))
}

async fn serve(tls: TlsAcceptor, stream: TcpStream) {
    let stream = tls.accept(stream).await.expect("a TLS handshake");
    let connection =
        http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond));
    // It ends with the server that calls it.
    let _ = connection.await;
}

/// Starts to serve the webhook with a certificate and its key in PEM, until the runtime ends; returns
/// its address.
pub(crate) async fn start(address: SocketAddr, certificate: &str, key: &str) -> SocketAddr {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.expect("a certificate")],
            key.expect("a key"),
        )
        .expect("a key of the certificate");
    let tls = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address).await.expect("the port is free");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(tls.clone(), stream));
        }
    });
    address
}
