//! Entry point of the shim processes.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs a shim if the arguments of the process, with its name, are those of one.
///
/// The binary that is the shim calls this first in `main`, before it starts a thread:
///
/// ```
/// # use std::process::ExitCode;
/// fn main() -> ExitCode {
///     if let Some(code) = bellerophon_process_runtime::shim::main(std::env::args_os()) {
///         return code;
///     }
///     // The program itself.
///     ExitCode::SUCCESS
/// }
/// ```
#[cfg(target_os = "linux")]
pub fn main(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    crate::linux::main(args)
}

/// There is no shim on this system.
#[cfg(not(target_os = "linux"))]
pub fn main(_args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    None
}
