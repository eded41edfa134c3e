//! OpenID discovery of the service-account issuer: its configuration and its public keys.

use bellerophon_apimachinery::error::ApiError;
use http::{HeaderValue, Response, StatusCode, header, uri::Authority};
use serde_json::Value;

use super::{EndpointRequest, ServerState};
use crate::http::{body::Body, negotiate, response::json_response};

pub(super) const CONFIGURATION: &str = "/.well-known/openid-configuration";
pub(super) const KEYS: &str = "/openid/v1/jwks";

const KEY_SET_TYPE: &str = "application/jwk-set+json";

/// Keys live as long as the server, so an hour is safe.
const CACHE: &str = "public, max-age=3600";

/// The issuer and where its keys are.
pub(super) fn configuration(
    server: &ServerState<'_>,
    request: &EndpointRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    request.only_get()?;
    document(
        request,
        "application/json",
        &server
            .authenticator
            .tokens()
            .discovery(requested_address(request).unwrap_or(server.endpoints.address())),
    )
}

/// The address in the request. A pod reaches the server at its Service only, so the keys must be
/// there as well.
fn requested_address<'a>(request: &EndpointRequest<'a>) -> Option<&'a str> {
    let host = request.head.headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    let authority = request.head.uri.authority().map(Authority::as_str);
    let is_address = |address: &&str| {
        let parsed = address.parse::<Authority>();
        parsed.is_ok_and(|parsed| !parsed.as_str().contains('@') && !parsed.host().is_empty())
    };
    authority.or(host).filter(is_address)
}

/// The keys.
pub(super) fn keys(
    server: &ServerState<'_>,
    request: &EndpointRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    request.only_get()?;
    document(
        request,
        KEY_SET_TYPE,
        &server.authenticator.tokens().key_set(),
    )
}

fn document(
    request: &EndpointRequest<'_>,
    media_type: &'static str,
    value: &Value,
) -> Result<Response<Body>, ApiError> {
    let accepted = negotiate::ranges(&request.accept());
    if !accepted.is_empty()
        && !accepted
            .iter()
            .any(|range| range.type_ == media_type || range.type_ == "*/*")
    {
        return Err(ApiError::NotAcceptable(vec![media_type]));
    }
    let mut response = json_response(
        StatusCode::OK,
        serde_json::to_vec(value)
            .expect("a value has string keys")
            .into(),
    );
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(CACHE));
    Ok(response)
}
