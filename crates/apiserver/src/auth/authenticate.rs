//! Authenticates a request by its client certificate or its headers.
//! Guarantees: invalid credentials are an error for every path; only a request without credentials
//! is anonymous.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use bellerophon_apimachinery::{error::ApiError, time::Time};
use http::{HeaderMap, header::AUTHORIZATION};
use ring::digest::{SHA256, digest};
use x509_parser::{certificate::X509Certificate, oid_registry::Oid, prelude::FromDer};

use super::{
    Lookup, Tokens,
    tokens::{TokenFault, Verified, sha256},
    user::{CREDENTIAL_ID, MASTERS, User},
};

/// The attribute of a certificate's subject that holds a uid.
const UID_OID: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];

/// The certificate a client proved to hold, as the user it names. A request carries it as an
/// extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerCertificate(Arc<User>);

impl PeerCertificate {
    /// Reads the user from a verified certificate in DER; `None` if it has no common name.
    pub(crate) fn from_der(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let texts = |attributes: &mut dyn Iterator<
            Item = &x509_parser::x509::AttributeTypeAndValue<'_>,
        >| {
            attributes
                .filter_map(|a| a.as_str().ok().map(str::to_owned))
                .collect::<Vec<String>>()
        };
        let name = texts(&mut subject.iter_common_name())
            .into_iter()
            .next_back()
            .filter(|name| !name.is_empty())?;
        let groups = texts(&mut subject.iter_organization());
        let uids = texts(
            &mut subject
                .iter_by_oid(&Oid::from(UID_OID).expect("the number of an attribute is valid")),
        );
        let uid = match uids.as_slice() {
            [] => String::new(),
            [uid] if !uid.is_empty() => uid.clone(),
            _ => return None,
        };
        let print: String = digest(&SHA256, der)
            .as_ref()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let extra = BTreeMap::from([(
            CREDENTIAL_ID.to_owned(),
            vec![format!("X509SHA256={print}")],
        )]);
        Some(Self(Arc::new(User {
            name,
            uid,
            groups,
            extra,
        })))
    }
}

/// Turns credentials into users.
pub(crate) struct Authenticator {
    /// Static tokens by their digest, so that a comparison reveals nothing about them.
    static_tokens: HashMap<[u8; 32], User>,
    tokens: Tokens,
    audiences: Vec<String>,
    /// Whether requests without credentials are of `system:anonymous`, or refused.
    allows_anonymous: bool,
}

impl Authenticator {
    /// Knows one static token, for the user `admin`, and the tokens of service accounts.
    pub(crate) fn new(admin_token: &str, tokens: Tokens) -> Self {
        Self {
            static_tokens: HashMap::from([(sha256(admin_token.as_bytes()), admin())]),
            audiences: tokens.issuers().to_vec(),
            tokens,
            allows_anonymous: true,
        }
    }

    /// Also accepts a static token. Mirrors `--token-auth-file`.
    #[must_use]
    pub(crate) fn with_static_token(mut self, token: &str, user: User) -> Self {
        self.static_tokens.insert(sha256(token.as_bytes()), user);
        self
    }

    /// Accepts tokens for these audiences instead of for the issuers. Mirrors `--api-audiences`.
    #[must_use]
    pub(crate) fn with_audiences(self, audiences: Vec<String>) -> Self {
        Self { audiences, ..self }
    }

    /// Refuses requests without credentials. Mirrors `--anonymous-auth=false`.
    #[must_use]
    pub(crate) fn without_anonymous(self) -> Self {
        Self {
            allows_anonymous: false,
            ..self
        }
    }

