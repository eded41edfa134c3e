//! Bodies in YAML.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_apiserver::fuzzing::yaml_body(data));
