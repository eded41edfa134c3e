//! Addresses of members.

use std::{fmt, str::FromStr};

/// The port of the client API.
const DEFAULT_PORT: u16 = 7070;

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
}
