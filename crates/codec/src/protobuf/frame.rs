//! An event of a watch: its length, type and object.

use bytes::{BufMut, BytesMut};

use super::writer::Writer;

/// Writes an event. The object is in an envelope; the event has none.
pub fn frame(name: &str, object: &[u8], out: &mut BytesMut) {
    let mut writer = Writer::default();
    writer.message(2, |writer| writer.bytes(1, object));
    writer.bytes(1, name.as_bytes());
    let event = writer.finish();
    out.reserve(event.len() + 4);
    out.put_u32(u32::try_from(event.len()).expect("an object is smaller than 4 GiB"));
    out.put_slice(&event);
}
