//! Processes by `/proc`: descendants, and processes with a marker in their environment.

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

fn pids() -> io::Result<impl Iterator<Item = Pid>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    }))
}

/// The parent of a process. Mirrors the format of proc_pid_stat(5): the name is in parentheses
/// and may contain any character.
fn parent(stat: &str) -> Option<Pid> {
    let rest = stat.get(stat.rfind(')')? + 1..)?;
    Pid::from_raw(rest.split_whitespace().nth(1)?.parse().ok()?)
}

/// All descendants of a process.
fn descendants(root: Pid) -> io::Result<Vec<Pid>> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for pid in pids()? {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        if let Some(parent) = stat.ok().as_deref().and_then(parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut rest = vec![root];
    while let Some(pid) = rest.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.push(child);
            rest.push(child);
        }
    }
    Ok(found)
}

/// Kills all descendants of this process, which is their subreaper, until none is left; returns
/// those that were its children, with their wait status.
pub(super) fn kill_descendants() -> io::Result<Vec<(Pid, WaitStatus)>> {
    let this = rustix::process::getpid();
    let mut reaped = Vec::new();
    loop {
        for pid in descendants(this)? {
            // It may have ended.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        // Orphans become children of this process as their parents end, so it has no descendants
        // once it has no children. All children were just killed, so waiting for one is short.
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some(child)) => reaped.push(child),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(reaped),
            Err(error) => return Err(error.into()),
        }
        while let Ok(Some(child)) = rustix::process::wait(WaitOptions::NOHANG) {
            reaped.push(child);
        }
    }
}

/// Processes other than this one that have the variable in their environment, and are not yet
/// zombies.
pub(crate) fn with_environment(name: &str, value: &str) -> io::Result<Vec<Pid>> {
    let marker = format!("{name}={value}");
    let this = rustix::process::getpid();
    let found = pids()?.filter(|pid| {
        // Processes of other users and zombies cannot be read, or are empty.
        let environ = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        let has_marker = |environ: Vec<u8>| {
            environ
                .split(|byte| *byte == 0)
                .any(|variable| variable == marker.as_bytes())
        };
        *pid != this && environ.is_ok_and(has_marker)
    });
    Ok(found.collect())
}

/// Kills processes with the variable in their environment; returns their number.
pub(crate) fn kill_with_environment(name: &str, value: &str) -> io::Result<usize> {
    let pids = with_environment(name, value)?;
    for pid in &pids {
        // It may have ended.
        let _ = rustix::process::kill_process(*pid, Signal::KILL);
    }
    Ok(pids.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_read_behind_any_name() {
        let cases = [
            ("12 (sh) S 7 12 12 0", Pid::from_raw(7)),
            ("12 (a) S 1) (b) R 8 12 12 0", Pid::from_raw(8)),
            ("1 (init) S 0 1 1 0", None),
            ("", None),
        ];
        for (stat, expected) in cases {
            assert_eq!(parent(stat), expected, "{stat}");
        }
    }
}
