//! JSON patches, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_fuzz::run("json_patch", data));
