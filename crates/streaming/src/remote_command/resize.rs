//! The sizes of a client's terminal.

use bytes::{Buf, BytesMut};
use serde::Deserialize;
use tokio::io::AsyncReadExt;

use crate::ByteReader;

/// The longest message with a size, in bytes. A longer one ends the sizes.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TerminalSize {
    /// Columns.
    #[serde(rename = "Width", alias = "width")]
    pub width: u16,
    /// Rows.
    #[serde(rename = "Height", alias = "height")]
    pub height: u16,
}

/// The sizes of a client's terminal, in the order in which they were sent.
#[derive(Debug)]
pub struct TerminalSizes {
    /// None if the protocol has no resizing, or a message was invalid.
    stream: Option<ByteReader>,
    unread: BytesMut,
}

impl TerminalSizes {
    pub(super) fn new(stream: Option<ByteReader>) -> Self {
        Self {
            stream,
            unread: BytesMut::new(),
        }
    }

    /// The next size; None once there are no more. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Option<TerminalSize> {
        loop {
            let mut sizes = serde_json::Deserializer::from_slice(&self.unread).into_iter();
            let size = sizes.next();
            let end = sizes.byte_offset();
            match size {
                Some(Ok(size)) => {
                    self.unread.advance(end);
                    return Some(size);
                }
                Some(Err(error)) if !error.is_eof() => self.stream = None,
                _ if self.unread.len() > MESSAGE_BYTES_MAX => self.stream = None,
                _ => {}
            }
            let stream = self.stream.as_mut()?;
            match stream.read_buf(&mut self.unread).await {
                Ok(bytes) if bytes > 0 => {}
                _ => self.stream = None,
            }
        }
    }
}
