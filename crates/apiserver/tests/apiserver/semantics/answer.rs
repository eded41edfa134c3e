//! The response to a request.

use http::HeaderMap;
use serde_json::Value;

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    /// Null when the body is no JSON.
    pub(crate) body: Value,
    pub(crate) text: String,
}

impl Answer {
    /// Why it failed; empty when it did not.
    pub(crate) fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    /// The message of the Status.
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or(&self.text)
    }

    /// The resourceVersion of the object or list.
    pub(crate) fn version(&self) -> u64 {
        version_of(&self.body)
    }

    /// The names of the items of a list.
    pub(crate) fn names(&self) -> Vec<String> {
        let items = self.body["items"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        items
            .iter()
            .map(|item| {
                item["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect()
    }

    /// The token of the next page.
    pub(crate) fn next(&self) -> Option<&str> {
        self.body["metadata"]["continue"]
            .as_str()
            .filter(|token| !token.is_empty())
    }

    /// Reasons of the causes, in order.
    pub(crate) fn causes(&self) -> Vec<&str> {
        let causes = self.body["details"]["causes"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        causes
            .iter()
            .map(|cause| cause["reason"].as_str().unwrap_or_default())
            .collect()
    }
}

/// The resourceVersion of an object; 0 when it has none.
pub(crate) fn version_of(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}
