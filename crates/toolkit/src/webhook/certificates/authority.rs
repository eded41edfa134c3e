//! Authorities: what signs the certificates of replicas, and its rotation.
//!
//! In: the state in the Secret, the time, and whether every configuration shows the bundle. Out:
//! the next state, and certificates of replicas.
//! Guarantees: the API server trusts an authority before anything is signed with it, and until the
//! last certificate that it signed has ended.
//!
//! ```text
//! Stable ──(2/3 of its life)──→ Publishing: bundle [old, new], signed by old
//!    ↑                               │ every configuration shows both, and PUBLISH_MARGIN later
//!    │                               ▼
//!    └──(LEAF_LIFE + margin)──── Retiring: bundle [old, new], signed by new
//! ```

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};

use crate::webhook::server::provider;

const HOUR: Duration = Duration::from_secs(3600);

/// How long an authority is valid. It is replaced after two thirds of it.
pub(crate) const AUTHORITY_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a certificate of a replica is valid. It is replaced after two thirds of it.
pub(crate) const LEAF_LIFE: Duration = Duration::from_secs(24 * 3600);

/// How long API servers may take to see a configuration after it shows the bundle.
pub(crate) const PUBLISH_MARGIN: Duration = Duration::from_secs(15 * 60);

/// How long after the switch a replica may still sign with the old authority: its cache is old, or
/// its clock is ahead.
pub(crate) const RETIRE_MARGIN: Duration = HOUR;

/// How far the clock of an API server may be behind.
const CLOCK_SKEW: Duration = HOUR;

/// Why a certificate cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("cannot make a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    #[error("the pair of certificate and key is not usable: {0}")]
    Pair(#[from] rustls::Error),
    #[error("this is not PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("{0} has no certificate")]
    Empty(&'static str),
}

/// A certificate authority.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Authority {
    /// Its common name, which certificates that it signs repeat.
    name: String,
    certificate: String,
    key: String,
    not_before: Time,
    not_after: Time,
}

/// Never its key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("name", &self.name)
            .field("not_after", &self.not_after.0)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// A new authority. `serial` distinguishes it from others of the same second.
    pub(crate) fn new(serial: u64, now: Timestamp) -> Result<Self, CertificateError> {
        let name = format!("bellerophon-webhook-ca@{}-{serial:x}", now.as_second());
        let not_before = before(now, CLOCK_SKEW);
        let not_after = after(now, AUTHORITY_LIFE);
        let key = KeyPair::generate()?;
        let certificate = authority_params(&name, not_before, not_after).self_signed(&key)?;
        Ok(Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            name,
            not_before: Time(not_before),
            not_after: Time(not_after),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn certificate_pem(&self) -> &str {
        &self.certificate
    }

    /// When the rotation to the next one begins.
    fn renew_at(&self) -> Timestamp {
        before(self.not_after.0, AUTHORITY_LIFE / 3)
    }

    /// Signs a certificate of a replica with these names. `read_at` is when this authority was
    /// read from the Secret: no certificate outlives that by more than [`LEAF_LIFE`], so that an
    /// authority that is no longer in the Secret ends in time.
    pub(crate) fn sign(
        &self,
        names: &[SubjectName],
        read_at: Timestamp,
        now: Timestamp,
    ) -> Result<Leaf, CertificateError> {
        let issuer_key = KeyPair::from_pem(&self.key)?;
        let params = authority_params(&self.name, self.not_before.0, self.not_after.0);
        let issuer = Issuer::new(params, issuer_key);
        let not_after = after(read_at, LEAF_LIFE).min(self.not_after.0);
        let mut params = named("bellerophon-webhook", before(now, CLOCK_SKEW), not_after);
        params.subject_alt_names = names
            .iter()
            .map(SubjectName::to_san)
            .collect::<Result<_, _>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let pair = certified(vec![certificate.der().clone()], key.into())?;
        Ok(Leaf {
            authority: self.name.clone(),
            pair: pair.into(),
            renew_at: before(not_after, LEAF_LIFE / 3),
            not_after,
        })
    }
}

/// A name that a certificate is valid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubjectName {
    Dns(String),
    Ip(IpAddr),
}

impl SubjectName {
    /// From the host of a URL.
    pub(crate) fn of_host(host: &str) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match host.parse() {
            Ok(address) => Self::Ip(address),
            Err(_) => Self::Dns(host.to_owned()),
        }
    }

    fn to_san(&self) -> Result<SanType, rcgen::Error> {
        Ok(match self {
            Self::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
            Self::Ip(address) => SanType::IpAddress(*address),
        })
    }
}

