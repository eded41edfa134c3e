//! Field selectors and the options of lists.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_apiserver::fuzzing::field_selector(data));
