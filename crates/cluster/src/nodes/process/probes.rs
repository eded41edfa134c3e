//! Probes of a container: startup, readiness and liveness.
//!
//! In: the probes of the container's spec. Out: changes of its health.
//! Guarantees: readiness and liveness are probed after startup has succeeded; a result counts after
//! its threshold. Mirrors the kubelet's `prober`.

use std::collections::BTreeMap;
use std::time::Duration;

use bellerophon_process_runtime::Container;
use bellerophon_process_runtime::expansion::expand;
use k8s_openapi::api::core::v1::{
    self, ExecAction, GRPCAction, HTTPGetAction, Probe, TCPSocketAction,
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at};

use super::super::time::format_go_duration;
use super::grpc;
use super::hooks::run_command;
use super::http_get::{self, GetError, PodDialer};

/// The user agent of probes.
const USER_AGENT: &str = "kube-probe/1.36";

/// The defaults of the fields of a probe.
const PERIOD_SECONDS: i32 = 10;
const TIMEOUT_SECONDS: i32 = 1;
const SUCCESS_THRESHOLD: i32 = 1;
const FAILURE_THRESHOLD: i32 = 3;

/// A container to probe.
pub(super) struct ProbeTarget<'a> {
    pub(super) spec: &'a v1::Container,
    pub(super) container: &'a Container,
    pub(super) dialer: PodDialer<'a>,
    /// When the container started.
    pub(super) started_at: Instant,
}

/// The outcome of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    /// It counts as success.
    Warning(String),
    /// The output of the probe.
    Failure(String),
    /// The probe could not be run; it does not count.
    Error(String),
}

impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Self::Success,
            Err(output) => Self::Failure(output),
        }
    }
}

fn seconds(value: Option<i32>, default: i32) -> Duration {
    let value = value.filter(|value| *value > 0).unwrap_or(default);
    Duration::from_secs(u64::try_from(value).unwrap_or_default())
}

