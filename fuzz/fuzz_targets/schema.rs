//! Definitions: a schema on the first line, a value behind it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_apiserver::fuzzing::schema(data));
