//! What the processes of a cluster used: counts that depend less on the load of the machine than
//! durations do.

use std::{fs, io};

use tokio::process::Child;

/// What was used since the processes were started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// How often a thread waited: for a message, another thread or the disk.
    pub(crate) waits: u64,
    /// Processor time in clock ticks of 10 ms.
    pub(crate) ticks: u64,
}

impl Usage {
    /// The usage of all processes. Threads that ended count with their processor time only.
    pub(crate) fn of<'a>(processes: impl IntoIterator<Item = &'a Child>) -> io::Result<Self> {
        let mut usage = Self::default();
        for id in processes.into_iter().filter_map(Child::id) {
            usage.ticks += ticks(&fs::read_to_string(format!("/proc/{id}/stat"))?);
            for task in fs::read_dir(format!("/proc/{id}/task"))? {
                // A thread may end between the list and the read.
                if let Ok(status) = fs::read_to_string(task?.path().join("status")) {
                    usage.waits += waits(&status);
                }
            }
        }
        Ok(usage)
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            waits: self.waits.saturating_sub(before.waits),
            ticks: self.ticks.saturating_sub(before.ticks),
        }
    }
}

fn waits(status: &str) -> u64 {
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// The sum of utime and stime, which follow the name in parentheses as the 12th and 13th field.
fn ticks(stat: &str) -> u64 {
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let fields = fields.split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}
