//! `/openapi/v2`: the older form, which says no more than which release this is.
//! Holds: old clients that cannot do without it take an empty document as "unknown kinds: do not check", in JSON and in protobuf.

use serde_json::json;

use crate::pages::version::GIT_VERSION;

const TITLE: &str = "Kubernetes";

/// The document in JSON.
pub(super) fn json() -> Vec<u8> {
    let document = json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": GIT_VERSION},
        "paths": {},
        "definitions": {},
    });
    serde_json::to_vec(&document).expect("a document has string keys")
}

/// The same as the protobuf message `openapi.v2.Document`: field 1 the version of the format, 2 the info (title, version), 8 the paths.
pub(super) fn protobuf() -> Vec<u8> {
    let info = [field(1, TITLE.as_bytes()), field(2, GIT_VERSION.as_bytes())].concat();
    [field(1, b"2.0"), field(2, &info), field(8, b"")].concat()
}

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|l| *l < 0x80).expect("the fields here are short");
    [&[number << 3 | 2, length], bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_name_the_release() {
        assert_eq!(protobuf(), b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.4\x42\x00");
        assert!(String::from_utf8(json()).expect("text").contains(r#""version":"v1.36.4""#));
    }
}
