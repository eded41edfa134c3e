//! Usage of CPU and memory by the containers of a node.
//!
//! In: pods with running containers, and what their runtime measures. Out: one sample per
//! container, for `/stats/summary` and the metrics server.
//! Guarantees: the CPU rate of a measured container is that between two samples which are at least
//! 10 seconds apart, or since its start; it has no sample in the first 10 seconds. A container whose
//! usage is simulated has one from its start. Samples of containers that are no longer requested
//! are dropped after 10 minutes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::super::super::container_simulation::SimulatedUsage;
use super::super::super::time::{after, remaining};
use super::KubeletServer;
use super::handler::pod_ref;
use super::logs::container_status;
use super::streams::Usage;

/// A rate over less time is inaccurate (metrics-server: freshContainerMinMetricsResolution).
const WINDOW_MIN: Duration = Duration::from_secs(10);

/// The window of simulated usage: the default metric resolution of metrics-server's manifests.
const SIMULATED_WINDOW: Duration = Duration::from_secs(15);

/// How long the last sample of a container is kept.
const SAMPLE_LIFETIME: Duration = Duration::from_secs(600);

/// The usage of a container in a window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The end of the window.
    pub(crate) taken_at: Timestamp,
    /// At least 10 seconds.
    pub(crate) window: Duration,
    /// The average CPU usage in the window, in billionths of a CPU.
    pub(crate) nano_cores: u64,
    /// CPU time since the start of the container, in nanoseconds.
    pub(crate) cpu_nanos_total: u64,
    /// In bytes, at the end of the window.
    pub(crate) memory_working_set: u64,
}

impl Sample {
    /// The sum of samples, in the window of the earliest one; `None` without samples.
    pub(crate) fn sum(samples: impl Iterator<Item = Self>) -> Option<Self> {
        samples.reduce(|sum, sample| {
            let earliest = if sample.taken_at < sum.taken_at {
                sample
            } else {
                sum
            };
            Self {
                taken_at: earliest.taken_at,
                window: earliest.window,
                nano_cores: sum.nano_cores.saturating_add(sample.nano_cores),
                cpu_nanos_total: sum.cpu_nanos_total.saturating_add(sample.cpu_nanos_total),
                memory_working_set: sum
                    .memory_working_set
                    .saturating_add(sample.memory_working_set),
            }
        })
    }
}

/// A running container and its usage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerUsage<'a> {
    pub(crate) container: &'a Container,
    pub(crate) started_at: Timestamp,
    /// `None` if it cannot be measured yet.
    pub(crate) sample: Option<Sample>,
}

/// The last samples of measured containers, by uid of the pod and name of the container.
#[derive(Debug, Default)]
pub(super) struct Samples {
    last: Mutex<HashMap<(String, String), Sample>>,
}

