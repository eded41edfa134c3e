//! Locations: where a request is sent, as a URL and as an address to dial.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use rustls::{ClientConfig, pki_types::ServerName};

use super::url;

/// The scheme of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }

    fn default_port(self) -> &'static str {
        match self {
            Self::Http => "80",
            Self::Https => "443",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

/// The peer of a TLS connection.
#[derive(Clone, Debug)]
pub(crate) struct TlsPeer {
    pub(crate) name: ServerName<'static>,
    pub(crate) config: Arc<ClientConfig>,
}

/// Where a request is sent.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) scheme: Scheme,
    pub(crate) ip: IpAddr,
    /// Empty for the default port of the scheme. It may be a name, which is then not found.
    pub(crate) port: String,
    /// Not percent-encoded; empty or with a leading slash.
    pub(crate) path: String,
    /// Percent-encoded, without the question mark.
    pub(crate) query: String,
    /// For `https`; `None` if the certificate of the backend is not verified.
    pub(crate) tls: Option<TlsPeer>,
}

impl Location {
    /// The address to dial.
    ///
    /// # Errors
    /// The port is a name.
    pub(crate) fn address(&self) -> Result<SocketAddr, String> {
        let port = match self.port.as_str() {
            "" => self.scheme.default_port(),
            port => port,
        };
        let parsed = port.parse();
        let port: u16 = parsed.map_err(|_| format!("dial tcp: lookup tcp/{port}: unknown port"))?;
        Ok(SocketAddr::new(self.ip, port))
    }

    /// The host of the URL.
    pub(crate) fn host(&self) -> String {
        let ip = match self.ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        match self.port.as_str() {
            "" => ip,
            port => format!("{ip}:{port}"),
        }
    }

    /// Path and query, percent-encoded.
    pub(crate) fn path_and_query(&self) -> String {
        let path = match self.path.as_str() {
            "" => "/".to_owned(),
            path => url::encode_path(path),
        };
        match self.query.as_str() {
            "" => path,
            query => format!("{path}?{query}"),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}{}",
            self.scheme,
            self.host(),
            self.path_and_query()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_is_written_as_a_url() {
        let location = Location {
            scheme: Scheme::Https,
            ip: "fd00::1".parse().expect("an address"),
            port: String::new(),
            path: "/a b/c".into(),
            query: "x=1".into(),
            tls: None,
        };
        assert_eq!(location.to_string(), "https://[fd00::1]/a%20b/c?x=1");
        let address = "[fd00::1]:443".parse().expect("an address");
        assert_eq!(location.address(), Ok(address));
        let named = Location {
            port: "web".into(),
            ..location
        };
        let unknown = "dial tcp: lookup tcp/web: unknown port";
        assert_eq!(named.address(), Err(unknown.to_owned()));
    }
}
