//! Kubernetes objects: from the bytes of a body to an object, and back.
//! In: JSON, YAML and protobuf. Out: objects with typed metadata, and the bytes that get, list and
//! watch share.
//! Guarantees: depth, size and number of objects of a body are bounded; errors have the wording of
//! kube-apiserver's decoders.

pub mod body; // bodies, decoded as the type that is expected
pub mod decode; // request bodies in JSON and YAML
pub mod object; // typed metadata, opaque body
pub mod patch; // JSON patch, merge patch, strategic merge patch
pub mod protobuf; // the protobuf encoding of built-in types
pub mod types; // the table of built-in types; typed decoding
