//! Lifecycle hooks of a container: postStart and preStop.

use std::net::SocketAddr;
use std::time::Duration;

use bellerophon_process_runtime::{Container, ExecConfig, Sandbox, Streams};
use k8s_openapi::api::core::v1::{self, LifecycleHandler};
use tokio::io::AsyncReadExt;

use super::http_get;

/// The user agent of hooks.
const USER_AGENT: &str = "kube-lifecycle/1.36";
/// The maximum length of the output of a command that is kept.
const OUTPUT_MAX: u64 = 10 << 10;

/// Runs a hook. The error is the message of its event. Mirrors `handlerRunner.Run`.
pub(super) async fn run(
    handler: &LifecycleHandler,
    spec: &v1::Container,
    container: &Container,
    sandbox: &Sandbox,
) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let (code, output) = run_command(container, command).await?;
        if code != 0 {
            return Err(format!("command exited with {code}: {output}"));
        }
    } else if let Some(action) = &handler.http_get {
        let port = http_get::port(spec, &action.port)?;
        let address = SocketAddr::new(sandbox.ip(), port);
        let connection = sandbox.dial(address, None).await;
        let connection = connection.map_err(|error| error.to_string())?;
        let authority = address.to_string();
        http_get::get(connection, &authority, action, USER_AGENT).await?;
    } else if let Some(action) = &handler.sleep {
        let seconds = u64::try_from(action.seconds).unwrap_or_default();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    } else if handler.tcp_socket.is_some() {
        return Err("tcpSocket is not supported in lifecycle hooks".to_owned());
    }
    Ok(())
}

/// Runs a command in a container; returns its exit code and output.
pub(super) async fn run_command(
    container: &Container,
    argv: Vec<String>,
) -> Result<(i32, String), String> {
    let config = ExecConfig {
        argv,
        streams: Streams::default(),
    };
    let mut process = match container.exec(config).await {
        Ok(process) => process,
        Err(bellerophon_process_runtime::Error::Start(error)) => {
            return Ok((error.shell_exit_code(), error.to_string()));
        }
        Err(error) => return Err(error.to_string()),
    };
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
