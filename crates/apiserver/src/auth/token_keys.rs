//! The keys of service-account tokens: what signs them, and what verifies them.
//! In: keys in PEM, as the flags `--service-account-signing-key-file` and
//! `--service-account-key-file` of kube-apiserver take them. Out: signatures, verdicts and JSON web
//! keys.
//! Guarantee: the algorithm of a signature is that of the key, never one that a token names.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    rsa,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
        RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, UnparsedPublicKey, VerificationAlgorithm,
    },
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer,
    pem::{PemObject as _, SectionKind},
};
use serde_json::{Value, json};
use x509_parser::{
    certificate::X509Certificate, prelude::FromDer as _, public_key, x509::SubjectPublicKeyInfo,
};

/// The bytes before the 65 bytes of a P-256 point in a public key in DER.
const P256_KEY_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The algorithm identifier of an RSA key in DER: rsaEncryption, NULL.
const RSA_ALGORITHM: [u8; 15] = [
    0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; service-account keys are P-256 or RSA keys of 2048 bits or more, in PEM")]
pub(crate) struct KeyError(String);

impl KeyError {
    fn new(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}

/// A private key.
pub(crate) enum SigningKey {
    P256(EcdsaKeyPair),
    Rsa(rsa::KeyPair),
}

impl SigningKey {
    /// A new P-256 key.
    pub(crate) fn generate() -> Self {
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
                .expect("the operating system has randomness to give");
        Self::from_pkcs8(document.as_ref()).expect("a generated key is valid")
    }

    /// The first private key of a PEM file.
    ///
    /// # Errors
    /// There is none, or it is of another type.
    pub(crate) fn from_pem(pem: &str) -> Result<Self, KeyError> {
        match PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(KeyError::new)? {
            PrivateKeyDer::Pkcs8(key) => Self::from_pkcs8(key.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(key) => rsa::KeyPair::from_der(key.secret_pkcs1_der())
                .map(Self::Rsa)
                .map_err(KeyError::new),
            _ => Err(KeyError::new("a private key that is not in PKCS#8")),
        }
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &random)
            .map(Self::P256)
            .or_else(|_| rsa::KeyPair::from_pkcs8(pkcs8).map(Self::Rsa))
            .map_err(KeyError::new)
    }

    /// The algorithm as a token names it.
    pub(crate) fn algorithm(&self) -> &'static str {
        self.public().algorithm.name()
    }

    /// Signs a message.
    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        const REASON: &str = "signing fails only without randomness";
        let random = SystemRandom::new();
        match self {
            Self::P256(key) => key.sign(&random, message).expect(REASON).as_ref().to_vec(),
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .expect(REASON);
                signature
            }
        }
    }

    /// The public key that verifies its signatures.
    pub(crate) fn public(&self) -> PublicKey {
        match self {
            Self::P256(key) => {
                let point = key.public_key().as_ref();
                let spki = [&P256_KEY_HEAD[..], point].concat();
                PublicKey::new(Algorithm::Es256, point, &spki)
            }
            Self::Rsa(key) => {
                let key = key.public_key().as_ref();
                let bits = der(0x03, &[&[0], key].concat());
                let spki = der(0x30, &[&RSA_ALGORITHM[..], &bits].concat());
                PublicKey::new(Algorithm::Rs256, key, &spki)
            }
        }
    }
}

/// A value in DER with its tag and length.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant = length
        .iter()
        .position(|byte| *byte != 0)
        .unwrap_or(length.len() - 1);
    let length = &length[significant..];
    let mut encoded = vec![tag];
    if content.len() >= 0x80 {
        let count = u8::try_from(length.len()).expect("a length has at most eight bytes");
        encoded.push(0x80 | count);
    }
    encoded.extend(length);
    encoded.extend(content);
    encoded
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Es256,
    Rs256,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }

    fn verification(self) -> &'static dyn VerificationAlgorithm {
        match self {
            Self::Es256 => &ECDSA_P256_SHA256_FIXED,
            Self::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
        }
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicKey {
    algorithm: Algorithm,
    /// The bit string of the key in DER: a P-256 point, or an RSA modulus and exponent.
    key: Vec<u8>,
    /// The digest of the key in DER, as Kubernetes makes key ids.
    pub(crate) id: String,
}

impl PublicKey {
    fn new(algorithm: Algorithm, key: &[u8], spki: &[u8]) -> Self {
        Self {
            algorithm,
            key: key.to_vec(),
            id: BASE64.encode(digest(&SHA256, spki)),
        }
    }

