//! One input: runs a target and measures it.
//!
//! Inputs: a target and bytes. Outputs: what the target returned and what it took, or the failure.
//!
//! Guarantee: a panic is reported even if the code under test catches it, as the API server does.

use std::{
    cell::RefCell,
    fs,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    limits::Limits,
    targets::{self, Outcome, Target},
};

/// The length to which the message of a panic is cut, in characters.
const PANIC_MAX_CHARS: usize = 2_000;

thread_local! {
    /// The first panic of this thread since the last input started.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What an input took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Wall time.
    pub time: Duration,
    /// Peak of allocated memory above what was allocated before; 0 if it is not measured.
    pub memory_bytes: usize,
}

/// The result of one input.
pub struct Execution {
    /// What the target returned, or why the input is a finding.
    pub result: Result<Outcome, Failure>,
    /// What it took.
    pub cost: Cost,
}

/// Why an input is a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A panic, with its message and location.
    Panic(String),
    /// It took longer than the limit.
    Time(Duration),
    /// It allocated more than the limit.
    Memory(usize),
}

impl Failure {
    /// Whether two failures have one cause, as far as can be seen from here.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Panic(a), Self::Panic(b)) => location(a) == location(b),
            (Self::Time(_), Self::Time(_)) => true,
            (Self::Memory(_), Self::Memory(_)) => true,
            _ => false,
        }
    }
}

/// The location at the start of a recorded panic.
fn location(panic: &str) -> &str {
    panic
        .split_once(": ")
        .map_or(panic, |(location, _)| location)
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Panic(message) => write!(f, "panicked at {message}"),
            Self::Time(time) => write!(f, "took {time:.1?}"),
            Self::Memory(bytes) => write!(f, "allocated {} MiB", bytes >> 20),
        }
    }
}

/// Measures the peak of allocated memory. Only a program can install an allocator that does.
#[derive(Clone, Copy)]
pub struct PeakMemory {
    /// Starts a measurement, and returns the bytes that are allocated now.
    pub start: fn() -> usize,
    /// The most bytes that were allocated since the start.
    pub peak: fn() -> usize,
}

/// Records panics instead of printing them, from now on and in the whole process.
pub fn record_panics() {
    panic::set_hook(Box::new(|info| {
        let text = describe(info);
        PANIC.with_borrow_mut(|panic| {
            panic.get_or_insert(text);
        });
    }));
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let location = info
        .location()
        .map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message = text
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    // An assertion may show an object of megabytes.
    let shown: String = message.chars().take(PANIC_MAX_CHARS).collect();
    format!("{location}: {shown}")
}

/// Runs a target with one input.
///
/// [`record_panics`] must have been called. Time is wall time first. Other processes slow an input
/// down, so an input that exceeds the time limit runs again, and then its processor time counts.
pub fn execute(
    target: &Target,
    input: &[u8],
    limits: &Limits,
    memory: Option<PeakMemory>,
) -> Execution {
    let start = Instant::now();
    let mut execution = measure(target, input, memory, || start.elapsed());
    let time_max = limits.time(input.len());
    if execution.result.is_ok() && execution.cost.time > time_max {
        let wall = || start.elapsed();
        execution = measure(target, input, memory, || {
            processor_time().unwrap_or_else(wall)
        });
    }
    if execution.result.is_ok() {
        let Cost { time, memory_bytes } = execution.cost;
        if time > time_max {
            execution.result = Err(Failure::Time(time));
        } else if memory_bytes > limits.memory_bytes(input.len()) {
            execution.result = Err(Failure::Memory(memory_bytes));
        }
    }
    if execution.result.is_err() {
        // What a target keeps between inputs may be broken now.
        targets::reset();
    }
    execution
}

fn measure(
    target: &Target,
    input: &[u8],
    memory: Option<PeakMemory>,
    clock: impl Fn() -> Duration,
) -> Execution {
    PANIC.set(None);
    let before = memory.map_or(0, |memory| (memory.start)());
    let start = clock();
    let unwound = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let time = clock().saturating_sub(start);
    let peak = memory.map_or(0, |memory| (memory.peak)());
    let result = match (PANIC.take(), unwound) {
        (Some(panic), _) => Err(Failure::Panic(panic)),
        (None, Ok(outcome)) => Ok(outcome),
        (None, Err(_)) => Err(Failure::Panic("on another thread".to_owned())),
    };
    Execution {
        result,
        cost: Cost {
            time,
            memory_bytes: peak.saturating_sub(before),
        },
    }
}

/// The processor time of this thread, where the system reports it.
fn processor_time() -> Option<Duration> {
    let statistics = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = statistics.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        time_base: Duration::ZERO,
        time_per_byte: Duration::ZERO,
        memory_base_bytes: 10,
        memory_per_byte: 0,
        memory_max_bytes: 10,
    };

    fn target(run: fn(&[u8]) -> Outcome) -> Target {
        Target {
            name: "test",
            run,
            input_max_bytes: 10,
        }
    }

    #[test]
    fn panics_are_failures_even_if_they_are_caught() {
        record_panics();
        let caught = target(|_| {
            let unwound = panic::catch_unwind(|| panic!("first"));
            assert!(unwound.is_err());
            Outcome::default()
        });
        let thrown = target(|_| panic!("first"));
        for target in [caught, thrown] {
            let result = execute(&target, b"", &Limits::OPTIMIZED, None).result;
            let Err(Failure::Panic(message)) = result else {
                panic!("{result:?} is not a panic")
            };
            assert!(message.ends_with(": first"), "{message}");
        }
    }

    #[test]
    fn inputs_over_the_limits_are_failures() {
        record_panics();
        let busy = target(|_| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(20) {}
            Outcome::default()
        });
        let result = execute(&busy, b"", &LIMITS, None).result;
        assert!(matches!(result, Err(Failure::Time(_))), "{result:?}");
        let limits = Limits {
            time_base: Duration::from_secs(60),
            ..LIMITS
        };
        let memory = PeakMemory {
            start: || 5,
            peak: || 16,
        };
        let result = execute(&busy, b"", &limits, Some(memory)).result;
        assert_eq!(result, Err(Failure::Memory(11)));
    }
}
