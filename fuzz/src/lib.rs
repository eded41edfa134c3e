//! Fuzz targets: everything that parses untrusted input.
//!
//! Input: bytes. Output: a panic, or more time or memory than [`Limits`] allows, is a finding.
//!
//! The targets are defined once. libFuzzer runs them with a nightly compiler (`fuzz_targets/`), the
//! binary of this crate with any compiler (`cargo xtask fuzz`), and `cargo test` with a fixed seed.

mod execute; // one input: panics, time, memory
mod limits; // the time and memory that an input may take
mod mutate; // inputs from seeds
mod seeds; // valid inputs, in seeds/
mod targets; // the functions under test

pub use execute::{Cost, Execution, Failure, PeakMemory, execute, record_panics};
pub use limits::{BODY_MAX_BYTES, Limits};
pub use mutate::Mutator;
pub use seeds::seeds;
pub use targets::{Outcome, TARGETS, Target, reset};

/// Runs a target with one input, for libFuzzer.
///
/// # Panics
/// The input is a finding, or there is no such target.
pub fn run(name: &str, data: &[u8]) {
    let target = Target::find(name).expect("fuzz_targets/ names targets of the table");
    if data.len() <= target.input_max_bytes {
        (target.run)(data);
    }
}
