//! TLS to webhooks: which certificates a `caBundle` trusts, and handshake errors with Go's
//! messages.
//! Guarantees: a certificate is trusted if a root of the bundle signed it, or if the bundle holds
//! the certificate itself, as Go's verifier does. Without a bundle, the roots of the system are
//! trusted, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.

use std::{io, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, Error, RootCertStore,
    client::WebPkiServerVerifier,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use super::verifier::Verifier;
use crate::tls::provider;

/// The TLS configuration of a bundle in PEM; an empty one trusts the roots of the system.
///
/// # Errors
/// A bundle that has a certificate that cannot be read.
pub(super) fn client_config(ca_bundle: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let mut pinned = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(ca_bundle) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        // A certificate that is no CA is still one that a webhook may have.
        if let Err(error) = roots.add(certificate.clone()) {
            tracing::debug!(%error, "a certificate of a CA bundle is no root");
        }
        pinned.push(certificate);
    }
    if ca_bundle.is_empty() {
        let system = rustls_native_certs::load_native_certs();
        for error in system.errors {
            tracing::warn!(%error, "cannot read roots of the system");
        }
        let (added, ignored) = roots.add_parsable_certificates(system.certs);
        tracing::debug!(added, ignored, "trusting the roots of the system");
    }
    let roots = Arc::new(roots);
    let roots = if roots.is_empty() {
        None
    } else {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        Some(verifier.map_err(|error| error.to_string())?)
    };
    let verifier = Verifier::Bundle { roots, pinned };
    verifier.client_config().map_err(|error| error.to_string())
}

/// Why a handshake failed, with the message of Go.
pub(super) fn describe(error: &io::Error, server_name: &str) -> String {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    let verify = "tls: failed to verify certificate: x509:";
    match inner {
        Some(Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => {
            format!("{verify} certificate signed by unknown authority")
        }
        Some(Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            presented,
            ..
        })) => {
            let names: Vec<&str> = presented.iter().map(|name| bare_name(name)).collect();
            if names.is_empty() {
                return format!(
                    "{verify} certificate is not valid for any names, but wanted to match {server_name}"
                );
            }
            format!(
                "{verify} certificate is valid for {}, not {server_name}",
                names.join(", ")
            )
        }
        Some(Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => format!("{verify} certificate has expired or is not yet valid"),
        Some(Error::InvalidCertificate(other)) => format!("{verify} {other}"),
        _ => error.to_string(),
    }
}

/// `a.b` of `DnsName("a.b")`.
fn bare_name(presented: &str) -> &str {
    let inside = presented
        .split_once('(')
        .map_or(presented, |(_, rest)| rest);
    inside.trim_end_matches(')').trim_matches('"')
}
