//! SPDY/3.1 as Kubernetes uses it: streams with headers over one byte stream.
//!
//! [`Connection`] has both roles. It implements the dialect of `moby/spdystream`, which kubelet and
//! kubectl use:
//!
//! - There are no windows. WINDOW_UPDATE and SETTINGS are read and ignored, and none is sent: an
//!   endpoint that does not read its connection holds back its peer.
//! - A stream carries data only after its SYN_REPLY; both endpoints discard data before it.
//! - GOAWAY is sent when a connection is closed. Streams that are open then continue until the
//!   connection ends.
//!
//! Input of a peer is bounded: control frames to 64 KiB, header blocks to 64 KiB after inflation,
//! streams to 2,048. Data frames are delivered piece by piece and never held as a whole.

mod codec;
mod connection;
mod dictionary;
mod frame;
mod headers;
mod reader;
mod writer;

pub use connection::{Connection, IncomingStream};
pub use headers::Headers;
