//! Options of a client: endpoints, credentials and bounds.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use crate::{
    dial::{Dial, TcpDialer},
    tls::ClientTls,
};

/// The port of the client API.
const DEFAULT_PORT: u16 = 7070;

/// Options of a [`Client`](crate::Client).
#[derive(Clone)]
pub struct ClientOptions {
    /// The members, in order of preference. The client stays with the last one that answered.
    pub endpoints: Vec<Endpoint>,
    /// Certificate authority and client certificate for `https` endpoints.
    pub tls: Option<ClientTls>,
    /// The bearer token.
    pub token: Option<Token>,
    /// How byte streams to endpoints are opened.
    pub dialer: Arc<dyn Dial>,
    /// From dialing to the end of the TLS handshake.
    pub dial_timeout: Duration,
    /// One attempt of a request, until its response is complete.
    pub attempt_timeout: Duration,
    /// All attempts of a request.
    pub request_timeout: Duration,
}

impl ClientOptions {
    /// Default bounds, for endpoints that are dialed by TCP.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            tls: None,
            token: None,
            dialer: Arc::new(TcpDialer),
            // A member on another continent answers within 1 s.
            dial_timeout: Duration::from_secs(3),
            // An election takes up to 3 s, during which a member lets writes wait.
            attempt_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("endpoints", &self.endpoints)
            .field("tls", &self.tls.is_some())
            .field("token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

/// The address of a member's client API: `https://host:port` or, on loopback, `http://host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Whether requests are encrypted.
    pub is_https: bool,
    /// The name or address; also the name that the certificate must have.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// `host:port`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("endpoint {text:?} is not https://host:port or http://host:port");
        let (is_https, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(invalid()),
            None => (true, text),
        };
        let authority: http::uri::Authority =
            rest.trim_end_matches('/').parse().map_err(|_| invalid())?;
        if authority.as_str().contains('@') {
            return Err(invalid());
        }
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(invalid());
        }
        // A port that is no number is no port for `Authority`, and its colon stays.
        let after_host = authority.as_str().rsplit(']').next().unwrap_or_default();
        let port = match authority.port_u16() {
            None if after_host.contains(':') => return Err(invalid()),
            port => port.unwrap_or(DEFAULT_PORT),
        };
        Ok(Self {
            is_https,
            host: host.to_owned(),
            port,
        })
    }
}

/// A bearer token. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, without white space around it.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed_and_printed() {
        let cases = [
            ("https://store.example:1234", "https://store.example:1234"),
            ("http://127.0.0.1:80/", "http://127.0.0.1:80"),
            ("store.example", "https://store.example:7070"),
            ("https://[::1]:9", "https://[::1]:9"),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), expected);
        }
        for bad in [
            "",
            "ftp://a:1",
            "https://",
            "https://user@a:1",
            "https://a:1/path",
            "a:b",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tokens_are_not_printed() {
        let token = Token::new(" secret\n");
        assert_eq!(token.authorization(), "Bearer secret");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