impl Samples {
    /// Adds a measurement of a container.
    fn add(
        &self,
        uid: &str,
        container: &str,
        usage: Usage,
        started_at: Timestamp,
        now: Timestamp,
    ) -> Option<Sample> {
        let mut last = self.lock();
        last.retain(|_, sample| after(sample.taken_at, SAMPLE_LIFETIME) > now);
        let key = (uid.to_owned(), container.to_owned());
        // A sample from before the start is that of an earlier instance.
        let previous = last.get(&key).filter(|it| it.taken_at >= started_at);
        if let Some(previous) = previous
            && after(previous.taken_at, WINDOW_MIN) > now
        {
            return Some(*previous);
        }
        let sample = match previous {
            Some(previous) => rate(usage, previous.cpu_nanos_total, previous.taken_at, now),
            None => rate(usage, 0, started_at, now),
        }?;
        last.insert(key, sample);
        Some(sample)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Sample>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sample of a window that began with this CPU time; `None` if the window is too short.
fn rate(
    usage: Usage,
    cpu_nanos_before: u64,
    window_start: Timestamp,
    now: Timestamp,
) -> Option<Sample> {
    let window = remaining(window_start, now);
    let used = usage.cpu_nanos_total.saturating_sub(cpu_nanos_before);
    let nano_cores = u128::from(used) * 1_000_000_000 / window.as_nanos().max(1);
    (window >= WINDOW_MIN).then(|| Sample {
        taken_at: now,
        window,
        nano_cores: u64::try_from(nano_cores).unwrap_or(u64::MAX),
        cpu_nanos_total: usage.cpu_nanos_total,
        memory_working_set: usage.memory_working_set,
    })
}

/// The sample of a container whose usage is simulated. The usage is constant, so its window may
/// begin before the container.
fn simulated(usage: SimulatedUsage, started_at: Timestamp, now: Timestamp) -> Sample {
    let age = remaining(started_at, now);
    let total = u128::from(usage.nano_cores) * age.as_nanos() / 1_000_000_000;
    Sample {
        taken_at: now,
        window: SIMULATED_WINDOW,
        nano_cores: usage.nano_cores,
        cpu_nanos_total: u64::try_from(total).unwrap_or(u64::MAX),
        memory_working_set: usage.memory,
    }
}

impl KubeletServer {
    /// The sample of a node without pods.
    pub(crate) fn idle_sample(&self) -> Sample {
        Sample {
            taken_at: self.clock.now(),
            window: SIMULATED_WINDOW,
            nano_cores: 0,
            cpu_nanos_total: 0,
            memory_working_set: 0,
        }
    }

    /// The running containers of a pod: containers and sidecars.
    pub(crate) async fn container_usage<'a>(&self, pod: &'a Pod) -> Vec<ContainerUsage<'a>> {
        let spec = pod.spec.as_ref();
        let init_containers = spec.and_then(|spec| spec.init_containers.as_ref());
        let containers = spec.into_iter().flat_map(|spec| &spec.containers);
        let containers = containers.chain(init_containers.into_iter().flatten());
        let reference = pod_ref(pod);
        let now = self.clock.now();
        let mut usage = Vec::new();
        for container in containers {
            let Some(started_at) = running_since(pod, &container.name) else {
                continue;
            };
            let measured = self.streams.usage(&reference, &container.name).await;
            let sample = match measured {
                Some(usage) => {
                    let uid = &reference.uid;
                    let name = &container.name;
                    self.samples.add(uid, name, usage, started_at, now)
                }
                None => {
                    let usage = SimulatedUsage::of(pod, container);
                    Some(simulated(usage, started_at, now))
                }
            };
            usage.push(ContainerUsage {
                container,
                started_at,
                sample,
            });
        }
        usage
    }
}

/// When the running instance of a container started.
fn running_since(pod: &Pod, container: &str) -> Option<Timestamp> {
    let state = container_status(pod, container)?.state.as_ref()?;
    let started_at = state.running.as_ref()?.started_at.as_ref()?;
    Some(started_at.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn rate_is_that_between_samples_ten_seconds_apart() {
        let samples = Samples::default();
        let second = 1_000_000_000;
        let started_at = at(100);
        for (time, total, expected) in [
            (105, 5 * second, None),
            // Since the start of the container.
            (110, 5 * second, Some((110, 10, second / 2))),
            // The last sample is younger than 10 seconds.
            (115, 20 * second, Some((110, 10, second / 2))),
            (120, 25 * second, Some((120, 10, 2 * second))),
            (150, 25 * second, Some((150, 30, 0))),
        ] {
            let usage = Usage {
                cpu_nanos_total: total,
                memory_working_set: 7,
            };
            let sample = samples.add("u", "app", usage, started_at, at(time));
            let expected = expected.map(|(taken_at, window, nano_cores)| {
                (at(taken_at), Duration::from_secs(window), nano_cores)
            });
            let actual = sample.map(|it| (it.taken_at, it.window, it.nano_cores));
            assert_eq!(actual, expected, "at {time}");
        }
        // A restarted container begins with no CPU time.
        let usage = Usage {
            cpu_nanos_total: 10 * second,
            memory_working_set: 7,
        };
        let sample = samples.add("u", "app", usage, at(160), at(170)).unwrap();
        assert_eq!(sample.nano_cores, second);
    }

    #[test]
    fn samples_are_dropped_after_ten_minutes() {
        let samples = Samples::default();
        let usage = Usage {
            cpu_nanos_total: 1,
            memory_working_set: 1,
        };
        samples.add("old", "app", usage, at(0), at(100));
        samples.add("new", "app", usage, at(0), at(701));
        let names: Vec<String> = samples.lock().keys().map(|(uid, _)| uid.clone()).collect();
        assert_eq!(names, ["new"]);
    }

    #[test]
    fn simulated_usage_is_constant() {
        let usage = SimulatedUsage {
            nano_cores: 250_000_000,
            memory: 64,
        };
        let expected = Sample {
            taken_at: at(120),
            window: Duration::from_secs(15),
            nano_cores: 250_000_000,
            cpu_nanos_total: 5_000_000_000,
            memory_working_set: 64,
        };
        assert_eq!(simulated(usage, at(100), at(120)), expected);
    }
}
