//! Bearer tokens of WebSocket requests. A browser cannot set `Authorization`, so that it offers the
//! token as a protocol: `base64url.bearer.authorization.k8s.io.TOKEN`. Mirrors
//! `ProtocolAuthenticator`.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Moves the token of a WebSocket request to `Authorization`, so that nothing behind authentication
/// sees or returns it. An `Authorization` header of the request stays. A token that is malformed,
/// repeated, or offered without a protocol that the server could choose becomes a token that is
/// never valid.
pub(crate) fn move_websocket_token(headers: &mut HeaderMap) {
    let is_websocket = headers
        .get(UPGRADE)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !is_websocket {
        return;
    }
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let offered = offered.filter_map(|value| value.to_str().ok());
    let offered = offered.flat_map(|value| value.split(',')).map(str::trim);
    let (tokens, others): (Vec<&str>, Vec<&str>) =
        offered.partition(|protocol| protocol.starts_with(PREFIX));
    if tokens.is_empty() {
        return;
    }
    let mut credentials = authorization(&tokens)
        .filter(|_| !others.is_empty())
        .unwrap_or_else(|| HeaderValue::from_static("Bearer invalid-websocket-token"));
    credentials.set_sensitive(true);
    match HeaderValue::from_str(&others.join(",")) {
        Ok(others) if !others.is_empty() => headers.insert(SEC_WEBSOCKET_PROTOCOL, others),
        _ => headers.remove(SEC_WEBSOCKET_PROTOCOL),
    };
    headers.entry(AUTHORIZATION).or_insert(credentials);
}

fn authorization(tokens: &[&str]) -> Option<HeaderValue> {
    let [token] = tokens else {
        return None;
    };
    let token = BASE64_URL_SAFE_NO_PAD
        .decode(token.strip_prefix(PREFIX)?)
        .ok()?;
    HeaderValue::from_bytes(&[b"Bearer ", token.as_slice()].concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_moved_and_other_protocols_stay() {
        const TOKEN: &str = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        let invalid = Some("Bearer invalid-websocket-token");
        for (upgrade, offered, protocols, credentials) in [
            (
                "websocket",
                format!("{TOKEN}, binary.k8s.io"),
                Some("binary.k8s.io"),
                Some("Bearer secret"),
            ),
            (
                "WebSocket",
                format!("a,{TOKEN},b"),
                Some("a,b"),
                Some("Bearer secret"),
            ),
            ("websocket", TOKEN.to_owned(), None, invalid),
            (
                "websocket",
                format!("{TOKEN},a,{TOKEN}"),
                Some("a"),
                invalid,
            ),
            ("websocket", format!("{PREFIX}%,a"), Some("a"), invalid),
            ("websocket", "a,b".to_owned(), Some("a,b"), None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
            let value = HeaderValue::from_str(&offered).expect("a header");
            headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
            move_websocket_token(&mut headers);
            let text = |name| {
                let value = headers.get(name);
                value.map(|value: &HeaderValue| value.to_str().expect("ASCII"))
            };
            assert_eq!(text(SEC_WEBSOCKET_PROTOCOL), protocols, "{offered}");
            assert_eq!(text(AUTHORIZATION), credentials, "{offered}");
        }
    }

    #[test]
    fn token_of_another_upgrade_stays_where_it_is() {
        let offered = format!("{PREFIX}c2VjcmV0,a");
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
        let value = HeaderValue::from_str(&offered).expect("a header");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
        move_websocket_token(&mut headers);
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], offered.as_str());
        assert!(!headers.contains_key(AUTHORIZATION));
    }

    #[test]
    fn token_of_the_header_is_preferred() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer first"));
        let offered = format!("{PREFIX}c2VjcmV0,a");
        let offered = HeaderValue::from_str(&offered).expect("a header");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, offered);
        move_websocket_token(&mut headers);
        assert_eq!(headers[AUTHORIZATION], "Bearer first");
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "a");
    }
}
