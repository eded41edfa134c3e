//! Certificates and tokens of a store.
//!
//! In: the cluster id, names, the time. Out: PEM texts, which go into Secrets only.
//! Guarantees: a member's certificate has the name that proves its id and cluster to other members.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp, Zoned, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;

/// The life of an authority: longer than most stores.
const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(3650 * 24);

/// The life of a member's certificate. A third of it before its end it is renewed.
const CERTIFICATE_LIFE: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Certificates start a day early, so that a member whose clock is behind accepts them.
const EARLY: SignedDuration = SignedDuration::from_hours(24);

/// 256 bits.
const TOKEN_BYTES: usize = 32;

/// A certificate or token could not be made.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The key or certificate could not be made.
    #[error("cannot issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    /// The operating system returned no random bytes.
    #[error("cannot make a token: the operating system returned no random bytes")]
    Random,
}

/// A certificate and its private key.
pub(crate) struct Certificate {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    pub(crate) not_after: Timestamp,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").finish_non_exhaustive()
    }
}

/// A new authority of a cluster.
pub(crate) fn new_authority(cluster_id: &str, now: Timestamp) -> Result<Certificate, TlsError> {
    let key = KeyPair::generate()?;
    let params = authority_params(cluster_id, now);
    Ok(Certificate {
        certificate_pem: params.self_signed(&key)?.pem(),
        key_pem: key.serialize_pem(),
        not_after: end_of(now, AUTHORITY_LIFE),
    })
}

/// A certificate for a member: server and client of other members.
pub(crate) fn issue(
    cluster_id: &str,
    authority_key_pem: &str,
    names: &[String],
    now: Timestamp,
) -> Result<Certificate, TlsError> {
    let issuer = Issuer::new(
        authority_params(cluster_id, now),
        KeyPair::from_pem(authority_key_pem)?,
    );
    let common_name = names.first().map_or("member", String::as_str);
    let mut params = dated(common_name, now, CERTIFICATE_LIFE);
    params.subject_alt_names = names
        .iter()
        .map(|name| name.as_str().try_into().map(SanType::DnsName))
        .collect::<Result<_, _>>()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate()?;
    Ok(Certificate {
        certificate_pem: params.signed_by(&key, &issuer)?.pem(),
        key_pem: key.serialize_pem(),
        not_after: end_of(now, CERTIFICATE_LIFE),
    })
}

/// A random token.
pub(crate) fn token() -> Result<String, TlsError> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| TlsError::Random)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// The same name for every certificate of one authority, so that issuers match.
fn authority_params(cluster_id: &str, now: Timestamp) -> CertificateParams {
    let mut params = dated(&format!("store {cluster_id}"), now, AUTHORITY_LIFE);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

fn dated(name: &str, now: Timestamp, life: SignedDuration) -> CertificateParams {
    let day = |time: Timestamp| {
        let date = Zoned::new(time, TimeZone::UTC).date();
        rcgen::date_time_ymd(
            i32::from(date.year()),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    let mut params = CertificateParams::default();
    params.not_before = day(now.saturating_sub(EARLY).unwrap_or(now));
    params.not_after = day(end_of(now, life));
    params.distinguished_name = DistinguishedName::new();
    // A common name has at most 64 characters; names are in the alternative names.
    let common_name: String = name.chars().take(64).collect();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.use_authority_key_identifier_extension = true;
    params
}

fn end_of(now: Timestamp, life: SignedDuration) -> Timestamp {
    now.saturating_add(life).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_signed_by_their_authority() {
        let now = Timestamp::UNIX_EPOCH;
        let authority = new_authority("c-1", now).unwrap();
        let names = vec![
            "m-1.c-1.store.bellerophon.io".to_owned(),
            "localhost".to_owned(),
        ];
        let issued = issue("c-1", &authority.key_pem, &names, now).unwrap();
        assert!(
            issued
                .certificate_pem
                .starts_with("-----BEGIN CERTIFICATE-----")
        );
        assert_ne!(issued.key_pem, authority.key_pem);
        assert_eq!(issued.not_after.as_second(), 90 * 24 * 3600);
    }

    #[test]
    fn tokens_have_256_random_bits() {
        let first = token().unwrap();
        assert_eq!(first.len(), 43);
        assert_ne!(first, token().unwrap());
    }
}
