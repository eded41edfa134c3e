//! Service-account tokens: JSON web tokens signed with the server's own key.
//! In: claims. Out: a compact token; or, from a token, its user.
//! Guarantees: a token is valid only while its service account, and the object it is bound to,
//! exist with the uid that it names.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use bellerophon_apimachinery::{field::go_quote, time::Time};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Lookup,
    claims::Claims,
    token_keys::{PublicKey, SigningKey},
    user::User,
};

/// The default issuer and audience of tokens.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";
#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// A valid token: its user, and which of the requested audiences it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) user: User,
    pub(crate) audiences: Vec<String>,
}

/// Why a token is not good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenFault {
    /// It is no token of this issuer.
    Foreign,
    /// It is one, with this error.
    Bad(String),
}

/// How many tokens are remembered whose signature was verified.
const VERIFIED_MAX: usize = 1024;

/// The key that signs tokens, those that verify them, and the documents that let others do so.
pub(crate) struct Tokens {
    key: SigningKey,
    /// The id of the key that signs.
    key_id: String,
    /// The keys that verify tokens. Not empty.
    accepted: Vec<PublicKey>,
    /// The accepted issuers; the first one issues tokens. Not empty.
    issuers: Vec<String>,
    verified: Mutex<VerifiedTokens>,
}

/// Claims whose signature was verified, by the digest of their token. To verify a signature takes
/// longer than most requests; time and binding of the claims are checked for each request.
#[derive(Default)]
struct VerifiedTokens {
    recent: HashMap<[u8; 32], Arc<Claims>>,
    /// The entries of `recent` before it was last full.
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
    /// Signs with a new key, as the issuer of a cluster with default settings.
    #[cfg(test)]
    pub(crate) fn generate() -> Self {
        Self::new(SigningKey::generate(), Vec::new(), Vec::new())
    }

    /// Signs with `key`, as the first of `issuers`. Default issuer: that of a cluster with default
    /// settings; without `accepted` keys, tokens of `key` are verified.
    pub(crate) fn new(
        key: SigningKey,
        mut accepted: Vec<PublicKey>,
        mut issuers: Vec<String>,
    ) -> Self {
        let public = key.public();
        let key_id = public.id.clone();
        if accepted.is_empty() {
            accepted.push(public);
        }
        if issuers.is_empty() {
            issuers.push(ISSUER.to_owned());
        }
        Self {
            key,
            key_id,
            accepted,
            issuers,
            verified: Mutex::default(),
        }
    }

    /// The issuer of new tokens.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuers[0]
    }

    /// The accepted issuers.
    pub(crate) fn issuers(&self) -> &[String] {
        &self.issuers
    }

    /// The compact token that carries `claims`.
    pub(crate) fn sign(&self, claims: &Claims) -> String {
        let header = Header {
            alg: self.key.algorithm().into(),
            kid: self.key_id.clone(),
        };
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let signature = self.key.sign(signed.as_bytes());
        format!("{signed}.{}", BASE64.encode(signature))
    }

    /// The user of a token. `audiences` are those that the caller accepts.
    ///
    /// # Errors
    /// A token of another issuer, or one that is malformed, expired, for another audience, or bound
    /// to an object that is deleted.
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
        if !self.issuers.contains(&claims.iss) {
            return Err(TokenFault::Foreign);
        }
        // Mirrors go-jose: a key id selects keys, and without one all are tried.
        let keys = self.accepted.iter();
        let mut keys = keys
            .filter(|key| header.kid.is_empty() || header.kid == key.id)
            .peekable();
        if keys.peek().is_none() {
            return Err(TokenFault::Bad("invalid signature, no keys found".into()));
        }
        let signature = BASE64.decode(signature).map_err(|_| TokenFault::Foreign)?;
        if keys.any(|key| key.verifies(&header.alg, signed.as_bytes(), &signature)) {
            Ok(claims)
        } else {
            let why = "go-jose/go-jose: error in cryptographic primitive";
            Err(TokenFault::Bad(why.into()))
        }
    }

    /// The document at `/openid/v1/jwks` (`application/jwk-set+json`).
    pub(crate) fn key_set(&self) -> Value {
        let keys: Vec<Value> = self.accepted.iter().map(PublicKey::to_jwk).collect();
        json!({ "keys": keys })
    }

    /// The document at `/.well-known/openid-configuration`, for a server reached at `address`
    /// (`host:port`).
    pub(crate) fn discovery(&self, address: &str) -> Value {
        json!({
            "issuer": self.issuer(),
            "jwks_uri": format!("https://{address}/openid/v1/jwks"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.key.algorithm()],
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
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

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
        Tokens::generate()
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
    fn token_authenticates_its_service_account_until_it_expires() {
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
    fn token_is_invalid_after_its_bound_object_is_deleted() {
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
        let terminating = |seconds: i64| json!({"name": "x", "namespace": "ns", "uid": "u2", "deletionTimestamp": at(NOW - seconds)});
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
                with(Source::Pod, terminating(60)),
                ok,
            ),
            (
                bound(None, named("u2"), None),
                with(Source::Pod, terminating(61)),
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
