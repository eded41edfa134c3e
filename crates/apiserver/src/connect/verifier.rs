//! TLS clients and the certificates of servers that they accept.
//!
//! Guarantee: whatever is accepted, the key of the certificate signs the handshake.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
    version::{TLS12, TLS13},
};

use crate::tls::provider;

/// Which certificates of servers are accepted.
#[derive(Debug)]
pub(super) enum Verifier {
    /// Every certificate, for `https` to pods and endpoints. As in kube-apiserver, no CA is configured
    /// for the certificates of pods. Requests carry no credentials of the client.
    Any,
    /// The certificates of a bundle and what they signed.
    Bundle {
        /// `None` if the bundle has no root.
        roots: Option<Arc<WebPkiServerVerifier>>,
        pinned: Vec<CertificateDer<'static>>,
    },
}

impl Verifier {
    /// A client without a certificate of its own, for HTTP/1.1.
    ///
    /// # Errors
    /// The TLS library refuses its configuration.
    pub(super) fn client_config(self) -> Result<ClientConfig, Error> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Accepts every certificate whose key signs the handshake.
pub(crate) fn accept_any_certificate() -> Arc<dyn ServerCertVerifier> {
    Arc::new(Verifier::Any)
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self {
            Self::Any => Ok(ServerCertVerified::assertion()),
            Self::Bundle { pinned, .. } if pinned.iter().any(|pinned| pinned == end_entity) => {
                let certificate = ParsedCertificate::try_from(end_entity)?;
                verify_server_name(&certificate, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            Self::Bundle {
                roots: Some(roots), ..
            } => {
                roots.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            Self::Bundle { roots: None, .. } => {
                Err(Error::InvalidCertificate(CertificateError::UnknownIssuer))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}
