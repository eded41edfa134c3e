//! Field selectors and list options, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_fuzz::run("field_selector", data));
