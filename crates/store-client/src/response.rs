//! Responses to results.
//!
//! Guarantees: a response that is not one of this API is an error that names endpoint and request.

use serde::de::DeserializeOwned;

use crate::{
    api::{ErrorBody, StoreError},
    call::{Answer, Call},
    error::ClientError,
};

/// The part of a foreign response that an error shows.
const SHOWN_BYTES: usize = 200;

/// The JSON body of a response.
pub(crate) fn json<T: DeserializeOwned>(call: &Call, answer: &Answer) -> Result<T, ClientError> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        protocol(
            call,
            answer,
            format!("the body is not as expected: {error}"),
        )
    })
}

/// A revision or counter in a header.
pub(crate) fn number(call: &Call, answer: &Answer, name: &str) -> Result<u64, ClientError> {
    let value = answer
        .headers
        .get(name)
        .and_then(|value| value.to_str().ok());
    value.and_then(|value| value.parse().ok()).ok_or_else(|| {
        protocol(
            call,
            answer,
            format!("header {name} is missing or no number"),
        )
    })
}

/// The error of a response.
pub(crate) fn error(call: &Call, answer: &Answer) -> ClientError {
    match serde_json::from_slice::<ErrorBody>(&answer.body) {
        Ok(body) => StoreError(Box::new(body)).into(),
        Err(_) => {
            let shown = &answer.body[..answer.body.len().min(SHOWN_BYTES)];
            let shown = String::from_utf8_lossy(shown).into_owned();
            protocol(call, answer, format!("status {}: {shown:?}", answer.status))
        }
    }
}

pub(crate) fn protocol(call: &Call, answer: &Answer, cause: String) -> ClientError {
    ClientError::Protocol {
        request: call.description(),
        endpoint: answer.endpoint.to_string(),
        cause,
    }
}
