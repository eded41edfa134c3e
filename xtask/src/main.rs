//! The tasks of this repository.
fn main() {}
