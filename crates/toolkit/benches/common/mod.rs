//! Shared by the benchmarks: the client-go program, and the processor time of this process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The path of the program in `clientgo`; `None` if Go is not installed or cannot build it.
pub(crate) fn client_go() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clientgo");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/clientgo");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(folder)
        .status();
    built
        .is_ok_and(|status| status.success())
        .then_some(program)
}

/// The processor time of all threads of this process so far, with a resolution of 10 ms; `None` on
/// systems without `/proc`.
pub(crate) fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // User and system time are the 14th and 15th field. The second field is the name in
    // parentheses, which may contain spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks()? + ticks()?)))
}
