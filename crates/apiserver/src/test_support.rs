//! What unit tests of several modules share.

use bellerophon_codec::object::Object;
use serde_json::Value;

/// An object from its JSON.
pub(crate) fn object(json: Value) -> Object {
    let Value::Object(map) = json else {
        panic!("an object is a JSON map")
    };
    Object::from_map(map).expect("metadata written for the test")
}
