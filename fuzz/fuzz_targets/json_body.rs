//! Bodies in JSON.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_apiserver::fuzzing::json_body(data));
