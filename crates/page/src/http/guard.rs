//! Access control of the page: Host, Origin, Sec-Fetch-Site and token.
//!
//! In: the head of a request. Out: allowed, or the status to respond with.
//! Guarantees: a page of another site, also one whose name resolves to this machine, gets no data
//! and no asset; data needs the token; tokens are compared in constant time.

use std::fmt::Write as _;
use std::net::SocketAddr;

use bellerophon::clock::Rng;
use http::{HeaderMap, StatusCode, header};

/// The length of a token: 256 bits.
const TOKEN_BYTES: usize = 32;

/// The token of one start.
pub(super) struct Token(String);

impl Token {
    pub(super) fn generate(rng: &Rng) -> Self {
        let mut text = String::with_capacity(2 * TOKEN_BYTES);
        for _ in 0..TOKEN_BYTES {
            // Writing to a string does not fail.
            let _ = write!(text, "{:02x}", rng.below(256));
        }
        Self(text)
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    fn is(&self, sent: &str) -> bool {
        let same = self.0.bytes().zip(sent.bytes());
        let difference = same.fold(0, |difference, (one, other)| difference | (one ^ other));
        self.0.len() == sent.len() && difference == 0
    }
}

/// Checks requests.
pub(super) struct Guard {
    /// The values of Host by which the page is reached.
    hosts: [String; 3],
    token: Token,
}

impl Guard {
    pub(super) fn new(address: SocketAddr, token: Token) -> Self {
        let port = address.port();
        Self {
            hosts: ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}")),
            token,
        }
    }

    /// Whether a browser sent the request from the page itself, or a user typed its URL.
    ///
    /// # Errors
    /// 403 for requests of another site.
    pub(super) fn check_site(&self, headers: &HeaderMap) -> Result<(), StatusCode> {
        let host = single(headers, header::HOST.as_str())?;
        let is_ours = |host: &str| self.hosts.iter().any(|ours| ours == host);
        // Required: without it, a name that resolves to loopback would be accepted.
        if !host.is_some_and(is_ours) {
            return Err(StatusCode::FORBIDDEN);
        }
        let origin = single(headers, header::ORIGIN.as_str())?;
        let is_own_origin = |origin: &str| origin.strip_prefix("http://").is_some_and(is_ours);
        if !origin.is_none_or(is_own_origin) {
            return Err(StatusCode::FORBIDDEN);
        }
        let site = single(headers, "sec-fetch-site")?;
        match site {
            None | Some("same-origin" | "none") => Ok(()),
            Some(_) => Err(StatusCode::FORBIDDEN),
        }
    }

    /// Whether the request has the token.
    ///
    /// # Errors
    /// 401 without it.
    pub(super) fn check_token(&self, headers: &HeaderMap) -> Result<(), StatusCode> {
        let sent = single(headers, header::AUTHORIZATION.as_str())?;
        let sent = sent.and_then(|value| value.strip_prefix("Bearer "));
        match sent.is_some_and(|sent| self.token.is(sent)) {
            true => Ok(()),
            false => Err(StatusCode::UNAUTHORIZED),
        }
    }
}

/// The value of a header that may be there once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, StatusCode> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match (first.map(|value| value.to_str()), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err(StatusCode::FORBIDDEN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_requests_of_the_page_itself_pass() {
        let guard = Guard::new(([127, 0, 0, 1], 8080).into(), Token("t".into()));
        let host = ("host", "127.0.0.1:8080");
        for (list, passes) in [
            (vec![host], true),
            (vec![("host", "localhost:8080")], true),
            (vec![("host", "[::1]:8080")], true),
            (vec![("host", "127.0.0.1:8081")], false),
            (vec![("host", "127.0.0.1")], false),
            (vec![("host", "evil.example:8080")], false),
            (vec![("host", "127.0.0.1:8080.evil.example")], false),
            (vec![host, host], false),
            (vec![], false),
            (vec![host, ("origin", "http://127.0.0.1:8080")], true),
            (vec![host, ("origin", "http://localhost:8080")], true),
            (vec![host, ("origin", "https://127.0.0.1:8080")], false),
            (vec![host, ("origin", "http://evil.example")], false),
            (vec![host, ("origin", "null")], false),
            (vec![host, ("sec-fetch-site", "same-origin")], true),
            (vec![host, ("sec-fetch-site", "none")], true),
            (vec![host, ("sec-fetch-site", "same-site")], false),
            (vec![host, ("sec-fetch-site", "cross-site")], false),
        ] {
            let result = guard.check_site(&headers(&list));
            let expected = match passes {
                true => Ok(()),
                false => Err(StatusCode::FORBIDDEN),
            };
            assert_eq!(result, expected, "{list:?}");
        }
    }

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = Token::generate(&Rng::seeded(1));
        let text = token.text().to_owned();
        assert_eq!(text.len(), 2 * TOKEN_BYTES);
        let guard = Guard::new(([127, 0, 0, 1], 1).into(), token);
        for (sent, passes) in [
            (format!("Bearer {text}"), true),
            (format!("Bearer {}", &text[..63]), false),
            (format!("Bearer {text}0"), false),
            (format!("Basic {text}"), false),
            ("Bearer ".to_owned(), false),
        ] {
            let result = guard.check_token(&headers(&[("authorization", &sent)]));
            assert_eq!(result.is_ok(), passes, "{sent}");
        }
        assert_eq!(
            guard.check_token(&headers(&[])),
            Err(StatusCode::UNAUTHORIZED)
        );
    }
}