    /// Signs and verifies service-account tokens.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The audiences of tokens that specify none.
    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The authenticated user of a request.
    ///
    /// # Errors
    /// `Unauthorized` for a token that is not valid.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&PeerCertificate>,
        stored: &dyn Lookup,
        now: Time,
    ) -> Result<User, ApiError> {
        if let Some(PeerCertificate(user)) = peer {
            return Ok(User::clone(user).authenticated());
        }
        let Some(token) = bearer(headers) else {
            return match self.allows_anonymous {
                true => Ok(User::anonymous()),
                false => Err(ApiError::Unauthorized),
            };
        };
        let token = std::str::from_utf8(token).map_err(|_| ApiError::Unauthorized)?;
        self.user_of_token(token, &self.audiences, stored, now)
            .map(|v| v.user)
            .map_err(|_| ApiError::Unauthorized)
    }

    /// The user of a token, and the requested audiences that the token has.
    ///
    /// # Errors
    /// Why the token is not valid, with the messages of a TokenReview.
    pub(crate) fn user_of_token(
        &self,
        token: &str,
        audiences: &[String],
        stored: &dyn Lookup,
        now: Time,
    ) -> Result<Verified, String> {
        if let Some(user) = self.static_tokens.get(&sha256(token.as_bytes())) {
            let shared: Vec<String> = self
                .audiences
                .iter()
                .filter(|a| audiences.contains(a))
                .cloned()
                .collect();
            if !shared.is_empty() {
                return Ok(Verified {
                    user: user.clone().authenticated(),
                    audiences: shared,
                });
            }
        }
        match self.tokens.verify(token, audiences, stored, now) {
            Ok(verified) => Ok(Verified {
                user: verified.user.authenticated(),
                ..verified
            }),
            Err(TokenFault::Foreign) => Err("invalid bearer token".into()),
            Err(TokenFault::Bad(why)) => Err(format!("[invalid bearer token, {why}]")),
        }
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator")
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

fn admin() -> User {
    User {
        name: "admin".into(),
        groups: vec![MASTERS.into()],
        ..User::default()
    }
}

/// The token of an `Authorization: Bearer` header, whatever its bytes; other schemes count as no
/// credentials.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let header = headers.get(AUTHORIZATION)?.as_bytes().trim_ascii();
    let mut words = header.splitn(3, |byte| *byte == b' ');
    let scheme = words.next()?;
    let token = words.next()?;
    (scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::auth::{fake_lookup::FakeLookup, tokens::ISSUER};

    fn authenticator() -> Authenticator {
        Authenticator::new("secret", Tokens::generate())
    }

    fn now() -> Time {
        Time::parse("2026-01-01T00:00:00Z").expect("a time")
    }

    #[test]
    fn user_is_authenticated_by_headers() {
        let who = |header: Option<&[u8]>| {
            let mut headers = HeaderMap::new();
            if let Some(bytes) = header {
                let value = HeaderValue::from_bytes(bytes).expect("a header");
                headers.insert(AUTHORIZATION, value);
            }
            authenticator()
                .authenticate(&headers, None, &FakeLookup::default(), now())
                .map_or_else(|e| e.code().to_string(), |u| u.name)
        };
        for (header, want) in [
            (None, "system:anonymous"),
            (Some(&b"Bearer secret"[..]), "admin"),
            (Some(b"bearer secret"), "admin"),
            (Some(b"Bearer wrong"), "401"),
            (Some(b"Bearer eyJhbGciOiJSUzI1NiJ9.e30.c2ln"), "401"),
            (Some(b"Bearer \xff\xfe"), "401"),
            (Some("Bearer s\u{e9}cret".as_bytes()), "401"),
            (Some(b"Bearer secret \xff"), "admin"),
            (Some(b"Bearer "), "system:anonymous"),
            (Some(b"Basic YTpi"), "system:anonymous"),
            (Some(b"Basic \xff"), "system:anonymous"),
        ] {
            assert_eq!(who(header), want, "{header:?}");
        }
    }

    #[test]
    fn static_tokens_have_their_users_and_anonymous_requests_can_be_refused() {
        let user = User {
            name: "ann".into(),
            groups: vec!["devs".into()],
            ..User::default()
        };
        let authenticator = authenticator()
            .with_static_token("ann's", user)
            .without_anonymous();
        let who = |header: Option<&'static str>| {
            let header = header.map(|text| (AUTHORIZATION, HeaderValue::from_static(text)));
            let headers = HeaderMap::from_iter(header);
            authenticator
                .authenticate(&headers, None, &FakeLookup::default(), now())
                .map_or_else(
                    |e| e.code().to_string(),
                    |u| format!("{}: {:?}", u.name, u.groups),
                )
        };
        let groups = r#"["devs", "system:authenticated"]"#;
        assert_eq!(who(Some("Bearer ann's")), format!("ann: {groups}"));
        assert_eq!(who(None), "401");
    }

    #[test]
    fn certificate_names_user_and_groups() {
        let mut params = rcgen::CertificateParams::default();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "ann");
        params
            .distinguished_name
            .push(rcgen::DnType::OrganizationName, "devs");
        let certificate = params
            .self_signed(&rcgen::KeyPair::generate().expect("a key"))
            .expect("a certificate");
        let peer = PeerCertificate::from_der(certificate.der()).expect("a user");
        let user = authenticator()
            .authenticate(
                &HeaderMap::new(),
                Some(&peer),
                &FakeLookup::default(),
                now(),
            )
            .expect("a user");
        assert_eq!(user.name.as_str(), "ann");
        assert_eq!(user.groups.join(",").as_str(), "devs,system:authenticated");
        assert!(user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        assert_eq!(PeerCertificate::from_der(b"junk"), None);
    }

    #[test]
    fn static_token_is_valid_for_the_server_only() {
        let a = authenticator();
        let review = |audience: &str| {
            a.user_of_token(
                "secret",
                &[audience.to_owned()],
                &FakeLookup::default(),
                now(),
            )
            .map(|v| v.audiences)
        };
        assert_eq!(review(ISSUER), Ok(vec![ISSUER.to_owned()]));
        assert_eq!(review("other"), Err("invalid bearer token".into()));
    }
}
