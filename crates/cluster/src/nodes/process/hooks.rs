//! Lifecycle hooks of a container: postStart and preStop.

use std::time::Duration;

use bellerophon_process_runtime::{Container, ExecConfig, Streams};
use k8s_openapi::api::core::v1::{self, HTTPGetAction, LifecycleHandler};
use tokio::io::AsyncReadExt;

use super::http_get::{self, GetError, PodDialer};

/// The user agent of hooks.
const USER_AGENT: &str = "kube-lifecycle/1.36";
/// The maximum length of the output of a command that is kept.
const OUTPUT_MAX: u64 = 10 << 10;

/// What a hook that succeeded has to report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HookOutcome {
    Done,
    /// The server of an HTTPS hook at that authority speaks HTTP.
    HttpFallback(String),
}

/// Runs a hook. Mirrors `handlerRunner.Run`.
pub(super) async fn run(
    handler: &LifecycleHandler,
    spec: &v1::Container,
    container: &Container,
    dialer: PodDialer<'_>,
) -> Result<HookOutcome, String> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let (code, output) = run_command(container, command).await?;
        if code != 0 {
            return Err(format!("command exited with {code}: {output}"));
        }
    } else if let Some(action) = &handler.http_get {
        return run_http_handler(action, spec, dialer).await;
    } else if let Some(action) = &handler.sleep {
        let seconds = u64::try_from(action.seconds).unwrap_or_default();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    } else if handler.tcp_socket.is_some() {
        return Err("tcpSocket is not supported in lifecycle hooks".to_owned());
    }
    Ok(HookOutcome::Done)
}

/// Mirrors `runHTTPHandler`: every response is a success.
async fn run_http_handler(
    action: &HTTPGetAction,
    spec: &v1::Container,
    dialer: PodDialer<'_>,
) -> Result<HookOutcome, String> {
    let url = http_get::url(action, spec, dialer.sandbox.ip())?;
    match http_get::get(dialer, &url, action, USER_AGENT).await {
        Ok(_) => Ok(HookOutcome::Done),
        Err(GetError::NotTls(_)) => {
            let retried = http_get::get_without_tls(dialer, &url, action, USER_AGENT).await;
            retried.map_err(GetError::into_message)?;
            let authority = url.authority().map(ToString::to_string);
            Ok(HookOutcome::HttpFallback(authority.unwrap_or_default()))
        }
        Err(error) => Err(error.into_message()),
    }
}

/// Runs a command in a container; returns its exit code and output. The error is why it could not
/// be started.
pub(super) async fn run_command(
    container: &Container,
    argv: Vec<String>,
) -> Result<(i32, String), String> {
    let config = ExecConfig {
        argv,
        streams: Streams::default(),
    };
    let process = container.exec(config).await;
    let mut process = process.map_err(|error| error.to_string())?;
    let stdout = process.stdout.take();
    let stderr = process.stderr.take();
    let read = |stream: Option<bellerophon_process_runtime::Output>| async {
        let mut kept = Vec::new();
        if let Some(stream) = stream {
            let mut limited = stream.take(OUTPUT_MAX);
            // What was read until an error is the output.
            let _ = limited.read_to_end(&mut kept).await;
            // The command must be able to write the rest.
            let _ = tokio::io::copy(limited.get_mut(), &mut tokio::io::sink()).await;
        }
        kept
    };
    let (mut output, errors, code) = tokio::join!(read(stdout), read(stderr), process.wait());
    output.extend(errors);
    Ok((code, String::from_utf8_lossy(&output).into_owned()))
}
