//! The certificates of one server, issued when it starts.
//! In: the addresses it listens on and the date. Out: a CA, a TLS configuration, the
//! administrator's credentials.
//! Guarantees: private keys stay in memory; only the administrator's is written, and only to a
//! kubeconfig.

use std::{fmt, net::IpAddr, sync::Arc};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use bellerophon_apimachinery::time::Time;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};

use crate::{entropy::Entropy, options::ServingCertificate};

/// The administrator: the user of the kubeconfig, its client certificate and its token.
pub(crate) const ADMIN: &str = "admin";
/// Certificates are good for this long; a server is started far more often.
const LIFE_DAYS: i64 = 3650;
/// They start a day early, so that a client whose clock is behind accepts them.
const EARLY_DAYS: i64 = 1;
const DAY_SECONDS: i64 = 24 * 60 * 60;
/// The names under which pods of a cluster know its API server.
const SERVER_NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
/// 256 bits.
const TOKEN_BYTES: usize = 32;

/// Why certificates could not be made or used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A key or certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    /// The TLS library refused what was made.
    #[error("cannot set up TLS: {0}")]
    Configure(String),
}

/// A certificate and its private key, in PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// A CA and the certificates it signed: the server's and the administrator's.
pub(crate) struct Certificates {
    /// The CA certificate for clients.
    pub(crate) ca_pem: String,
    /// The identity of the administrator: user `admin`, group `system:masters`.
    pub(crate) admin: Identity,
    /// The authorities whose client certificates are accepted, in PEM.
    pub(crate) client_ca_pem: String,
    client_cas: Vec<CertificateDer<'static>>,
    /// The server's certificate, and those between it and what clients trust.
    server: Vec<CertificateDer<'static>>,
    server_key: PrivateKeyDer<'static>,
}

impl Certificates {
    /// Makes a CA and signs with it. The server certificate is good for loopback, the usual names
    /// and `addresses`.
    ///
    /// # Errors
    /// When the cryptographic library cannot make a key.
    pub(crate) fn issue(addresses: &[IpAddr], now: Time) -> Result<Self, TlsError> {
        let ca = authority(&format!("bellerophon-ca@{}", now.as_second()), now)?;

        let mut params = dated("bellerophon", now);
        params.subject_alt_names = server_names(addresses)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server_key = KeyPair::generate()?;
        let server = params.signed_by(&server_key, &ca)?;

        let mut params = client(ADMIN, now);
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:masters");
        let admin_key = KeyPair::generate()?;
        let admin = params.signed_by(&admin_key, &ca)?;

        Ok(Self {
            ca_pem: ca.pem(),
            admin: Identity {
                certificate_pem: admin.pem(),
                key_pem: admin_key.serialize_pem(),
            },
            client_ca_pem: ca.pem(),
            client_cas: vec![ca.der().clone()],
            server: vec![server.der().clone()],
            server_key: PrivateKeyDer::Pkcs8(server_key.serialize_der().into()),
        })
    }

    /// Replaces the server's certificate and the authorities of clients by those that others made.
    ///
    /// # Errors
    /// A text that is no certificate or key in PEM.
    pub(crate) fn replaced(
        mut self,
        serving: Option<&ServingCertificate>,
        client_ca_pem: Option<&str>,
    ) -> Result<Self, TlsError> {
        if let Some(serving) = serving {
            self.server = certificates_of("the serving certificate", &serving.certificate_pem)?;
            let key = PrivateKeyDer::from_pem_slice(serving.key_pem.as_bytes());
            self.server_key = key.map_err(|e| unreadable("the serving key", &e))?;
            // The authority is not known: clients trust the certificate itself.
            serving.certificate_pem.clone_into(&mut self.ca_pem);
        }
        if let Some(pem) = client_ca_pem {
            self.client_cas = certificates_of("the client CA", pem)?;
            pem.clone_into(&mut self.client_ca_pem);
        }
        Ok(self)
    }

    /// TLS 1.2 and 1.3, HTTP/2 before HTTP/1.1; a client certificate is optional, but one that is
    /// shown must be the CA's.
    ///
    /// # Errors
    /// When the TLS library refuses the certificates.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let refused = |e: &dyn fmt::Display| TlsError::Configure(e.to_string());
        let mut roots = RootCertStore::empty();
        for ca in &self.client_cas {
            roots.add(ca.clone()).map_err(|e| refused(&e))?;
        }
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .allow_unauthenticated()
            .build()
            .map_err(|e| refused(&e))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|e| refused(&e))?
            .with_client_cert_verifier(clients)
            .with_single_cert(self.server.clone(), self.server_key.clone_key())
            .map_err(|e| refused(&e))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// The certificates of a text in PEM, at least one.
fn certificates_of(what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(unreadable(what, &"no certificate in PEM")),
        Err(error) => Err(unreadable(what, &error)),
    }
}

