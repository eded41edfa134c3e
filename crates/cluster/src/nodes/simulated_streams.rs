//! Container streams of simulated pods: logs from annotations, and nothing else.
//!
//! In: the annotation `sim.bellerophon.io/log` of a pod. Out: its lines, as if the container had
//! written them when it started.
//! Guarantees: a followed log ends when the container does.

use std::sync::{Arc, OnceLock};

use bellerophon::ObjectKey;
use bellerophon::client::ReconcileClient;
use bellerophon::clock::Clock;
use bellerophon::informer::SharedInformer;
use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use futures_util::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Notify;

use super::container_simulation::log_annotation;
use super::kubelet::server::{
    BoxedIo, ContainerStreams, LogOptions, LogStream, PodRef, Process, StreamError, StreamOptions,
    container_status,
};

/// Why there are no commands and connections.
const NO_PROCESSES: &str = "pods on simulated nodes run no processes; \
     start the cluster with `bellerophon up --runtime process`";

/// Why a pod without the annotation has no log.
const NO_LOG: &str = "pods on simulated nodes run no processes; \
     set the annotation sim.bellerophon.io/log of the pod to the text of its log, \
     or start the cluster with `bellerophon up --runtime process`";

/// The streams of all simulated pods.
pub(crate) struct SimulatedStreams {
    /// Reads pods as the user of the kubelets.
    client: ReconcileClient,
    clock: Clock,
    pods: SharedInformer<Pod>,
    /// Notified of every change of a pod, from the first log that is followed.
    changed: OnceLock<Arc<Notify>>,
}

impl SimulatedStreams {
    pub(crate) fn new(client: ReconcileClient, clock: Clock, pods: SharedInformer<Pod>) -> Self {
        Self {
            client,
            clock,
            pods,
            changed: OnceLock::new(),
        }
    }

    async fn read_log(
        &self,
        pod: PodRef,
        container: String,
        options: LogOptions,
    ) -> Result<LogStream, StreamError> {
        let key = ObjectKey::namespaced(&pod.namespace, &pod.name);
        // From the API: the informer may not have the annotation that the client has just set.
        let current = self.client.get::<Pod>(&key).await;
        let current = current.map_err(|error| StreamError::Internal(error.to_string()))?;
        let name = &pod.name;
        let current = current.ok_or_else(|| {
            StreamError::NotFound(format!("pod {name:?} cannot be found - no logs available"))
        })?;
        let text = log_annotation(&current, &container)
            .ok_or_else(|| StreamError::Unsupported(NO_LOG.to_owned()))?;
        let written = Log {
            text,
            written_at: started_at(&current, &container, options.previous),
        };
        let lines = written.select(&options, self.clock.now());
        let limit_reached = options
            .limit_bytes
            .is_some_and(|limit| usize::try_from(limit).is_ok_and(|limit| lines.len() >= limit));
        let lines = stream::iter((!lines.is_empty()).then_some(Ok(Bytes::from(lines))));
        if !options.follow || options.previous || limit_reached {
            return Ok(lines.boxed());
        }
        let Some(instance) = Instance::of(&current, &container) else {
            return Ok(lines.boxed());
        };
        let ended = self.ended(key, pod.uid, container, instance);
        let end = ended.into_stream().filter_map(|()| ready(None));
        Ok(lines.chain(end).boxed())
    }

    /// Waits until an instance of a container has ended.
    fn ended(
        &self,
        key: ObjectKey,
        uid: String,
        container: String,
        instance: Instance,
    ) -> impl Future<Output = ()> + Send + 'static {
        let changed = self.changed.get_or_init(|| {
            let changed = Arc::new(Notify::new());
            let followers = changed.clone();
            self.pods
                .add_key_handler(move |_| followers.notify_waiters());
            changed
        });
        let changed = changed.clone();
        let pods = self.pods.lister();
        async move {
            loop {
                // Before the pod is read, so that no change is missed.
                let change = changed.notified();
                let pod = pods.get(&key);
                let pod = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&uid));
                if pod.is_none_or(|pod| instance.has_ended(&pod, &container)) {
                    return;
                }
                change.await;
            }
        }
    }
}

