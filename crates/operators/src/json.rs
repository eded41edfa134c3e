//! Objects as JSON values, encoded by the codec of their kind.

use bellerophon::kinds::{Kind, encode};
use serde_json::Value;

/// An object as a JSON value, with its `apiVersion` and `kind`.
pub(crate) fn to_json<K: Kind>(object: &K) -> Value {
    let json = encode(object).expect("keys of maps in Kubernetes objects are strings");
    serde_json::from_slice(&json).expect("an encoded object is JSON")
}
