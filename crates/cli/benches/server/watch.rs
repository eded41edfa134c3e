//! Watches, and how their events are counted.

use crate::common::{BenchError, client::Connection};

impl Connection {
    /// Opens a watch; its events are read with [`Connection::events`].
    pub(crate) async fn watch(&mut self, path: &str) -> Result<(), BenchError> {
        self.send("GET", path, "").await?;
        let (status, _) = self.head().await?;
        if status != 200 {
            return Err(format!("watch {path} returned {status}").into());
        }
        Ok(())
    }

    /// Reads more bytes of a watch, and counts the events that end in them.
    pub(crate) async fn events(&mut self) -> Result<isize, BenchError> {
        if self.unread == self.buffer.len() {
            self.fill().await?;
        }
        // An event ends with LF, the framing of a chunk with CR LF, and JSON contains neither. A
        // frame can be split between two reads, so that one count is off by one; the sum is exact.
        let unread = &self.buffer[self.unread..];
        let count = |byte: u8| {
            unread
                .iter()
                .map(|b| isize::from(*b == byte))
                .sum::<isize>()
        };
        let events = count(b'\n') - count(b'\r');
        self.unread = self.buffer.len();
        Ok(events)
    }
}
