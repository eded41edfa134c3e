//! Protobuf: the binary form in which clients send and receive built-in kinds.
//! In: bytes of a request, or JSON of an answer. Out: JSON that is then read by its type, or bytes.
//! Guarantees: the table of types says all; fields that are unknown are skipped, and no input is
//! read deeper or longer than it may be.

mod decode; // a message, by its type
mod encode; // an object, as the message of its type
mod envelope; // what names the kind of a message
mod frame; // an event of a watch
mod layout; // the fields of a type, by their numbers
mod moment; // seconds and nanoseconds
mod reader; // tags, lengths and numbers
mod writer; // the same, written

#[cfg(test)]
mod promises; // what holds over every kind

pub use decode::decode;
pub use encode::{encode, list_item_size, list_message, message, put_list_item_prefix};
pub use envelope::{Envelope, envelope_around, seal};
pub use frame::frame;
pub use writer::Writer;
