//! The time and memory that one input may take.

use std::time::Duration;

/// The largest request body that the API server reads, in bytes.
pub const BODY_MAX_BYTES: usize = 3 << 20;

/// What an input of a length may take: a constant, and a share per byte.
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
}

impl Limits {
    /// The limits of the `fuzz` profile.
    pub const OPTIMIZED: Self = Self {
        time_base: Duration::from_secs(2),
        time_per_byte: Duration::from_micros(1),
        memory_base_bytes: 64 << 20,
        memory_per_byte: 100,
    };

    /// The longest time that an input of this length may take.
    pub fn time(&self, length: usize) -> Duration {
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        self.time_base + self.time_per_byte * bytes
    }

    /// The most memory that an input of this length may allocate, in bytes.
    pub fn memory_bytes(&self, length: usize) -> usize {
        self.memory_base_bytes + self.memory_per_byte * length
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
        assert_eq!(limits.memory_bytes(10), (64 << 20) + 1_000);
    }
}
