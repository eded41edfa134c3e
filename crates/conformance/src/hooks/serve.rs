//! The webhooks of scenarios over HTTPS, for recordings from a real server.

use std::{error::Error, fs, path::Path, sync::Arc};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{ADDRESS, answer};

/// Serves the webhooks until the process ends, and writes the certificate that a real server must trust: start it with
/// `SSL_CERT_FILE` set to that file.
///
/// # Errors
/// The address is taken, or the file cannot be written.
pub async fn serve(certificate: &Path) -> Result<(), Box<dyn Error>> {
    let key = KeyPair::generate()?;
    let parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    let signed = parameters.self_signed(&key)?;
    fs::write(certificate, signed.pem())?;
    let chain = vec![CertificateDer::from(signed.der().to_vec())];
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(ADDRESS).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let connection = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(respond))
                .await;
            if let Err(error) = connection {
                eprintln!("conformance: a connection of a webhook ended: {error}");
            }
        });
    }
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<bytes::Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let answered = answer(&Request::from_parts(head, body)).await;
    Ok(answered.map(Full::new))
}
