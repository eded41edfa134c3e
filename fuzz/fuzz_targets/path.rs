//! Paths of requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_apiserver::fuzzing::path(data));
