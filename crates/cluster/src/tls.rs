//! TLS of the servers of a cluster: their certificates, and the accepted clients.
//!
//! Guarantees: private keys stay in memory; a client certificate that the authority has not signed
//! fails the handshake.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::clock::Clock;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Which clients can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientCertificates<'a> {
    /// Those with a certificate of this authority, in PEM.
    Required(&'a str),
    /// Also those without a certificate; an empty authority accepts no certificate.
    Optional(&'a str),
}

/// The TLS configuration of a server with these names, and its self-signed certificate, in PEM.
///
/// # Errors
/// The authority is no certificate, or the cryptographic library fails.
pub(crate) fn acceptor(
    names: Vec<String>,
    clients: ClientCertificates<'_>,
    clock: Clock,
) -> Result<(TlsAcceptor, String), String> {
    let params = CertificateParams::new(names).map_err(|error| failed(&error))?;
    let key = KeyPair::generate().map_err(|error| failed(&error))?;
    let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
    let private_key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(ClockTime(clock)))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| failed(&error))?
        .with_client_cert_verifier(verifier(clients)?)
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(private_key),
        )
        .map_err(|error| failed(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    Ok((acceptor, certificate.pem()))
}

fn verifier(clients: ClientCertificates<'_>) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let authority = match clients {
        ClientCertificates::Optional("") => return Ok(Arc::new(NoClientAuth)),
        ClientCertificates::Required(authority) | ClientCertificates::Optional(authority) => {
            authority
        }
    };
    let mut roots = RootCertStore::empty();
    for trusted in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        let trusted = trusted.map_err(|error| failed(&error))?;
        roots.add(trusted).map_err(|error| failed(&error))?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
    let verifier = match clients {
        ClientCertificates::Required(_) => verifier,
        ClientCertificates::Optional(_) => verifier.allow_unauthenticated(),
    };
    verifier.build().map_err(|error| failed(&error))
}

fn failed(error: &dyn fmt::Display) -> String {
    format!("cannot set up TLS: {error}")
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