fn unreadable(what: &str, why: &dyn fmt::Display) -> TlsError {
    TlsError::Configure(format!("cannot read {what}: {why}"))
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

/// A client certificate of an authority that signs nothing else.
pub(crate) struct ClientCertificate {
    /// The authority, in PEM.
    pub(crate) ca_pem: String,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivatePkcs8KeyDer<'static>,
}

/// Makes an authority, and a client certificate that it signs.
///
/// # Errors
/// When the cryptographic library cannot make a key.
pub(crate) fn issue_client(
    authority_name: &str,
    name: &str,
    now: Time,
) -> Result<ClientCertificate, TlsError> {
    let ca = authority(authority_name, now)?;
    let key = KeyPair::generate()?;
    let certificate = client(name, now).signed_by(&key, &ca)?;
    Ok(ClientCertificate {
        ca_pem: ca.pem(),
        certificate: certificate.der().clone(),
        key: key.serialize_der().into(),
    })
}

/// A new authority.
fn authority(name: &str, now: Time) -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = dated(name, now);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

/// A certificate by which a client proves its name.
fn client(name: &str, now: Time) -> CertificateParams {
    let mut params = dated(name, now);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// A static bearer token of 256 random bits.
pub(crate) fn admin_token() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Entropy::from_os().bytes(TOKEN_BYTES))
}

/// The one cryptographic provider, named so that no process-wide default is needed.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate for `name`, good from about now on.
fn dated(name: &str, now: Time) -> CertificateParams {
    let day = |days: i64| {
        let text = now.plus_seconds(days * DAY_SECONDS).to_string();
        let number = |range: std::ops::Range<usize>| {
            text.get(range)
                .and_then(|digits| digits.parse::<u16>().ok())
                .unwrap_or(1)
        };
        let small = |n: u16| u8::try_from(n).unwrap_or(1);
        rcgen::date_time_ymd(
            i32::from(number(0..4)),
            small(number(5..7)),
            small(number(8..10)),
        )
    };
    let mut params = CertificateParams::default();
    params.not_before = day(-EARLY_DAYS);
    params.not_after = day(LIFE_DAYS);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // Strict verifiers, Python 3.13's among them, refuse a certificate that does not name its
    // issuer's key.
    params.use_authority_key_identifier_extension = true;
    params
}

fn server_names(addresses: &[IpAddr]) -> Result<Vec<SanType>, rcgen::Error> {
    let mut names = SERVER_NAMES
        .into_iter()
        .map(|name| name.try_into().map(SanType::DnsName))
        .collect::<Result<Vec<_>, _>>()?;
    let loopback = [
        IpAddr::from([127, 0, 0, 1]),
        IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1_u16]),
    ];
    for address in loopback
        .iter()
        .chain(addresses)
        .filter(|a| !a.is_unspecified())
    {
        let name = SanType::IpAddress(*address);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer as _, X509Certificate};

    use super::*;
    use crate::auth::PeerCertificate;

    fn certificates() -> Certificates {
        let now = Time::parse("2026-02-28T12:00:00Z").expect("a time");
        Certificates::issue(
            &[IpAddr::from([10, 1, 2, 3]), IpAddr::from([0, 0, 0, 0])],
            now,
        )
        .expect("certificates")
    }

    #[test]
    fn server_certificate_covers_names_addresses_and_dates() {
        let made = certificates();
        let (_, certificate) = X509Certificate::from_der(&made.server[0]).expect("a certificate");
        let names = certificate
            .subject_alternative_name()
            .expect("readable")
            .expect("present")
            .value
            .general_names
            .len();
        assert_eq!(names, SERVER_NAMES.len() + 3);
        let validity = certificate.validity();
        assert_eq!(
            validity.not_before.timestamp(),
            Time::parse("2026-02-27T00:00:00Z")
                .expect("a time")
                .as_second()
        );
        assert_eq!(
            validity.not_after.timestamp(),
            Time::parse("2036-02-26T00:00:00Z")
                .expect("a time")
                .as_second()
        );
        assert!(made.server_config().is_ok());
    }

    #[test]
    fn admin_certificate_authenticates_admin() {
        let pem = certificates().admin.certificate_pem;
        let (_, parsed) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
        let peer = format!(
            "{:?}",
            PeerCertificate::from_der(&parsed.contents).expect("a user")
        );
        assert!(
            peer.contains("\"admin\"") && peer.contains("\"system:masters\""),
            "{peer}"
        );
    }

    #[test]
    fn certificates_of_others_replace_the_issued_ones() {
        let issued = certificates();
        let other = certificates();
        let serving = ServingCertificate {
            certificate_pem: other.admin.certificate_pem.clone(),
            key_pem: other.admin.key_pem.clone(),
        };
        let replaced = issued
            .replaced(Some(&serving), Some(&other.ca_pem))
            .expect("PEM");
        assert_eq!(replaced.client_cas, other.client_cas);
        assert_eq!(replaced.client_ca_pem, other.ca_pem);
        assert_eq!(replaced.ca_pem, other.admin.certificate_pem);
        assert!(replaced.server_config().is_ok());
        let error = replaced.replaced(None, Some("junk")).expect_err("refused");
        assert!(
            error.to_string().contains("cannot read the client CA"),
            "{error}"
        );
    }

    #[test]
    fn secrets_are_not_printed() {
        let made = certificates();
        assert_eq!(
            format!("{made:?} {:?}", made.admin),
            "Certificates { .. } Identity { .. }"
        );
        assert_eq!(admin_token().len(), 43);
        assert_ne!(admin_token(), admin_token());
    }
}
