//! Merge patches: an object on the first line, the patch behind it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_apiserver::fuzzing::merge_patch(data));
