//! TLS of HTTPS probes and hooks. As in the kubelet, certificates are not verified: no CA is
//! configured for those of pods, and the requests carry no credentials.

use std::io;
use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, Error, InvalidMessage, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

static CONFIG: LazyLock<Result<Arc<ClientConfig>, Error>> = LazyLock::new(|| {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
});

/// Why a TLS connection could not be established.
#[derive(Debug)]
pub(super) enum TlsError {
    /// The server answered in plain text.
    NotTls,
    Other(io::Error),
}

/// Establishes TLS on a connection to that host.
pub(super) async fn connect(
    connection: TcpStream,
    host: &str,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let config = CONFIG.clone().map_err(|error| other(&error))?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| other(&error))?;
    let connected = TlsConnector::from(config).connect(name, connection).await;
    connected.map_err(|error| {
        let cause = error
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            // An HTTP server answers the first bytes of the handshake with `HTTP/1.1 400`.
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => TlsError::NotTls,
            _ => TlsError::Other(error),
        }
    })
}

fn other(error: &dyn std::error::Error) -> TlsError {
    TlsError::Other(io::Error::other(error.to_string()))
}

/// Accepts every certificate whose key signs the handshake.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
