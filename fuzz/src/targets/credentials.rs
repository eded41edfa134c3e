//! Credentials and other headers of a request.

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde_json::{Value, json};

use super::{
    Outcome, first_line,
    server::{ACCOUNT, Response, Server, with_server},
};

const SELF_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Bearer tokens: a token authenticates its service account or no user.
///
/// `{token}`, `{header}`, `{claims}` and `{signature}` are replaced by a valid token and its
/// segments, since the key of a server is not known in advance.
pub(super) fn token(data: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(data);
    with_server(|server| {
        let mut parts = server.token.splitn(3, '.');
        let mut part = || parts.next().unwrap_or_default();
        let token = text
            .replace("{token}", &server.token)
            .replace("{header}", part())
            .replace("{claims}", part())
            .replace("{signature}", part());
        let review = json!({"spec": {"token": token}}).to_string();
        let reviewed = server
            .send(&Method::POST, TOKEN_REVIEWS, &HeaderMap::new(), review)
            .expect("a valid path");
        if reviewed.status == 201 {
            let status = &reviewed.json()["status"];
            assert_user(
                status,
                &status["user"]["username"],
                status["authenticated"] == true,
            );
        }
        let Ok(value) = HeaderValue::try_from(format!("Bearer {token}")) else {
            return reviewed.outcome();
        };
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
        who_am_i(server, &headers).outcome()
    })
}

/// Headers, one on each line: a user without permissions acts as itself or not at all, and every
/// response to an administrator is complete.
pub(super) fn headers(data: &[u8]) -> Outcome {
    let mut headers = HeaderMap::new();
    let mut rest = data;
    while !rest.is_empty() {
        let (line, behind) = first_line(rest);
        rest = behind;
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = HeaderName::from_bytes(parts.next().unwrap_or_default().trim_ascii());
        let value = HeaderValue::from_bytes(parts.next().unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value)
            && name != header::AUTHORIZATION
        {
            // A map has a maximum size, and real connections allow far fewer headers.
            if headers.try_append(name, value).is_err() {
                return Outcome::NONE;
            }
        }
    }
    with_server(|server| {
        let listed = server
            .send(&Method::GET, PODS, &headers, "")
            .expect("a valid path");
        if listed.status == 200 {
            assert!(listed.headers.contains_key(header::CONTENT_TYPE));
            assert!(!listed.body.is_empty(), "an empty list");
        }
        let bearer = HeaderValue::try_from(format!("Bearer {}", server.token));
        headers.insert(header::AUTHORIZATION, bearer.expect("a token is ASCII"));
        // Reviews are created, and this one is to be readable.
        headers.remove(header::ACCEPT);
        headers.remove(header::ACCEPT_ENCODING);
        headers.remove(header::CONTENT_TYPE);
        who_am_i(server, &headers);
        listed.outcome()
    })
}

/// Reads the user of a request, which is the service account or none.
fn who_am_i(server: &Server, headers: &HeaderMap) -> Response {
    let response = server
        .send(&Method::POST, SELF_REVIEWS, headers, "{}")
        .expect("a valid path");
    if response.status == 201 {
        let status = &response.json()["status"];
        assert_user(status, &status["userInfo"]["username"], true);
    }
    response
}

fn assert_user(status: &Value, username: &Value, is_authenticated: bool) {
    assert!(!is_authenticated || username == ACCOUNT, "{status}");
}
