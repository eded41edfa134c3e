//! Binary encoding of numbers, texts and options: little-endian, lengths before bytes.
//!
//! Guarantees: decoding never panics and never allocates more than the input has bytes; what
//! [`Writer`] wrote, [`Reader`] reads back.

use std::{collections::BTreeSet, io};

use bytes::Bytes;

/// Input that is not what the encoder writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is malformed")]
pub(crate) struct Malformed(pub(crate) &'static str);

impl From<Malformed> for io::Error {
    fn from(error: Malformed) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// Appends values to a buffer.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        let length = u32::try_from(value.len()).expect("values, keys and messages are below 4 GiB");
        self.u32(length);
        self.0.extend_from_slice(value);
    }

    pub(crate) fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.u8(0),
            Some(value) => {
                self.u8(1);
                write(self, value);
            }
        }
    }

    pub(crate) fn ids(&mut self, ids: &BTreeSet<u64>) {
        self.u32(u32::try_from(ids.len()).expect("memberships are small"));
        for id in ids {
            self.u64(*id);
        }
    }
}

/// Takes values from the front of a buffer. Values and keys share the buffer's memory.
pub(crate) struct Reader {
    rest: Bytes,
    /// What is read, for error messages.
    what: &'static str,
}

impl Reader {
    pub(crate) fn new(input: Bytes, what: &'static str) -> Self {
        Self { rest: input, what }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn malformed(&self) -> Malformed {
        Malformed(self.what)
    }

    fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        if length > self.rest.len() {
            return Err(self.malformed());
        }
        Ok(self.rest.split_to(length))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed()),
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?;
        let array: [u8; 4] = bytes[..].try_into().expect("four bytes were taken");
        Ok(u32::from_le_bytes(array))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.take(8)?;
        let array: [u8; 8] = bytes[..].try_into().expect("eight bytes were taken");
        Ok(u64::from_le_bytes(array))
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.into()).map_err(|_| self.malformed())
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.flag()? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(crate) fn ids(&mut self) -> Result<BTreeSet<u64>, Malformed> {
        let count = self.u32()?;
        (0..count).map(|_| self.u64()).collect()
    }

    /// Fails unless everything was read.
    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.malformed())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let mut writer = Writer::default();
        writer.u8(7);
        writer.u32(u32::MAX);
        writer.u64(u64::MAX - 1);
        writer.text("key");
        writer.bytes(b"\0\xff");
        writer.option(Some(5), Writer::u64);
        writer.option(None, Writer::u64);
        writer.ids(&BTreeSet::from([1, 9]));
        let mut reader = Reader::new(writer.0.into(), "test");
        assert_eq!(reader.u8(), Ok(7));
        assert_eq!(reader.u32(), Ok(u32::MAX));
        assert_eq!(reader.u64(), Ok(u64::MAX - 1));
        assert_eq!(reader.text().unwrap(), "key");
        assert_eq!(&reader.bytes().unwrap()[..], b"\0\xff");
        assert_eq!(reader.option(Reader::u64), Ok(Some(5)));
        assert_eq!(reader.option(Reader::u64), Ok(None));
        assert_eq!(reader.ids().unwrap(), BTreeSet::from([1, 9]));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn every_truncation_of_input_is_malformed() {
        let mut writer = Writer::default();
        writer.u32(3);
        writer.text("key");
        writer.option(Some(5), Writer::u64);
        let whole: Bytes = writer.0.into();
        let read = |input: Bytes| {
            let mut reader = Reader::new(input, "test");
            reader.u32()?;
            reader.text()?;
            reader.option(Reader::u64)?;
            reader.finish()
        };
        assert_eq!(read(whole.clone()), Ok(()));
        for length in 0..whole.len() {
            assert_eq!(
                read(whole.slice(..length)),
                Err(Malformed("test")),
                "{length}"
            );
        }
    }
}
