//! What the benchmarks share: client-go's side of them, and the processor time of this process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The program in `clientgo`, built; nothing where Go cannot do that.
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

/// What all threads of this process used so far, in hundredths of a second, where the system tells.
pub(crate) fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // User and system time are the 14th and 15th field; the second one is a name in brackets and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks()? + ticks()?)))
}
