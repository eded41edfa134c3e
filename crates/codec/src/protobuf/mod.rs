//! Protobuf encoding of built-in kinds.
//! In: bytes of a request, or JSON of a response. Out: JSON that is then decoded by its type, or
//! bytes.
//! Guarantees: the encoding is defined by the table of types; unknown fields are skipped; depth and
//! size of the input are limited.

mod decode; // a message, by its type
mod encode; // an object, as the message of its type
mod envelope; // the envelope with the kind of a message
mod frame; // an event of a watch
mod layout; // the fields of a type, by their numbers
mod moment; // timestamps
mod reader; // tags, lengths and numbers
mod writer; // the same, written

#[cfg(test)]
mod promises; // properties of every kind

pub use decode::decode;
pub use encode::{encode, list_item_size, list_message, message, put_list_item_prefix};
pub use envelope::{Envelope, envelope_around, seal};
pub use frame::frame;
pub use writer::Writer;
