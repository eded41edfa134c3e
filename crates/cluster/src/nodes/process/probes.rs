//! Probes of a container: startup, readiness and liveness.
//!
//! In: the probes of the container's spec. Out: changes of its health.
//! Guarantees: readiness and liveness are probed after startup has succeeded; a result counts after
//! its threshold. Mirrors the kubelet's `prober`.

use std::net::SocketAddr;
use std::time::Duration;

use bellerophon_process_runtime::{Container, Sandbox};
use k8s_openapi::api::core::v1::{self, Probe};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::hooks::run_command;
use super::http_get;

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
    pub(super) sandbox: &'a Sandbox,
}

/// The result of a probe, and its output if it failed.
type ProbeResult = Result<(), String>;

fn seconds(value: Option<i32>, default: i32) -> Duration {
    let value = value.filter(|value| *value > 0).unwrap_or(default);
    Duration::from_secs(u64::try_from(value).unwrap_or_default())
}

/// Runs a probe periodically. `changed` receives every result that has reached its threshold and
/// differs from the one before, `failed` all other failures. Ends when `changed` returns false.
pub(super) async fn run(
    probe: &Probe,
    target: &ProbeTarget<'_>,
    initially_healthy: Option<bool>,
    mut failed: impl FnMut(&str),
    mut changed: impl FnMut(&ProbeResult) -> bool,
) {
    sleep(seconds(probe.initial_delay_seconds, 0)).await;
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
        let limit = seconds(probe.timeout_seconds, TIMEOUT_SECONDS);
        let result = match timeout(limit, probe_once(probe, target)).await {
            Ok(result) => result,
            Err(_) => Err(format!("command timed out after {}s", limit.as_secs())),
        };
        if counter.add(result.is_ok()) {
            if !changed(&result) {
                return;
            }
        } else if let Err(output) = &result {
            failed(output);
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

async fn probe_once(probe: &Probe, target: &ProbeTarget<'_>) -> ProbeResult {
    if let Some(exec) = &probe.exec {
        let command = exec.command.clone().unwrap_or_default();
        let (code, output) = run_command(target.container, command).await?;
        return if code == 0 { Ok(()) } else { Err(output) };
    }
    if let Some(action) = &probe.http_get {
        let port = http_get::port(target.spec, &action.port)?;
        let host = action.host.as_deref().filter(|host| !host.is_empty());
        let address = match host {
            Some(host) => SocketAddr::new(host.parse().map_err(|_| invalid_host(host))?, port),
            None => SocketAddr::new(target.sandbox.ip(), port),
        };
        let connection = target.sandbox.dial(address, None).await;
        let path = action.path.as_deref().unwrap_or("/");
        let describe = |error: String| format!("Get \"http://{address}{path}\": {error}");
        let connection = connection.map_err(|error| describe(error.to_string()))?;
        let authority = address.to_string();
        let response = http_get::get(connection, &authority, action, USER_AGENT).await;
        let status = response.map_err(describe)?.status;
        // Mirrors DoHTTPProbe.
        if (200..400).contains(&status.as_u16()) {
            return Ok(());
        }
        let code = status.as_u16();
        return Err(format!("HTTP probe failed with statuscode: {code}"));
    }
    if let Some(action) = &probe.tcp_socket {
        let port = http_get::port(target.spec, &action.port)?;
        let address = SocketAddr::new(target.sandbox.ip(), port);
        let connected = target.sandbox.dial(address, None).await;
        return connected
            .map(drop)
            .map_err(|error| format!("dial tcp {address}: {error}"));
    }
    if probe.grpc.is_some() {
        return Err("nodes with local processes do not support grpc probes".to_owned());
    }
    Err("missing probe handler".to_owned())
}

fn invalid_host(host: &str) -> String {
    format!("host {host:?} is not an IP address; host names are not supported")
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