    /// The public keys of a PEM file: of certificates, public keys and private keys. Mirrors
    /// `PublicKeysFromFile`.
    ///
    /// # Errors
    /// The file has no key, or one of another type.
    pub(crate) fn from_pem(pem: &str) -> Result<Vec<Self>, KeyError> {
        let mut keys = Vec::new();
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem.as_bytes()) {
            let (kind, der) = section.map_err(KeyError::new)?;
            match kind {
                SectionKind::Certificate => {
                    let der = CertificateDer::from(der);
                    let (_, certificate) =
                        X509Certificate::from_der(&der).map_err(KeyError::new)?;
                    keys.push(Self::from_spki(certificate.public_key())?);
                }
                SectionKind::PublicKey => {
                    let der = SubjectPublicKeyInfoDer::from(der);
                    let (_, spki) = SubjectPublicKeyInfo::from_der(&der).map_err(KeyError::new)?;
                    keys.push(Self::from_spki(&spki)?);
                }
                _ => {}
            }
        }
        if keys.is_empty() {
            keys.push(SigningKey::from_pem(pem)?.public());
        }
        Ok(keys)
    }

    fn from_spki(spki: &SubjectPublicKeyInfo<'_>) -> Result<Self, KeyError> {
        let key: &[u8] = &spki.subject_public_key.data;
        match spki.parsed() {
            Ok(public_key::PublicKey::EC(_)) if spki.raw.starts_with(&P256_KEY_HEAD) => {
                Ok(Self::new(Algorithm::Es256, key, spki.raw))
            }
            Ok(public_key::PublicKey::RSA(_)) => Ok(Self::new(Algorithm::Rs256, key, spki.raw)),
            Ok(_) => Err(KeyError::new("a public key of another type")),
            Err(error) => Err(KeyError::new(error)),
        }
    }

    /// Whether this key made the signature, by the algorithm that the token names.
    pub(crate) fn verifies(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(self.algorithm.verification(), &self.key);
        self.algorithm.name() == algorithm && key.verify(message, signature).is_ok()
    }

    /// The key as a JSON web key.
    pub(crate) fn to_jwk(&self) -> Value {
        let mut jwk = match self.algorithm {
            Algorithm::Es256 => {
                let (x, y) = self.key[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "x": BASE64.encode(x), "y": BASE64.encode(y)})
            }
            Algorithm::Rs256 => {
                let components = rsa_components(&self.key);
                let [n, e] = components.map(|number| BASE64.encode(number));
                json!({"kty": "RSA", "n": n, "e": e})
            }
        };
        jwk["use"] = "sig".into();
        jwk["kid"] = self.id.as_str().into();
        jwk["alg"] = self.algorithm.name().into();
        jwk
    }
}

/// Modulus and exponent of an RSA key, big-endian without leading zeros.
fn rsa_components(key: &[u8]) -> [&[u8]; 2] {
    let positive = |number: &'_ [u8]| number.iter().take_while(|byte| **byte == 0).count();
    match public_key::RSAPublicKey::from_der(key) {
        Ok((_, parsed)) => {
            [parsed.modulus, parsed.exponent].map(|number| &number[positive(number)..])
        }
        Err(_) => [&[], &[]],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate of a new P-256 key and that key, in PEM.
    fn certificate() -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::default().self_signed(&key);
        (
            certificate.expect("a certificate").pem(),
            key.serialize_pem(),
        )
    }

    #[test]
    fn certificate_verifies_what_its_key_signed() {
        let (certificate, key) = certificate();
        let signing = SigningKey::from_pem(&key).expect("a key");
        let signature = signing.sign(b"message");
        for pem in [certificate.as_str(), &key] {
            let keys = PublicKey::from_pem(pem).expect("keys");
            assert_eq!(keys, [signing.public()], "{pem}");
            assert!(keys[0].verifies("ES256", b"message", &signature));
            assert!(!keys[0].verifies("RS256", b"message", &signature));
            assert!(!keys[0].verifies("ES256", b"other", &signature));
        }
    }

    #[test]
    fn all_keys_of_a_file_are_read_and_other_files_refused() {
        let (first, _) = certificate();
        let (second, _) = certificate();
        let keys = PublicKey::from_pem(&format!("{first}{second}")).expect("keys");
        assert_eq!(keys.len(), 2);
        let error = PublicKey::from_pem("no key")
            .expect_err("refused")
            .to_string();
        assert!(error.contains("P-256 or RSA"), "{error}");
    }

    #[test]
    fn lengths_are_encoded_as_der_demands() {
        assert_eq!(der(4, &[]), [4, 0]);
        assert_eq!(der(4, &[7; 127])[..2], [4, 127]);
        assert_eq!(der(4, &[7; 128])[..3], [4, 0x81, 128]);
        assert_eq!(der(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
    }

    #[test]
    fn key_is_published_by_its_coordinates() {
        let jwk = SigningKey::generate().public().to_jwk();
        assert_eq!(jwk["kty"], "EC");
        assert_eq!(jwk["x"].as_str().map(str::len), Some(43));
        assert_eq!(jwk["y"].as_str().map(str::len), Some(43));
    }
}
