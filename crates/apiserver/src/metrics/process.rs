//! Metrics of the process, under the names that all Prometheus libraries use. Linux only.

use std::{fs, sync::atomic::AtomicU64};

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// How many ticks of process times make a second: part of Linux' interface to programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// Facts about a process; what the system does not report is left out.
#[derive(Debug, Default, PartialEq)]
struct Facts {
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    open_files: Option<f64>,
}

/// The process at this moment.
pub(super) fn process() -> Registry {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let open_files = fs::read_dir("/proc/self/fd")
        .ok()
        .map(|files| files.count() as f64);
    let facts = Facts {
        open_files,
        ..Facts::read(
            &read("/proc/self/stat"),
            &read("/proc/self/status"),
            &read("/proc/stat"),
        )
    };
    facts.registry()
}

impl Facts {
    /// Reads `/proc/self/stat`, `/proc/self/status` and `/proc/stat`.
    fn read(own: &str, status: &str, system: &str) -> Self {
        // The name of the program may hold anything, so fields are counted from behind it: the
        // first is the third.
        let fields: Vec<&str> = own
            .rsplit_once(')')
            .map_or_else(Vec::new, |(_, rest)| rest.split_whitespace().collect());
        let ticks = |field: usize| {
            fields
                .get(field - 3)?
                .parse::<f64>()
                .ok()
                .map(|t| t / TICKS_PER_SECOND)
        };
        let kibibytes = |key| Some(number(status, key)? * 1024.0);
        Self {
            cpu_seconds: ticks(14).zip(ticks(15)).map(|(user, system)| user + system),
            start_seconds: ticks(22)
                .zip(number(system, "btime"))
                .map(|(after, boot)| boot + after),
            resident_bytes: kibibytes("VmRSS:"),
            virtual_bytes: kibibytes("VmSize:"),
            open_files: None,
        }
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("process");
        if let Some(seconds) = self.cpu_seconds {
            let counter = Counter::<f64, AtomicU64>::default();
            counter.inc_by(seconds);
            registry.register("cpu_seconds", "Processor time used, in seconds", counter);
        }
        for (name, help, value) in [
            (
                "start_time_seconds",
                "When the process started, in seconds since 1970",
                self.start_seconds,
            ),
            (
                "resident_memory_bytes",
                "Memory in use, in bytes",
                self.resident_bytes,
            ),
            (
                "virtual_memory_bytes",
                "Address space in use, in bytes",
                self.virtual_bytes,
            ),
            ("open_fds", "Open files and sockets", self.open_files),
        ] {
            if let Some(value) = value {
                let gauge = Gauge::<f64, AtomicU64>::default();
                gauge.set(value);
                registry.register(name, help, gauge);
            }
        }
        registry
    }
}

/// The number behind a word at the start of a line.
fn number(text: &str, key: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_behind_the_name_of_the_program() {
        let own = "42 (a b) c) S 1 1 1 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 3000 0 0";
        let facts = Facts::read(
            own,
            "Name:\tx\nVmSize:\t  8 kB\nVmRSS:\t  2 kB\n",
            "cpu 1\nbtime 1700000000\n",
        );
        let expected = Facts {
            cpu_seconds: Some(2.0),
            start_seconds: Some(1_700_000_030.0),
            resident_bytes: Some(2048.0),
            virtual_bytes: Some(8192.0),
            open_files: None,
        };
        assert_eq!(facts, expected);
        assert_eq!(Facts::read("", "", ""), Facts::default());
    }
}
