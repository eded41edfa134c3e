//! TLS of the metrics server: its certificate, and the accepted clients.
//!
//! Guarantees: the private key stays in memory; a client without a certificate that the authority
//! of the front proxy has signed cannot complete the handshake.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::clock::Clock;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::registration::{NAMESPACE, SERVICE};

/// The TLS configuration for clients with a certificate of this authority, in PEM, and the
/// certificate of the server, in PEM.
///
/// # Errors
/// The authority is no certificate, or the cryptographic library fails.
pub(super) fn acceptor(
    front_proxy_authority: &str,
    clock: Clock,
) -> Result<(TlsAcceptor, String), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot set up TLS: {error}");
    // The name by which the API server verifies the server of an APIService. The certificate is
    // its own authority.
    let name = format!("{SERVICE}.{NAMESPACE}.svc");
    let params = CertificateParams::new([name]).map_err(|error| failed(&error))?;
    let key = KeyPair::generate().map_err(|error| failed(&error))?;
    let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    for trusted in CertificateDer::pem_slice_iter(front_proxy_authority.as_bytes()) {
        let trusted = trusted.map_err(|error| failed(&error))?;
        roots.add(trusted).map_err(|error| failed(&error))?;
    }
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .map_err(|error| failed(&error))?;
    let private_key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = ServerConfig::builder_with_details(provider, Arc::new(ClockTime(clock)))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| failed(&error))?
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(private_key),
        )
        .map_err(|error| failed(&error))?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    Ok((acceptor, certificate.pem()))
}

/// The time at which certificates must be valid: that of the cluster, by which they were issued.
#[derive(Debug)]
struct ClockTime(Clock);

impl TimeProvider for ClockTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}
