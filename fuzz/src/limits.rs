//! The time and memory that one input may take.

use std::time::Duration;

/// The largest request body that the API server reads, in bytes.
pub const BODY_MAX_BYTES: usize = 3 << 20;

/// What an input of a length may take: a constant and a share per byte, up to a maximum.
///
/// Work that is quadratic in the length of an input, or memory that an input multiplies, exceeds
/// these limits below [`BODY_MAX_BYTES`]; linear work stays below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time of any input.
    pub time_base: Duration,
    /// More time for each byte.
    pub time_per_byte: Duration,
    /// Memory of any input, in bytes.
    pub memory_base_bytes: usize,
    /// More memory for each byte.
    pub memory_per_byte: usize,
    /// Memory of the longest input, in bytes.
    pub memory_max_bytes: usize,
}

impl Limits {
    /// The limits of the `fuzz` profile. A JSON object of one member takes 640 bytes of memory and
    /// at least 6 bytes of text, and up to eight trees exist at a time: the body, the stored object,
    /// what a write makes of them, field sets, and two responses that the target compares.
    pub const OPTIMIZED: Self = Self {
        time_base: Duration::from_secs(2),
        time_per_byte: Duration::from_micros(1),
        memory_base_bytes: 64 << 20,
        memory_per_byte: 8 * 640 / 6,
        memory_max_bytes: 768 << 20,
    };

    /// The longest time that an input of this length may take.
    pub fn time(&self, length: usize) -> Duration {
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        self.time_base + self.time_per_byte * bytes
    }

    /// The most memory that an input of this length may allocate, in bytes.
    pub fn memory_bytes(&self, length: usize) -> usize {
        let bytes = self.memory_base_bytes + self.memory_per_byte * length;
        bytes.min(self.memory_max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_the_input() {
        let limits = Limits::OPTIMIZED;
        assert_eq!(limits.time(0), Duration::from_secs(2));
        assert_eq!(limits.time(1_000_000), Duration::from_secs(3));
        assert_eq!(limits.memory_bytes(10), (64 << 20) + 8_530);
        assert_eq!(limits.memory_bytes(BODY_MAX_BYTES), 768 << 20);
    }
}
