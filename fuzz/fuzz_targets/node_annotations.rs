//! The reboot operator's annotations of Nodes, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellerophon_fuzz::run("node_annotations", data));
