//! Structural schemas and the objects they prune and default, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_fuzz::run("schema", data));
