//! Gzip of response bodies.
//!
//! Guarantee: between two chunks of a body, nothing but a checksum is kept. Each chunk is
//! compressed by itself and ends with a full flush, so that chunks need no common window and their
//! concatenation is one deflate stream.

use std::{cell::RefCell, io::Write as _};

use bytes::{BufMut as _, Bytes};
use flate2::{Compress, Compression, Crc, FlushCompress, write::GzEncoder};

use super::body::Chunks;

/// Smaller responses are not compressed, as in kube-apiserver.
pub(crate) const MIN_BYTES: usize = 128 * 1024;

/// How much is compressed at a time. Smaller pieces compress less well.
const INPUT_BYTES: usize = 256 << 10;

/// Method deflate, no flags, no time, fastest algorithm, unknown operating system: what `GzEncoder`
/// writes.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff];

/// An empty final block.
const LAST_BLOCK: [u8; 2] = [3, 0];

thread_local! {
    /// A compressor has 300 KiB of tables: it is reset instead of allocated again.
    static COMPRESSOR: RefCell<Compress> = RefCell::new(Compress::new(Compression::fast(), false));
}

/// Bytes compressed as a whole.
pub(crate) fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
    encoder
        .write_all(bytes)
        .expect("writing to memory does not fail");
    encoder.finish().expect("writing to memory does not fail")
}

/// Compresses chunks while they are sent.
pub(crate) struct Gzip {
    chunks: Box<dyn Chunks>,
    checksum: Crc,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Blocks,
    Ended,
}

impl Gzip {
    pub(crate) fn new(chunks: Box<dyn Chunks>) -> Self {
        Self {
            chunks,
            checksum: Crc::new(),
            state: State::Header,
        }
    }
}

impl Chunks for Gzip {
    fn next(&mut self, max_bytes: usize) -> Option<Bytes> {
        let mut out = Vec::new();
        match self.state {
            State::Header => out.extend(HEADER),
            State::Blocks => {}
            State::Ended => return None,
        }
        match self.chunks.next(max_bytes.max(INPUT_BYTES)) {
            Some(input) => {
                self.state = State::Blocks;
                self.checksum.update(&input);
                deflate(&input, &mut out);
            }
            None => {
                self.state = State::Ended;
                out.extend(LAST_BLOCK);
                out.put_u32_le(self.checksum.sum());
                out.put_u32_le(self.checksum.amount());
            }
        }
        Some(out.into())
    }

    fn remaining_bytes(&self) -> Option<u64> {
        None
    }
}

/// Appends blocks that refer to nothing before them and end at a byte boundary.
fn deflate(input: &[u8], out: &mut Vec<u8>) {
    COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.reset();
        out.reserve(input.len() / 8 + 64);
        loop {
            let consumed = compressor.total_in() as usize;
            compressor
                .compress_vec(&input[consumed..], out, FlushCompress::Full)
                .expect("deflate of memory does not fail");
            let is_flushed = out.len() < out.capacity();
            if is_flushed && compressor.total_in() as usize == input.len() {
                break;
            }
            out.reserve(out.capacity());
        }
    });
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    /// Chunks of a text, as large as they may be.
    struct Text(Bytes);

    impl Chunks for Text {
        fn next(&mut self, max_bytes: usize) -> Option<Bytes> {
            let chunk = self.0.split_to(max_bytes.min(self.0.len()));
            (!chunk.is_empty()).then_some(chunk)
        }

        fn remaining_bytes(&self) -> Option<u64> {
            Some(self.0.len() as u64)
        }
    }

    fn sent(text: &[u8], max_bytes: usize) -> Vec<Bytes> {
        let mut gzip = Gzip::new(Box::new(Text(Bytes::copy_from_slice(text))));
        std::iter::from_fn(|| gzip.next(max_bytes)).collect()
    }

    #[test]
    fn chunks_are_one_gzip_member() {
        let mut noise = 7_u32;
        let mut next = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 24) as u8
        };
        let random: Vec<u8> = (0..900_000).map(|_| next()).collect();
        let regular = br#"{"metadata":{"name":"a","namespace":"default"}}"#.repeat(20_000);
        for text in [&b""[..], b"x", &regular, &random] {
            for max_bytes in [64 << 10, 300 << 10, usize::MAX] {
                let chunks = sent(text, max_bytes);
                let mut unpacked = Vec::new();
                GzDecoder::new(&chunks.concat()[..])
                    .read_to_end(&mut unpacked)
                    .expect("one member");
                assert_eq!(unpacked, text);
            }
        }
        assert_eq!(
            sent(&regular, 64 << 10).len(),
            regular.len().div_ceil(INPUT_BYTES) + 1
        );
    }

    #[test]
    fn chunks_compress_nearly_as_well_as_the_whole() {
        let text: Vec<u8> = (0..20_000)
            .flat_map(|i| format!(r#"{{"name":"pod-{i}","uid":"{:x}"}},"#, i * 7_919).into_bytes())
            .collect();
        let whole = compress(&text).len();
        let chunked: usize = sent(&text, 64 << 10).iter().map(Bytes::len).sum();
        assert!(chunked < whole * 11 / 10, "{chunked} of {whole}");
    }
}
