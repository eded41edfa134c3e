//! Processes by `/proc`: descendants, and processes with a marker in their environment.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::usage::Usage;

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

/// The session of a process, in the same format.
fn session(stat: &str) -> Option<Pid> {
    let rest = stat.get(stat.rfind(')')? + 1..)?;
    Pid::from_raw(rest.split_whitespace().nth(3)?.parse().ok()?)
}

/// Kills the processes of a session whose leader has ended.
pub(super) fn kill_session(leader: Pid) -> io::Result<()> {
    for pid in pids()? {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        if stat.ok().as_deref().and_then(session) == Some(leader) {
            // It may have ended.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    Ok(())
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

/// The clock ticks per second of proc_pid_stat(5), which is part of the kernel's ABI.
const TICKS_PER_SECOND: u64 = 100;

/// The CPU time of a process and of its children that have been waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTicks {
    own: u64,
    children: u64,
}

/// The CPU time in proc_pid_stat(5): fields 14 to 17, of which the third is the first behind the
/// name.
fn cpu_ticks(stat: &str) -> Option<CpuTicks> {
    let rest = stat.get(stat.rfind(')')? + 1..)?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || -> Option<u64> { fields.next()?.parse().ok() };
    let own = next()? + next()?;
    let children = next()? + next()?;
    Some(CpuTicks { own, children })
}

/// The memory of a process: its proportional set size, or its resident set size.
fn memory_bytes(pid: Pid) -> u64 {
    let pid = pid.as_raw_nonzero();
    let field = |file: &str, name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix(" kB")?.parse().ok()
    };
    let kibibytes = field("smaps_rollup", "Pss:").or_else(|| field("status", "VmRSS:"));
    kibibytes.unwrap_or_default() * 1024
}

/// What processes have used. Processes that have ended are left out.
fn usage(pids: impl IntoIterator<Item = Pid>) -> (u64, u64) {
    let mut ticks = 0;
    let mut memory = 0;
    for pid in pids {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        if let Some(cpu) = stat.ok().as_deref().and_then(cpu_ticks) {
            ticks += cpu.own + cpu.children;
            memory += memory_bytes(pid);
        }
    }
    (ticks, memory)
}

fn usage_of(ticks: u64, memory_bytes: u64) -> Usage {
    Usage {
        cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
        memory_bytes,
    }
}

/// What the processes in the PID namespace of a process have used.
pub(super) fn usage_of_namespace(main: Pid) -> io::Result<Usage> {
    let namespace = |pid: Pid| fs::read_link(format!("/proc/{}/ns/pid", pid.as_raw_nonzero()));
    let of_main = namespace(main)?;
    let members = pids()?.filter(|pid| namespace(*pid).is_ok_and(|it| it == of_main));
    let (ticks, memory) = usage(members);
    Ok(usage_of(ticks, memory))
}

/// What the descendants of this process have used, with those that have ended.
pub(super) fn usage_of_descendants() -> io::Result<Usage> {
    let (ticks, memory) = usage(descendants(rustix::process::getpid())?);
    let own = cpu_ticks(&fs::read_to_string("/proc/self/stat")?).unwrap_or_default();
    Ok(usage_of(ticks + own.children, memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "12 (a) b) S 7 12 12 0 -1 0 1 2 3 4 100 20 3 4 20 0 1 0";
        let expected = CpuTicks {
            own: 120,
            children: 7,
        };
        assert_eq!(cpu_ticks(stat), Some(expected));
        assert_eq!(cpu_ticks("12 (a) S 7"), None);
    }

    #[test]
    fn session_is_read_behind_any_name() {
        assert_eq!(session("12 (a) S 1) S 7 12 13 0"), Pid::from_raw(13));
        assert_eq!(session("12 (a) S 7"), None);
    }

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
