//! The `bellerophon` binary.
fn main() {}
