//! TLS of clients: a certificate authority, and optionally a client certificate.
//!
//! In: PEM. Out: a configuration that offers HTTP/2.
//! Guarantees: only the given authorities are trusted, not those of the system.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// Why a TLS configuration was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TlsError {
    /// The text has no usable certificate or key.
    #[error("{what}: {cause}; expected PEM")]
    Pem {
        /// Which text.
        what: &'static str,
        /// What is wrong with it.
        cause: String,
    },
    /// Key and certificate do not belong together, or are of an unknown type.
    #[error("cannot use the certificate: {0}")]
    Certificate(String),
}

/// TLS of a client.
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
}

impl ClientTls {
    /// Trusts the certificate authorities in PEM.
    ///
    /// # Errors
    /// If the text has no certificate.
    pub fn with_ca(ca_pem: &[u8]) -> Result<Self, TlsError> {
        let builder = builder()?.with_root_certificates(roots(ca_pem)?);
        Ok(Self::offering_http2(builder.with_no_client_auth()))
    }

    /// Trusts the certificate authorities in PEM and presents a certificate.
    ///
    /// # Errors
    /// If a text is not PEM, or key and certificate do not belong together.
    pub fn with_client_certificate(
        ca_pem: &[u8],
        certificate_pem: &[u8],
        key_pem: &[u8],
    ) -> Result<Self, TlsError> {
        let builder = builder()?.with_root_certificates(roots(ca_pem)?);
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(pem_error("private key"))?;
        let chain = certificates(certificate_pem, "certificate")?;
        let config = builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| TlsError::Certificate(error.to_string()))?;
        Ok(Self::offering_http2(config))
    }

    fn offering_http2(mut config: ClientConfig) -> Self {
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self {
            config: Arc::new(config),
        }
    }
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, TlsError> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Certificate(error.to_string()))
}

fn roots(ca_pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca_pem, "certificate authority")? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::Certificate(error.to_string()))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(pem_error(what))?;
    if certificates.is_empty() {
        return Err(TlsError::Pem {
            what,
            cause: "no certificate in it".to_owned(),
        });
    }
    Ok(certificates)
}

fn pem_error(what: &'static str) -> impl Fn(rustls::pki_types::pem::Error) -> TlsError {
    move |error| TlsError::Pem {
        what,
        cause: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_certificate_is_refused() {
        let error = ClientTls::with_ca(b"nothing").err().unwrap();
        let expected = "certificate authority: no certificate in it; expected PEM";
        assert_eq!(error.to_string(), expected);
    }
}
