//! Service-account tokens: JSON web tokens signed with the server's own key.
//! In: claims. Out: a compact token; or, from a token, the user it stands for.
//! Guarantees: a token is good only while its service account, and the object it is bound to, exist
//! with the uid it names.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
        UnparsedPublicKey,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Lookup, claims::Claims, user::User};
use crate::{field::go_quote, object::Time};

/// Who issues the tokens, and whom they are for unless they say otherwise.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";
/// What stands before the 65 bytes of a P-256 point in a public key in DER.
const P256_KEY_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// A good token: whom it stands for, and for which of the audiences asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) user: User,
    pub(crate) audiences: Vec<String>,
}

/// Why a token is not good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenFault {
    /// It is no token of this issuer, so nothing more can be said about it.
    Foreign,
    /// It is, and this is wrong with it.
    Bad(String),
}

/// How many tokens are remembered whose signature was verified.
const VERIFIED_MAX: usize = 1024;

/// The key that signs tokens, and the documents that let others verify them.
pub(crate) struct Tokens {
    key: EcdsaKeyPair,
    /// The digest of the public key, as Kubernetes makes key ids.
    key_id: String,
    verified: Mutex<VerifiedTokens>,
}

/// Claims whose signature was verified, by the digest of their token. To verify a signature takes
/// longer than most requests; time and binding of the claims are checked for each request.
#[derive(Default)]
struct VerifiedTokens {
    recent: HashMap<[u8; 32], Arc<Claims>>,
    /// What `recent` was before it was full.
    previous: HashMap<[u8; 32], Arc<Claims>>,
}

impl VerifiedTokens {
    fn get(&mut self, digest: &[u8; 32]) -> Option<Arc<Claims>> {
        if let Some(claims) = self.recent.get(digest) {
            return Some(claims.clone());
        }
        let claims = self.previous.remove(digest)?;
        self.insert(*digest, claims.clone());
        Some(claims)
    }

    fn insert(&mut self, digest: [u8; 32], claims: Arc<Claims>) {
        if self.recent.len() >= VERIFIED_MAX / 2 {
            self.previous = std::mem::take(&mut self.recent);
        }
        self.recent.insert(digest, claims);
    }
}

impl Tokens {
    /// A fresh signing key, in PKCS#8; keep it to have tokens outlive the server.
    pub(crate) fn generate_key() -> Vec<u8> {
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        document
            .expect("the operating system has randomness to give")
            .as_ref()
            .to_vec()
    }

