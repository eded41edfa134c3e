//! What a command waits for, for a person who watches it.
//!
//! Guarantee: nothing is printed unless stderr is a terminal, so logs and scripts see no such line.

use std::io::{IsTerminal as _, stderr};

/// Prints what the command does now.
pub(crate) fn report(what: &str) {
    if stderr().is_terminal() {
        eprintln!("bellerophon: {what}");
    }
}
