//! Validation rules: an expression on the first line, an object behind it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_apiserver::fuzzing::rule(data));
