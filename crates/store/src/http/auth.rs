//! Bearer tokens of clients and administrators, from files that are read again when they change.
//!
//! In: the Authorization header. Out: the permission to use the client API or the admin API.
//! Guarantees: tokens are compared in constant time, and never printed. A file that cannot be read
//! leaves the last token in effect.

use std::{
    fmt, fs, io,
    path::PathBuf,
    sync::{PoisonError, RwLock},
};

use http::{HeaderMap, header};
use ring::{digest, hmac, rand::SystemRandom};

use crate::api::{Reason, StoreError};

/// The files of the tokens. Without a file, the API is open to every client.
#[derive(Clone, Debug, Default)]
pub struct TokenFiles {
    /// The token of the admin API, which may also use the client API.
    pub admin: Option<PathBuf>,
    /// The token of the client API.
    pub client: Option<PathBuf>,
}

/// Which API a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Client,
    Admin,
}

/// The tokens in effect.
pub(crate) struct Tokens {
    files: TokenFiles,
    /// A key of this process. Codes of tokens are compared instead of tokens: the time depends on
    /// neither content nor length.
    key: hmac::Key,
    current: RwLock<Current>,
}

#[derive(Clone, Default)]
struct Current {
    admin: Option<Vec<u8>>,
    client: Option<Vec<u8>>,
}

/// A token file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the token file {path}: {cause}")]
pub struct TokenError {
    path: PathBuf,
    cause: io::Error,
}

impl Tokens {
    /// Reads the files.
    pub(crate) fn load(files: TokenFiles) -> Result<Self, TokenError> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .expect("the operating system has random bytes");
        let tokens = Self {
            files,
            key,
            current: RwLock::default(),
        };
        tokens.reload()?;
        Ok(tokens)
    }

    /// Reads the files again.
    pub(crate) fn reload(&self) -> Result<(), TokenError> {
        let current = Current {
            admin: self.files.admin.as_ref().map(read).transpose()?,
            client: self.files.client.as_ref().map(read).transpose()?,
        };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(())
    }

    /// Whether a request may use an API.
    pub(crate) fn authorize(&self, headers: &HeaderMap, scope: Scope) -> Result<(), StoreError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let required = match scope {
            Scope::Admin => &current.admin,
            Scope::Client => &current.client,
        };
        if required.is_none() {
            return Ok(());
        }
        let Some(token) = bearer(headers) else {
            return Err(StoreError::new(
                Reason::Unauthorized,
                "the request has no bearer token; send Authorization: Bearer TOKEN",
            ));
        };
        // Both are compared, so that the time does not depend on which one matches.
        let is_admin = self.matches(token, current.admin.as_deref());
        let is_client = self.matches(token, current.client.as_deref());
        match (is_admin, is_client, scope) {
            (true, _, _) | (_, true, Scope::Client) => Ok(()),
            (_, true, Scope::Admin) => Err(StoreError::new(
                Reason::Forbidden,
                "the token of clients may not use the admin API; use the admin token",
            )),
            (false, false, _) => Err(StoreError::new(
                Reason::Unauthorized,
                "the bearer token is wrong; check the token file",
            )),
        }
    }

    fn matches(&self, token: &[u8], expected: Option<&[u8]>) -> bool {
        let Some(expected) = expected else {
            return false;
        };
        let tag = hmac::sign(
            &self.key,
            digest::digest(&digest::SHA256, expected).as_ref(),
        );
        let message = digest::digest(&digest::SHA256, token);
        hmac::verify(&self.key, message.as_ref(), tag.as_ref()).is_ok()
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, TokenError> {
    let error = |cause| TokenError {
        path: path.clone(),
        cause,
    };
    let text = fs::read_to_string(path).map_err(error)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(error(io::Error::other("it is empty")));
    }
    Ok(token.as_bytes().to_vec())
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(directory: &tempfile::TempDir) -> Tokens {
        let write = |name: &str, token: &str| {
            let path = directory.path().join(name);
            fs::write(&path, token).unwrap();
            Some(path)
        };
        Tokens::load(TokenFiles {
            admin: write("admin", "a-token\n"),
            client: write("client", "c-token"),
        })
        .unwrap()
    }

    fn check(tokens: &Tokens, header: Option<&str>, scope: Scope, expected: Option<Reason>) {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        let result = tokens.authorize(&headers, scope);
        let reason = result.err().map(|error| error.reason());
        assert_eq!(reason, expected, "{header:?} for {scope:?}");
    }

    #[test]
    fn tokens_permit_their_api_only() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = tokens(&directory);
        let cases = [
            (Some("Bearer a-token"), Scope::Admin, None),
            (Some("bearer a-token"), Scope::Client, None),
            (Some("Bearer c-token"), Scope::Client, None),
            (
                Some("Bearer c-token"),
                Scope::Admin,
                Some(Reason::Forbidden),
            ),
            (
                Some("Bearer c-token "),
                Scope::Client,
                Some(Reason::Unauthorized),
            ),
            (Some("Bearer x"), Scope::Admin, Some(Reason::Unauthorized)),
            (
                Some("Basic a-token"),
                Scope::Admin,
                Some(Reason::Unauthorized),
            ),
            (Some("Bearer "), Scope::Client, Some(Reason::Unauthorized)),
            (None, Scope::Client, Some(Reason::Unauthorized)),
        ];
        for (header, scope, expected) in cases {
            check(&tokens, header, scope, expected);
        }
    }

    #[test]
    fn changed_token_is_in_effect_after_reload() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = tokens(&directory);
        fs::write(directory.path().join("client"), "new").unwrap();
        tokens.reload().unwrap();
        check(&tokens, Some("Bearer new"), Scope::Client, None);
        check(
            &tokens,
            Some("Bearer c-token"),
            Scope::Client,
            Some(Reason::Unauthorized),
        );
        fs::write(directory.path().join("client"), "\n").unwrap();
        tokens.reload().unwrap_err();
        check(&tokens, Some("Bearer new"), Scope::Client, None);
    }
}
