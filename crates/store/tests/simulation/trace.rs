//! The trace of a run as a hash: two runs of a seed have the same one.

use std::{
    fmt,
    hash::Hasher,
    sync::Mutex,
    sync::atomic::{AtomicU64, Ordering},
};

/// Prints every line of a trace if it is set.
const PRINT: &str = "BELLEROPHON_STORE_TRACE";

pub(crate) struct Trace {
    hash: Mutex<std::hash::DefaultHasher>,
    now: AtomicU64,
    is_printed: bool,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self {
            hash: Mutex::default(),
            now: AtomicU64::new(0),
            is_printed: std::env::var_os(PRINT).is_some(),
        }
    }

    pub(crate) fn set_now(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
    }

    pub(crate) fn record(&self, line: fmt::Arguments<'_>) {
        let line = format!("{} {line}", self.now.load(Ordering::Relaxed));
        if self.is_printed {
            eprintln!("{line}");
        }
        self.hash.lock().unwrap().write(line.as_bytes());
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.lock().unwrap().finish()
    }
}
