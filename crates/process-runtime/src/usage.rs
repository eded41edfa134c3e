//! Resource usage of a container.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the processes of a container have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time since the start of the container. Without a cgroup, the time of commands that were
    /// executed in the container and have ended does not count in tier A.
    pub cpu: Duration,
    /// The working set: memory of the cgroup without inactive files, or the proportional set size
    /// of all processes.
    pub memory_bytes: u64,
}

/// The usage of a cgroup v2. Mirrors how the kubelet computes `usageCoreNanoSeconds` and
/// `workingSetBytes`.
pub(crate) fn of_cgroup(cgroup: &Path) -> io::Result<Usage> {
    let read = |file: &str| fs::read_to_string(cgroup.join(file));
    let cpu = field(&read("cpu.stat")?, "usage_usec")?;
    let current: u64 = number(&read("memory.current")?)?;
    let inactive = field(&read("memory.stat")?, "inactive_file")?;
    Ok(Usage {
        cpu: Duration::from_micros(cpu),
        memory_bytes: current.saturating_sub(inactive),
    })
}

/// The value of a line `name value`.
fn field(text: &str, name: &str) -> io::Result<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let value = lines.find_map(|(found, value)| (found == name).then_some(value));
    number(value.unwrap_or_default())
}

fn number(text: &str) -> io::Result<u64> {
    let text = text.trim();
    text.parse().map_err(|_| {
        let message = format!("not a number of a cgroup: {text:?}");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_the_files_of_a_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        write("cpu.stat", "usage_usec 2500000\nuser_usec 2000000\n");
        write("memory.current", "4096000\n");
        assert!(of_cgroup(dir.path()).is_err());
        write("memory.stat", "anon 1\ninactive_file 96000\n");
        let expected = Usage {
            cpu: Duration::from_millis(2500),
            memory_bytes: 4_000_000,
        };
        assert_eq!(of_cgroup(dir.path()).unwrap(), expected);
        write("memory.current", "max");
        let error = of_cgroup(dir.path()).unwrap_err();
        assert_eq!(error.to_string(), "not a number of a cgroup: \"max\"");
    }
}