impl ContainerStreams for SimulatedStreams {
    fn logs(
        &self,
        pod: &PodRef,
        container: &str,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<LogStream, StreamError>> {
        let log = self.read_log(pod.clone(), container.to_owned(), options);
        log.boxed()
    }

    fn exec(
        &self,
        _: &PodRef,
        _: &str,
        _: Vec<String>,
        _: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>> {
        ready(Err(no_processes())).boxed()
    }

    fn attach(
        &self,
        _: &PodRef,
        _: &str,
        _: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>> {
        ready(Err(no_processes())).boxed()
    }

    fn port_forward(&self, _: &PodRef) -> Result<(), StreamError> {
        Err(no_processes())
    }

    fn dial(&self, _: &PodRef, _: u16) -> BoxFuture<'_, Result<BoxedIo, StreamError>> {
        ready(Err(no_processes())).boxed()
    }
}

fn no_processes() -> StreamError {
    StreamError::Unsupported(NO_PROCESSES.to_owned())
}

/// When the instance of a container started whose log is read; `None` if it is not known.
fn started_at(pod: &Pod, container: &str, previous: bool) -> Option<Timestamp> {
    let status = container_status(pod, container)?;
    let current = status.state.as_ref().filter(|_| !previous);
    let states = [current, status.last_state.as_ref()];
    let mut times = states.into_iter().flatten().filter_map(|state| {
        let running = state.running.as_ref().map(|state| &state.started_at);
        let terminated = state.terminated.as_ref().map(|state| &state.started_at);
        running.or(terminated)?.as_ref()
    });
    times.next().map(|time| time.0)
}

/// An instance of a container; every restart is a new one.
struct Instance {
    id: String,
    restart_count: i32,
}

impl Instance {
    /// The last instance that has started.
    fn of(pod: &Pod, container: &str) -> Option<Self> {
        let status = container_status(pod, container)?;
        Some(Self {
            id: status.container_id.clone()?,
            restart_count: status.restart_count,
        })
    }

    /// Whether it has ended, by a status that may be older than the instance. A restart without
    /// back-off shows no state between those of the two instances.
    fn has_ended(&self, pod: &Pod, container: &str) -> bool {
        let Some(status) = container_status(pod, container) else {
            return false;
        };
        let states = [&status.state, &status.last_state];
        let mut terminated = states
            .into_iter()
            .flatten()
            .filter_map(|state| state.terminated.as_ref());
        status.restart_count > self.restart_count
            || terminated.any(|terminated| terminated.container_id.as_ref() == Some(&self.id))
    }
}

/// What a simulated container has written.
struct Log<'a> {
    text: &'a str,
    /// The time of all lines.
    written_at: Option<Timestamp>,
}

impl Log<'_> {
    /// The part that the options select, with a line feed after every line.
    fn select(&self, options: &LogOptions, now: Timestamp) -> Vec<u8> {
        let is_older = |since| self.written_at.is_some_and(|written_at| written_at < since);
        if options.since(now).is_some_and(is_older) {
            return Vec::new();
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let tail = options
            .tail_lines
            .and_then(|lines| usize::try_from(lines).ok())
            .unwrap_or(lines.len());
        let mut selected = String::new();
        for line in &lines[lines.len().saturating_sub(tail)..] {
            if options.timestamps {
                let written_at = self.written_at.unwrap_or(now);
                // Nine digits, as in the CRI's log files.
                selected.push_str(&format!("{written_at:.9} "));
            }
            selected.push_str(line);
            selected.push('\n');
        }
        let mut bytes = selected.into_bytes();
        if let Some(limit) = options.limit_bytes {
            bytes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn older_status_does_not_end_an_instance() {
        let instance = Instance {
            id: "sim://1".to_owned(),
            restart_count: 1,
        };
        let terminated = |id: &str| json!({"terminated": {"containerID": id, "exitCode": 0}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let cases: [(&str, i32, Value, Value, bool); 6] = [
            ("running", 1, json!({"running": {}}), json!({}), false),
            ("not started", 1, json!({"waiting": {}}), json!({}), false),
            ("older instance", 0, terminated("sim://0"), json!({}), false),
            ("terminated", 1, terminated("sim://1"), json!({}), true),
            ("back-off", 1, waiting, terminated("sim://1"), true),
            ("restarted", 2, json!({"running": {}}), json!({}), true),
        ];
        for (case, restart_count, state, last_state, expected) in cases {
            let status = json!({
                "name": "app", "restartCount": restart_count,
                "state": state, "lastState": last_state,
            });
            let pod = json!({"status": {"containerStatuses": [status]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(instance.has_ended(&pod, "app"), expected, "{case}");
        }
    }

    fn check(options: LogOptions, expected: &str) {
        let log = Log {
            text: "one\n  two\nthree\n",
            written_at: Some("2026-01-01T12:00:00Z".parse().unwrap()),
        };
        let now = "2026-01-01T12:01:00Z".parse().unwrap();
        let selected = String::from_utf8(log.select(&options, now)).unwrap();
        assert_eq!(selected, expected, "{options:?}");
    }

    #[test]
    fn options_select_lines() {
        let defaults = LogOptions::default();
        check(defaults.clone(), "one\n  two\nthree\n");
        let tail = |lines| LogOptions {
            tail_lines: Some(lines),
            ..LogOptions::default()
        };
        check(tail(0), "");
        check(tail(2), "  two\nthree\n");
        check(tail(5), "one\n  two\nthree\n");
        let limit = LogOptions {
            limit_bytes: Some(6),
            ..defaults.clone()
        };
        check(limit, "one\n  ");
        let timestamps = LogOptions {
            timestamps: true,
            tail_lines: Some(1),
            ..defaults.clone()
        };
        check(timestamps, "2026-01-01T12:00:00.000000000Z three\n");
        for (seconds, expected) in [(59, ""), (60, "one\n  two\nthree\n")] {
            let since = LogOptions {
                since_seconds: Some(seconds),
                ..defaults.clone()
            };
            check(since, expected);
        }
    }
}
