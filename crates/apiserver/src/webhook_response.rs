//! Responses of webhooks, as the REST client of client-go reads them.
//! Mirrors `transformResponse` and `newUnstructuredResponseError`.

use bellerophon_apimachinery::{error::server_response, json_ext::JsonExt as _};
use bellerophon_codec::decode::{self, Media};
use bytes::Bytes;
use http::{Response, header};
use serde_json::{Map, Value};

/// How much of the text of an error response is shown.
const SHOWN_MAX_BYTES: usize = 2048;

/// The message of a response with an error code, and its code.
pub(crate) fn describe(response: &Response<Bytes>) -> (String, u16) {
    let code = response.status().as_u16();
    let body = response.body();
    if let Ok(status) = serde_json::from_slice::<Value>(body)
        && status.text("kind") == "Status"
        && status.text("status") == "Failure"
    {
        let own = u16::try_from(status.number("code")).unwrap_or(code);
        return (status.text("message").to_owned(), own);
    }
    let (_, message) = server_response(code, &shown(response));
    (message, code)
}

fn shown(response: &Response<Bytes>) -> String {
    let media_type = response.headers().get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok());
    // Mirrors isTextResponse: without a media type the body counts as text.
    let is_text = media_type.is_none_or(|media_type| media_type.starts_with("text/"));
    if !is_text {
        return "unknown".into();
    }
    let body = response.body();
    let end = body.len().min(SHOWN_MAX_BYTES);
    String::from_utf8_lossy(&body[..end]).trim().to_owned()
}

/// The document of a response.
///
/// # Errors
/// A body that is no object, with the message of kube-apiserver's decoder.
pub(crate) fn decode(response: &Response<Bytes>) -> Result<Value, String> {
    let body = response.body();
    if body.is_empty() {
        let media_type = response.headers().get(header::CONTENT_TYPE);
        let media_type = media_type.and_then(|value| value.to_str().ok());
        return Err(format!(
            "0-length response with status code: {} and content type: {}",
            response.status().as_u16(),
            media_type.unwrap_or("application/json"),
        ));
    }
    let parse_error = |why: String| {
        if why.starts_with("couldn't get version/kind") {
            return why;
        }
        format!("couldn't get version/kind; json parse error: {why}")
    };
    let mut repeated = Vec::new();
    // A body that does not begin as a JSON object is read as YAML.
    let is_json = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let media = if is_json { Media::Json } else { Media::Yaml };
    let review = decode::parse(body, media)
        .and_then(|tree| tree.root.into_value(&mut repeated))
        .map_err(parse_error)?;
    if !review.is_object() {
        let what = match &review {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            _ => return Ok(Value::Object(Map::new())),
        };
        let target = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; \
             Kind string \"json:\\\"kind,omitempty\\\"\" }";
        return Err(parse_error(format!(
            "json: cannot unmarshal {what} into Go value of type {target}"
        )));
    }
    Ok(review)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_responses_are_described_by_their_code() {
        let described = |code: u16, body: &'static str| {
            let response = Response::builder().status(code);
            let response = response.header("content-type", "text/plain; charset=utf-8");
            describe(
                &response
                    .body(Bytes::from_static(body.as_bytes()))
                    .expect("a response"),
            )
            .0
        };
        assert_eq!(
            described(500, "boom\n"),
            "an error on the server (\"boom\") has prevented the request from succeeding"
        );
        assert_eq!(
            described(404, "x"),
            "the server could not find the requested resource"
        );
    }
}
