//! Continue tokens: where the next page of a list begins.
//! Guarantees: a token is what Kubernetes writes, base64 of a small JSON object, with the number of
//! objects on the pages so far, so that they are not counted again; any other token is rejected.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_storage::{ObjectKey, Revision};
use serde::{Deserialize, Serialize};

/// The version of the token's form.
const VERSION: &str = "meta.k8s.io/v1";

/// A place between two pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// The revision all pages show; `None` when the client accepted to continue with the newest.
    pub(crate) revision: Option<Revision>,
    /// The last key of the page before.
    pub(crate) after: ObjectKey,
    /// How many objects were on the pages before; `None` where they were not counted. Used for
    /// `remainingItemCount` only.
    pub(crate) seen: Option<usize>,
}

#[derive(Serialize, Deserialize)]
struct Token {
    #[serde(rename = "v", default)]
    version: String,
    #[serde(rename = "rv", default)]
    revision: i64,
    #[serde(rename = "start", default)]
    start: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<usize>,
}

impl Page {
    /// The token of this place.
    pub(crate) fn token(&self) -> String {
        // The NUL is how Kubernetes writes "the first key behind this one".
        let revision = self
            .revision
            .map_or(-1, |r| i64::try_from(r).unwrap_or(i64::MAX));
        let token = Token {
            version: VERSION.into(),
            revision,
            start: format!("{}\0", self.after),
            seen: self.seen,
        };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).expect("a token has string keys"))
    }

    /// Reads a token.
    ///
    /// # Errors
    /// 400 for anything this server does not write.
    pub(crate) fn parse(token: &str) -> Result<Self, ApiError> {
        let refuse = |why: String| {
            ApiError::BadRequest(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(token.trim_end_matches('='))
            .map_err(|e| refuse(e.to_string()))?;
        let token: Token =
            serde_json::from_slice(&bytes).map_err(|_| refuse(first_character(&bytes)))?;
        if token.version != VERSION {
            return Err(refuse(format!(
                "server does not recognize this encoded version {}",
                token.version
            )));
        }
        let start = token.start.strip_suffix('\0').unwrap_or(&token.start);
        if start.is_empty() {
            return Err(refuse(
                "encoded start key empty (version meta.k8s.io/v1)".into(),
            ));
        }
        if start.split('/').any(|part| part == ".." || part == ".") || start.starts_with('/') {
            return Err(refuse(start.to_owned()));
        }
        let revision = match token.revision {
            0 => {
                return Err(refuse(
                    "incorrect encoded start resourceVersion (version meta.k8s.io/v1)".into(),
                ));
            }
            n if n < 0 => None,
            n => Some(n.unsigned_abs()),
        };
        Ok(Self {
            revision,
            after: ObjectKey::from_path(start),
            seen: token.seen,
        })
    }
}

/// The error of Kubernetes for bytes that are no JSON.
fn first_character(bytes: &[u8]) -> String {
    match bytes.first() {
        Some(b) if (0x20..0x7f).contains(b) => format!(
            "invalid character '{}' looking for beginning of value",
            *b as char
        ),
        Some(b) => format!(
            "invalid character '\\u{:04x}' looking for beginning of value",
            b
        ),
        None => "unexpected end of JSON input".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_reads_back_as_its_place() {
        for (revision, seen) in [(Some(7), Some(500)), (None, Some(500)), (Some(7), None)] {
            let page = Page {
                revision,
                after: ObjectKey::new("a", "b"),
                seen,
            };
            assert_eq!(Page::parse(&page.token()), Ok(page));
        }
    }

    #[test]
    fn foreign_tokens_are_refused() {
        for token in ["nonsense", "eyJhIjoiYiJ9", "", "%%%", "e30", "bnVsbA"] {
            assert!(Page::parse(token).is_err(), "{token}");
        }
        let climbing =
            URL_SAFE_NO_PAD.encode(br#"{"v":"meta.k8s.io/v1","rv":1,"start":"../../secrets"}"#);
        assert!(Page::parse(&climbing).is_err());
    }
}
