//! Requests over HTTPS with the certificates and the user of a kubeconfig. HTTP/1.1 only, as recorded.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::{Reply, Transport, TransportError, kubeconfig::Access};

/// Sends requests to the server of a kubeconfig, which must be on loopback.
pub struct Https {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    server: Uri,
    token: Option<String>,
}

impl Https {
    /// A transport with the settings of a kubeconfig; no request is sent yet.
    ///
    /// # Errors
    /// A kubeconfig that names no server on loopback, or holds no usable certificates.
    pub fn new(kubeconfig: &str) -> Result<Self, TransportError> {
        let access = Access::read(kubeconfig)?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(&access)?)
            .https_only()
            .enable_http1()
            .build();
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            server: access.server,
            token: access.token,
        })
    }

    fn absolute(&self, path: &Uri) -> Result<Uri, TransportError> {
        let mut parts = self.server.clone().into_parts();
        parts.path_and_query = path.path_and_query().cloned();
        Uri::from_parts(parts)
            .map_err(|e| TransportError::new("cannot make an address of the path", e))
    }
}

impl Transport for Https {
    fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    async fn send(&self, mut request: Request<Bytes>) -> Result<Reply, TransportError> {
        *request.uri_mut() = self.absolute(request.uri())?;
        let reply = self
            .client
            .request(request.map(Full::new))
            .await
            .map_err(|e| TransportError::new("no answer", e))?;
        Ok(reply.map(|body| {
            body.map_err(|e| TransportError::new("the body broke off", e))
                .boxed_unsync()
        }))
    }
}

fn tls(access: &Access) -> Result<ClientConfig, TransportError> {
    let unusable = |e| TransportError::new("a certificate of the kubeconfig cannot be used", e);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&access.authority)? {
        roots.add(certificate).map_err(unusable)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots);
    match &access.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|e| TransportError::new("the key of the kubeconfig is not PEM", e))?;
            builder
                .with_client_auth_cert(certificates(chain)?, key)
                .map_err(unusable)
        }
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TransportError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|e| TransportError::new("a certificate of the kubeconfig is not PEM", e))
}
