//! Headers of requests and responses that are passed on.
//! Guarantees: a backend never gets the credentials of a client, nor headers by which a client
//! could claim to be another user.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Headers of one connection, in addition to those that `Connection` names. Mirrors
/// `httputil.ReverseProxy`.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Credentials and identities, by the begin of their names. Authentication and impersonation remove
/// them.
const IDENTITY_PREFIXES: [&str; 3] = ["authorization", "impersonate-", "x-remote-"];

/// CORS headers of a proxied server, which do not apply to this server.
const CORS: [HeaderName; 4] = [
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
];

/// Whether a request is an upgrade of its connection. Mirrors `IsUpgradeRequest`.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    let mut connection = headers.get_all(header::CONNECTION).iter();
    connection.any(|value| {
        let value = value.as_bytes().to_ascii_lowercase();
        value.windows(7).any(|window| window == b"upgrade")
    })
}

/// The headers of a request without credentials and identities, with the address of the client.
pub(super) fn of_request(headers: &HeaderMap, client: Option<IpAddr>) -> HeaderMap {
    let mut passed = headers.clone();
    for name in headers.keys() {
        let is_identity = IDENTITY_PREFIXES
            .iter()
            .any(|prefix| name.as_str().starts_with(prefix));
        // The server has answered `100 Continue` itself.
        if is_identity || name == header::EXPECT {
            passed.remove(name);
        }
    }
    if let Some(client) = client {
        let mut chain: Vec<String> = headers
            .get_all(X_FORWARDED_FOR)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect();
        chain.push(client.to_string());
        if let Ok(chain) = HeaderValue::try_from(chain.join(", ")) {
            passed.insert(X_FORWARDED_FOR, chain);
        }
    }
    passed
}

/// Removes the headers that are about one connection.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Removes the CORS headers of a backend. Mirrors `corsRemovingTransport`.
pub(super) fn remove_cors(headers: &mut HeaderMap) {
    for name in &CORS {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn upgrade_is_one_of_the_connection_options() {
        for (value, expected) in [
            ("Upgrade", true),
            ("keep-alive, Upgrade", true),
            ("keep-alive", false),
        ] {
            let is_upgrade = is_upgrade(&headers(&[("connection", value)]));
            assert_eq!(is_upgrade, expected, "{value}");
        }
        assert!(!is_upgrade(&HeaderMap::new()));
    }

    #[test]
    fn credentials_are_not_passed_on() {
        let given = headers(&[
            ("authorization", "Bearer secret"),
            ("impersonate-user", "ann"),
            ("impersonate-extra-scope", "x"),
            ("x-remote-user", "ann"),
            ("x-remote-group", "system:masters"),
            ("x-custom", "stays"),
            ("x-forwarded-for", "192.0.2.1"),
        ]);
        let client = "192.0.2.2".parse().expect("an address");
        let passed = of_request(&given, Some(client));
        let expected = headers(&[
            ("x-custom", "stays"),
            ("x-forwarded-for", "192.0.2.1, 192.0.2.2"),
        ]);
        assert_eq!(passed, expected);
    }

    #[test]
    fn headers_of_one_connection_are_removed() {
        let mut given = headers(&[
            ("connection", "close, X-Session"),
            ("x-session", "1"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("etag", "a"),
        ]);
        remove_hop_by_hop(&mut given);
        assert_eq!(given, headers(&[("etag", "a")]));
    }
}