/// A certificate of a replica, in memory.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// The name of the authority that signed it.
    pub(crate) authority: String,
    pub(crate) pair: std::sync::Arc<CertifiedKey>,
    pub(crate) renew_at: Timestamp,
    pub(crate) not_after: Timestamp,
}

/// A certificate chain with its key, which is checked to be that of the certificate.
pub(crate) fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, CertificateError> {
    let pair = CertifiedKey::from_der(chain, key, &provider())?;
    // Also where the key type could not be compared above.
    pair.keys_match()?;
    Ok(pair)
}

/// The same from PEM.
pub(crate) fn certified_pem(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() {
        return Err(CertificateError::Empty("tls.crt"));
    }
    certified(chain, PrivateKeyDer::from_pem_slice(key)?)
}

/// The authorities in the Secret.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Authorities {
    /// What replicas sign with.
    pub(crate) signer: Authority,
    pub(crate) phase: Phase,
}

/// The rotation of the authority.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "name"
)]
pub(crate) enum Phase {
    /// There is one authority.
    Stable,
    /// The next authority is in the bundle and signs nothing.
    Publishing {
        next: Authority,
        /// Since when every configuration shows it.
        shown_since: Option<Time>,
    },
    /// The old authority is in the bundle and signs nothing.
    Retiring {
        /// The certificate of the old authority.
        old: String,
        /// Since when the new one signs.
        since: Time,
    },
}

impl Authorities {
    /// The first authority of a cluster.
    pub(crate) fn new(serial: u64, now: Timestamp) -> Result<Self, CertificateError> {
        Ok(Self {
            signer: Authority::new(serial, now)?,
            phase: Phase::Stable,
        })
    }

    /// The certificates that the API server is to trust.
    pub(crate) fn certificates(&self) -> Vec<&str> {
        let signer = self.signer.certificate_pem();
        match &self.phase {
            Phase::Stable => vec![signer],
            Phase::Publishing { next, .. } => vec![signer, next.certificate_pem()],
            Phase::Retiring { old, .. } => vec![old, signer],
        }
    }

    /// The same as a `caBundle`.
    pub(crate) fn bundle(&self) -> String {
        self.certificates().concat()
    }

    /// Whether a `caBundle` has every certificate.
    pub(crate) fn is_shown_by(&self, bundle: &str) -> bool {
        let mut certificates = self.certificates().into_iter();
        certificates.all(|certificate| bundle.contains(certificate.trim()))
    }

    /// The next state; `None` while there is nothing to do. `is_shown` is whether every
    /// configuration, as the API server returns it, has every certificate of the bundle.
    pub(crate) fn next(
        &self,
        is_shown: bool,
        serial: u64,
        now: Timestamp,
    ) -> Result<Option<Self>, CertificateError> {
        let phase = match &self.phase {
            Phase::Stable if now >= self.signer.renew_at() => Phase::Publishing {
                next: Authority::new(serial, now)?,
                shown_since: None,
            },
            Phase::Publishing { next, shown_since } => match (is_shown, shown_since) {
                (true, Some(since)) if now >= after(since.0, PUBLISH_MARGIN) => {
                    return Ok(Some(Self {
                        signer: next.clone(),
                        phase: Phase::Retiring {
                            old: self.signer.certificate.clone(),
                            since: Time(now),
                        },
                    }));
                }
                (true, None) => Phase::Publishing {
                    next: next.clone(),
                    shown_since: Some(Time(now)),
                },
                // Another client changed a configuration: the proof begins again.
                (false, Some(_)) => Phase::Publishing {
                    next: next.clone(),
                    shown_since: None,
                },
                _ => return Ok(None),
            },
            Phase::Retiring { since, .. } if now >= after(since.0, LEAF_LIFE + RETIRE_MARGIN) => {
                Phase::Stable
            }
            _ => return Ok(None),
        };
        Ok(Some(Self {
            signer: self.signer.clone(),
            phase,
        }))
    }
}

fn authority_params(name: &str, not_before: Timestamp, not_after: Timestamp) -> CertificateParams {
    let mut params = named(name, not_before, not_after);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

fn named(name: &str, not_before: Timestamp, not_after: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let seconds = |time: Timestamp| Duration::from_secs(time.as_second().unsigned_abs());
    params.not_before = epoch + seconds(not_before);
    params.not_after = epoch + seconds(not_after);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // Strict verifiers refuse a certificate that does not name its issuer's key.
    params.use_authority_key_identifier_extension = true;
    params
}

pub(crate) fn after(time: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    time.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

fn before(time: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    time.saturating_sub(duration).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests; // three years of rotations
