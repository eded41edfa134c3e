//! Secrets: the authority, tokens and certificates of a store.

use std::collections::BTreeMap;

use bellerophon::owner::OwnerError;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::{owned, shared_metadata};
use crate::{crd::Bellerophon, names, tls::Certificate};

/// The key of a certificate in a Secret.
pub(crate) const CERTIFICATE: &str = "tls.crt";
/// The key of a private key in a Secret.
pub(crate) const PRIVATE_KEY: &str = "tls.key";
/// The key of the authority's certificate in a Secret.
pub(crate) const CA_CERTIFICATE: &str = "ca.crt";
/// The key of a token in a Secret.
pub(crate) const TOKEN: &str = "token";

/// A Secret of a store.
pub(crate) fn secret(
    hero: &Bellerophon,
    name: String,
    data: impl IntoIterator<Item = (&'static str, String)>,
) -> Result<Secret, OwnerError> {
    let data = data
        .into_iter()
        .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
    let secret = Secret {
        metadata: shared_metadata(hero, name),
        data: Some(data.collect()),
        ..Secret::default()
    };
    owned(hero, secret)
}

/// The Secret with a member's certificate.
pub(crate) fn certificate_secret(
    hero: &Bellerophon,
    member: &str,
    certificate: Certificate,
    ca_pem: String,
) -> Result<Secret, OwnerError> {
    let data = [
        (CERTIFICATE, certificate.certificate_pem),
        (PRIVATE_KEY, certificate.key_pem),
        (CA_CERTIFICATE, ca_pem),
    ];
    let mut secret = secret(hero, names::member_secret(member), data)?;
    let end = certificate.not_after.to_string();
    let annotations = BTreeMap::from([(names::NOT_AFTER_ANNOTATION.to_owned(), end)]);
    secret.metadata.annotations = Some(annotations);
    Ok(secret)
}

/// A text in a Secret; `None` if it is missing or empty.
pub(crate) fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    let text = String::from_utf8(bytes.clone()).ok()?;
    (!text.is_empty()).then_some(text)
}

/// When the certificate in a Secret expires.
pub(crate) fn not_after(secret: &Secret) -> Option<Timestamp> {
    let annotations = secret.metadata.annotations.as_ref()?;
    annotations.get(names::NOT_AFTER_ANNOTATION)?.parse().ok()
}