    /// Signs with the key given.
    ///
    /// # Errors
    /// A key that is no P-256 key in PKCS#8.
    pub(crate) fn with_key(pkcs8: &[u8]) -> Result<Self, ring::error::KeyRejected> {
        let key = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            pkcs8,
            &SystemRandom::new(),
        )?;
        let der = [&P256_KEY_HEAD[..], key.public_key().as_ref()].concat();
        let key_id = BASE64.encode(digest(&SHA256, &der));
        Ok(Self {
            key,
            key_id,
            verified: Mutex::default(),
        })
    }

    /// The compact token that carries `claims`.
    pub(crate) fn sign(&self, claims: &Claims) -> String {
        let header = Header {
            alg: "ES256".into(),
            kid: self.key_id.clone(),
        };
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let signature = self
            .key
            .sign(&SystemRandom::new(), signed.as_bytes())
            .expect("signing fails only without randomness");
        format!("{signed}.{}", BASE64.encode(signature))
    }

    /// The user a token stands for. `audiences` are those the user accepts.
    ///
    /// # Errors
    /// A foreign token, or one that is wrong, out of date, for another audience, or bound to what
    /// is gone.
    pub(crate) fn verify(
        &self,
        token: &str,
        audiences: &[String],
        stored: &dyn Lookup,
        now: Time,
    ) -> Result<Verified, TokenFault> {
        let claims = self.claims(token)?;
        let shared: Vec<String> = claims
            .aud
            .iter()
            .filter(|a| audiences.contains(a))
            .cloned()
            .collect();
        if shared.is_empty() {
            let quoted = |list: &[String]| {
                list.iter()
                    .map(|a| go_quote(a))
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let held = quoted(&claims.aud);
            let wanted = quoted(audiences);
            return Err(TokenFault::Bad(format!(
                "token audiences [{held}] is invalid for the target audiences [{wanted}]"
            )));
        }
        claims
            .validate_time(now)
            .and_then(|()| claims.binding.validate(stored, now))
            .map_err(TokenFault::Bad)?;
        Ok(Verified {
            user: claims.user(),
            audiences: shared,
        })
    }

    /// Claims whose issuer and signature are ours, verified now or before.
    fn claims(&self, token: &str) -> Result<Arc<Claims>, TokenFault> {
        let verified = || self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = sha256(token.as_bytes());
        if let Some(claims) = verified().get(&digest) {
            return Ok(claims);
        }
        let claims = Arc::new(self.read(token)?);
        verified().insert(digest, claims.clone());
        Ok(claims)
    }

    /// Claims whose issuer and signature are ours.
    fn read(&self, token: &str) -> Result<Claims, TokenFault> {
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenFault::Foreign)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenFault::Foreign)?;
        let header: Header = decode(header).ok_or(TokenFault::Foreign)?;
        let claims: Claims = decode(payload).ok_or(TokenFault::Foreign)?;
        if claims.iss != ISSUER {
            return Err(TokenFault::Foreign);
        }
        if !header.kid.is_empty() && header.kid != self.key_id {
            return Err(TokenFault::Bad("invalid signature, no keys found".into()));
        }
        // The algorithm is fixed by the key, never taken from the token.
        let error = || TokenFault::Bad("go-jose/go-jose: error in cryptographic primitive".into());
        let signature = BASE64.decode(signature).map_err(|_| TokenFault::Foreign)?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref());
        key.verify(signed.as_bytes(), &signature)
            .map_err(|_| error())?;
        if header.alg == "ES256" {
            Ok(claims)
        } else {
            Err(error())
        }
    }

    /// The document at `/openid/v1/jwks` (`application/jwk-set+json`).
    pub(crate) fn key_set(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        json!({"keys": [{"use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
                         "x": BASE64.encode(x), "y": BASE64.encode(y)}]})
    }

    /// The document at `/.well-known/openid-configuration`, for a server reached at `address`
    /// (`host:port`).
    pub(crate) fn discovery(&self, address: &str) -> Value {
        json!({
            "issuer": ISSUER,
            "jwks_uri": format!("https://{address}/openid/v1/jwks"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

/// The SHA-256 digest.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes)
        .as_ref()
        .try_into()
        .expect("SHA-256 has 32 bytes")
}

fn encode(part: &impl Serialize) -> String {
    BASE64.encode(serde_json::to_vec(part).expect("tokens have string keys only"))
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    serde_json::from_slice(&BASE64.decode(part).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{
        Source,
        claims::{Binding, Named},
        fake_lookup::FakeLookup,
    };

    const NOW: i64 = 1_780_000_000;

    fn at(seconds: i64) -> Time {
        Time::parse("1970-01-01T00:00:00Z")
            .expect("a time")
            .plus_seconds(seconds)
    }

    fn tokens() -> Tokens {
        Tokens::with_key(&Tokens::generate_key()).expect("a good key")
    }

    fn claims() -> Claims {
        let serviceaccount = Named {
            name: "default".into(),
            uid: "u1".into(),
        };
        Claims {
            aud: vec![ISSUER.into()],
            exp: NOW + 600,
            iat: NOW,
            nbf: NOW,
            iss: ISSUER.into(),
            jti: "j".into(),
            sub: "system:serviceaccount:ns:default".into(),
            binding: Binding {
                namespace: "ns".into(),
                serviceaccount,
                ..Binding::default()
            },
        }
    }

    fn fake_lookup() -> FakeLookup {
        FakeLookup::default().with(
            Source::ServiceAccount,
            json!({"metadata": {"name": "default", "namespace": "ns", "uid": "u1"}}),
        )
    }

    #[test]
    fn verified_tokens_are_bounded_and_still_checked() {
        let tokens = tokens();
        let audiences = [ISSUER.to_owned()];
        let token = tokens.sign(&claims());
        for _ in 0..2 {
            let verified = tokens.verify(&token, &audiences, &fake_lookup(), at(NOW));
            assert!(verified.is_ok());
        }
        let remembered = || {
            let verified = tokens.verified.lock().expect("no test panicked");
            verified.recent.len() + verified.previous.len()
        };
        assert_eq!(remembered(), 1);
        let expired = tokens.verify(&token, &audiences, &fake_lookup(), at(NOW + 700));
        assert!(expired.is_err());
        let deleted = tokens.verify(&token, &audiences, &FakeLookup::default(), at(NOW));
        assert!(deleted.is_err());
        let forged = format!("{token}A");
        let forged = tokens.verify(&forged, &audiences, &fake_lookup(), at(NOW));
        assert!(forged.is_err());
        assert_eq!(remembered(), 1);
        for number in 0..2 * VERIFIED_MAX {
            let mut verified = tokens.verified.lock().expect("no test panicked");
            verified.insert(sha256(&number.to_le_bytes()), Arc::new(claims()));
        }
        assert!(remembered() <= VERIFIED_MAX);
    }

    fn verdict(claims: &Claims, stored: &FakeLookup, now: i64) -> String {
        let tokens = tokens();
        match tokens.verify(
            &tokens.sign(claims),
            &[ISSUER.to_owned(), "vault".to_owned()],
            stored,
            at(now),
        ) {
            Ok(v) => format!("{} for {}", v.user.name, v.audiences.join(",")),
            Err(TokenFault::Foreign) => "foreign".into(),
            Err(TokenFault::Bad(why)) => why,
        }
    }

    #[test]
    fn token_stands_for_its_service_account_until_it_expires() {
        let good = "system:serviceaccount:ns:default for https://kubernetes.default.svc";
        for (now, want) in [
            (NOW, good),
            (NOW - 60, good),
            (NOW - 61, "service account token is not valid yet"),
            (NOW + 660, good),
            (NOW + 661, "service account token has expired"),
        ] {
            assert_eq!(
                verdict(&claims(), &fake_lookup(), now),
                want,
                "{}",
                now - NOW
            );
        }
        let other = Claims {
            aud: vec!["x".into()],
            ..claims()
        };
        let error = format!(
            "token audiences [\"x\"] is invalid for the target audiences [\"{ISSUER}\" \"vault\"]"
        );
        assert_eq!(verdict(&other, &fake_lookup(), NOW), error);
        assert_eq!(
            verdict(
                &Claims {
                    iss: "https://elsewhere".into(),
                    ..claims()
                },
                &fake_lookup(),
                NOW
            ),
            "foreign"
        );
    }

    #[test]
    fn token_dies_with_what_it_is_bound_to() {
        let named = |uid: &str| {
            Some(Named {
                name: "x".into(),
                uid: uid.into(),
            })
        };
        let bound = |secret, pod, node| Claims {
            binding: Binding {
                secret,
                pod,
                node,
                ..claims().binding
            },
            ..claims()
        };
        let with = |source, meta: Value| fake_lookup().with(source, json!({ "metadata": meta }));
        let here = json!({"name": "x", "namespace": "ns", "uid": "u2"});
        let going = |seconds: i64| json!({"name": "x", "namespace": "ns", "uid": "u2", "deletionTimestamp": at(NOW - seconds)});
        let node = json!({"name": "x", "uid": "u2"});
        let ok = "system:serviceaccount:ns:default for https://kubernetes.default.svc";
        let invalid = "service account token has been invalidated";
        let cases = [
            (
                bound(named("u2"), None, None),
                with(Source::Secret, here.clone()),
                ok,
            ),
            (bound(named("u2"), None, None), fake_lookup(), invalid),
            (
                bound(None, named("u2"), named("any")),
                with(Source::Pod, here.clone()),
                ok,
            ),
            (
                bound(None, named("u2"), None),
                with(Source::Pod, going(60)),
                ok,
            ),
            (
                bound(None, named("u2"), None),
                with(Source::Pod, going(61)),
                invalid,
            ),
            (
                bound(None, named("u3"), None),
                with(Source::Pod, here),
                "pod UID (u2) does not match service account pod ref claim (u3)",
            ),
            (bound(None, None, named("u2")), with(Source::Node, node), ok),
            (bound(None, None, named("u2")), fake_lookup(), invalid),
            (
                claims(),
                FakeLookup::default(),
                "serviceaccounts \"default\" not found",
            ),
            (
                claims(),
                FakeLookup::default().with(
                    Source::ServiceAccount,
                    json!({"metadata": {"name": "default", "namespace": "ns", "uid": "new"}}),
                ),
                "service account UID (new) does not match claim (u1)",
            ),
        ];
        for (claims, stored, want) in cases {
            assert_eq!(verdict(&claims, &stored, NOW), want, "{:?}", claims.binding);
        }
    }

    #[test]
    fn forged_and_foreign_tokens_are_refused() {
        let ours = tokens();
        let other = tokens();
        let audiences = [ISSUER.to_owned()];
        let verify = |token: &str| ours.verify(token, &audiences, &fake_lookup(), at(NOW));
        let good = ours.sign(&claims());
        assert!(verify(&good).is_ok());
        assert_eq!(
            verify(&other.sign(&claims())),
            Err(TokenFault::Bad("invalid signature, no keys found".into()))
        );
        let parts: Vec<&str> = good.split('.').collect();
        let payload = encode(&Claims {
            sub: "system:admin".into(),
            ..claims()
        });
        let none = encode(&json!({"alg": "none"}));
        for forged in [
            format!("{}.{payload}.{}", parts[0], parts[2]),
            format!("{none}.{}.", parts[1]),
            format!("{none}.{}.{}", parts[1], parts[2]),
        ] {
            assert!(
                matches!(verify(&forged), Err(TokenFault::Bad(_))),
                "{forged}"
            );
        }
        for foreign in ["", "a", "a.b", "a.b.c", "eyJhbGciOiJSUzI1NiJ9.e30.c2ln"] {
            assert_eq!(verify(foreign), Err(TokenFault::Foreign), "{foreign}");
        }
    }

    #[test]
    fn published_key_verifies_tokens() {
        let tokens = tokens();
        let set = tokens.key_set();
        let part = |name: &str| {
            BASE64
                .decode(set["keys"][0][name].as_str().expect("text"))
                .expect("base64")
        };
        let point = [vec![4], part("x"), part("y")].concat();
        let token = tokens.sign(&claims());
        let (signed, signature) = token.rsplit_once('.').expect("three parts");
        let signature = BASE64.decode(signature).expect("base64");
        assert!(
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                .verify(signed.as_bytes(), &signature)
                .is_ok()
        );
        assert_eq!(
            tokens.discovery("127.0.0.1:6443")["jwks_uri"],
            "https://127.0.0.1:6443/openid/v1/jwks"
        );
    }
}