/// Runs a probe periodically. `changed` receives every result that has reached its threshold and
/// differs from the one before, with the output of a failure; `report` receives all other outcomes.
/// Ends when `changed` returns false.
pub(super) async fn run(
    probe: &Probe,
    target: &ProbeTarget<'_>,
    initially_healthy: Option<bool>,
    mut report: impl FnMut(&Outcome),
    mut changed: impl FnMut(Result<(), &str>) -> bool,
) {
    sleep_until(target.started_at + seconds(probe.initial_delay_seconds, 0)).await;
    let mut ticks = interval(seconds(probe.period_seconds, PERIOD_SECONDS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut counter = Counter {
        healthy: initially_healthy,
        success_threshold: probe.success_threshold.unwrap_or(SUCCESS_THRESHOLD),
        failure_threshold: probe.failure_threshold.unwrap_or(FAILURE_THRESHOLD),
        last: None,
        count: 0,
    };
    loop {
        ticks.tick().await;
        let outcome = probe_once(probe, target).await;
        let result = match &outcome {
            Outcome::Error(_) => {
                report(&outcome);
                continue;
            }
            Outcome::Failure(output) => Err(output.as_str()),
            Outcome::Success => Ok(()),
            Outcome::Warning(_) => {
                report(&outcome);
                Ok(())
            }
        };
        if counter.add(result.is_ok()) {
            if !changed(result) {
                return;
            }
        } else if result.is_err() {
            report(&outcome);
        }
    }
}

/// Counts equal results.
struct Counter {
    /// The result that counts.
    healthy: Option<bool>,
    success_threshold: i32,
    failure_threshold: i32,
    last: Option<bool>,
    count: i32,
}

impl Counter {
    /// Adds a result; returns whether the result that counts has changed.
    fn add(&mut self, success: bool) -> bool {
        if self.last == Some(success) {
            self.count = self.count.saturating_add(1);
        } else {
            self.last = Some(success);
            self.count = 1;
        }
        let threshold = if success {
            self.success_threshold
        } else {
            self.failure_threshold
        };
        if self.count < threshold || self.healthy == Some(success) {
            return false;
        }
        self.healthy = Some(success);
        true
    }
}

async fn probe_once(probe: &Probe, target: &ProbeTarget<'_>) -> Outcome {
    let limit = seconds(probe.timeout_seconds, TIMEOUT_SECONDS);
    if let Some(action) = &probe.exec {
        target.exec(action, limit).await
    } else if let Some(action) = &probe.http_get {
        target.http_get(action, limit).await
    } else if let Some(action) = &probe.tcp_socket {
        target.tcp_socket(action, limit).await
    } else if let Some(action) = &probe.grpc {
        target.grpc(action, limit).await
    } else {
        Outcome::Error("missing probe handler".to_owned())
    }
}

impl ProbeTarget<'_> {
    /// Mirrors `ExpandContainerCommandOnlyStatic`: the command sees variables with a literal value.
    fn expand_command(&self, action: &ExecAction) -> Vec<String> {
        let env = self.spec.env.iter().flatten();
        let env: BTreeMap<&str, &str> = env
            .filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)))
            .collect();
        let command = action.command.iter().flatten();
        command
            .map(|argument| expand(argument, |name| env.get(name)))
            .collect()
    }

    async fn exec(&self, action: &ExecAction, limit: Duration) -> Outcome {
        let command = self.expand_command(action);
        let text = command.join(" ");
        match timeout(limit, run_command(self.container, command)).await {
            Ok(Ok((0, _))) => Outcome::Success,
            Ok(Ok((_, output))) => Outcome::Failure(output),
            Ok(Err(error)) => Outcome::Error(error),
            Err(_) => {
                let limit = format_go_duration(limit);
                Outcome::Failure(format!(
                    "command timed out: {text:?} timed out after {limit}"
                ))
            }
        }
    }

    /// Mirrors `DoHTTPProbe`.
    async fn http_get(&self, action: &HTTPGetAction, limit: Duration) -> Outcome {
        let url = match http_get::url(action, self.spec, self.dialer.sandbox.ip()) {
            Ok(url) => url,
            Err(error) => return Outcome::Error(error),
        };
        let get = http_get::get(self.dialer, &url, action, USER_AGENT);
        let response = match timeout(limit, get).await {
            Ok(Ok(response)) => response,
            Ok(Err(GetError::Invalid(error))) => return Outcome::Error(error),
            Ok(Err(error)) => return Outcome::Failure(error.into_message()),
            Err(_) => {
                let output = format!(
                    "Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while \
                     awaiting headers)"
                );
                return Outcome::Failure(output);
            }
        };
        match response.status.as_u16() {
            200..300 => Outcome::Success,
            300..400 => Outcome::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                response.body
            )),
            code => Outcome::Failure(format!("HTTP probe failed with statuscode: {code}")),
        }
    }

    async fn tcp_socket(&self, action: &TCPSocketAction, limit: Duration) -> Outcome {
        let port = match http_get::port(self.spec, &action.port) {
            Ok(port) => port,
            Err(error) => return Outcome::Error(error),
        };
        let host = action.host.as_deref().filter(|host| !host.is_empty());
        let host = host.map_or_else(|| self.dialer.sandbox.ip().to_string(), str::to_owned);
        match timeout(limit, self.dialer.dial(&host, port)).await {
            Ok(connected) => connected.map(drop).into(),
            Err(_) => Outcome::Failure(format!("dial tcp {host}:{port}: i/o timeout")),
        }
    }

    /// Mirrors `grpcProber.Probe`.
    async fn grpc(&self, action: &GRPCAction, limit: Duration) -> Outcome {
        let Ok(port) = u16::try_from(action.port) else {
            return Outcome::Error(format!("invalid port number: {}", action.port));
        };
        let host = self.dialer.sandbox.ip().to_string();
        let authority = std::net::SocketAddr::new(self.dialer.sandbox.ip(), port).to_string();
        let service = action.service.as_deref().unwrap_or_default();
        let deadline = Instant::now() + limit;
        let connection = match timeout_at(deadline, self.dialer.dial(&host, port)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                let output = format!("error: failed to connect service at {authority:?}: {error}");
                return Outcome::Failure(output);
            }
            Err(_) => {
                let limit = format_go_duration(limit);
                return Outcome::Failure(format!(
                    "timeout: failed to connect service {authority:?} within {limit}: \
                     context deadline exceeded"
                ));
            }
        };
        let check = grpc::check(connection, &authority, service, USER_AGENT);
        match timeout_at(deadline, check).await {
            Ok(result) => result.map_err(|error| error.output()).into(),
            Err(_) => Outcome::Failure(format!(
                "timeout: health rpc did not complete within {}",
                format_go_duration(limit)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_count_after_their_thresholds() {
        let mut counter = Counter {
            healthy: Some(false),
            success_threshold: 2,
            failure_threshold: 3,
            last: None,
            count: 0,
        };
        let results = [true, true, true, false, false, true, false, false, false];
        let changes: Vec<bool> = results.into_iter().map(|it| counter.add(it)).collect();
        let expected = [false, true, false, false, false, false, false, false, true];
        assert_eq!(changes, expected);
    }
}
