//! Container streams of local processes: logs, exec, attach and port-forward.
//!
//! In: a pod and the name of a container. Out: its log files, and the streams of its processes.
//! Guarantees: a command whose client is gone is killed; the main process of a container is not.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon_process_runtime::logs::{LogReader, ReadOptions, Stream};
use bellerophon_process_runtime::{
    Attachment, Container, Error, ExecConfig, ExecProcess, Output, SharedInput, Streams, Terminal,
    Tier,
};
use bytes::Bytes;
use futures_util::future::{BoxFuture, pending};
use futures_util::{FutureExt, StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy, duplex, sink};

use super::super::kubelet::server::{
    BoxedIo, ContainerStreams, LogOptions, LogStream, PodRef, Process, Resize, StreamError,
    StreamOptions, Usage,
};
use super::ProcessRuntime;
use super::pod::{ContainerRecord, ProcessPod};

/// Bytes that wait in each direction of an attached client.
const BUFFER_BYTES: usize = 64 << 10;

impl ProcessRuntime {
    fn find_pod(&self, pod: &PodRef) -> Result<Arc<ProcessPod>, StreamError> {
        let key = ObjectKey::namespaced(&pod.namespace, &pod.name);
        self.0
            .pod(&key)
            .filter(|known| known.uid == pod.uid)
            .ok_or_else(|| StreamError::NotFound("pod does not exist".to_owned()))
    }

    /// The runs of a container that was started.
    fn find_record(
        &self,
        pod: &PodRef,
        container: &str,
    ) -> Result<(Arc<ProcessPod>, ContainerRecord), StreamError> {
        let pod = self.find_pod(pod)?;
        let record = pod.record(container);
        let record = record.ok_or_else(|| not_found(container))?;
        Ok((pod, record))
    }

    fn find_running(&self, pod: &PodRef, container: &str) -> Result<Arc<Container>, StreamError> {
        let (_, record) = self.find_record(pod, container)?;
        record
            .container
            .upgrade()
            .ok_or_else(|| not_found(container))
    }

    fn read_log(
        &self,
        pod: &PodRef,
        container: &str,
        options: &LogOptions,
    ) -> Result<LogStream, StreamError> {
        let (pod, record) = self.find_record(pod, container)?;
        let running = record.container.upgrade();
        // While a container waits for its restart, its last run is the previous one, too.
        let is_before_running = options.previous && running.is_some();
        let attempt = record.attempt - i32::from(is_before_running);
        let follow = running.filter(|_| options.follow && !options.previous);
        let options = ReadOptions {
            follow: follow.map(|container| container.log_updates()),
            tail_lines: options.tail_lines,
            since: options.since(self.0.clock.now()),
            timestamps: options.timestamps,
            limit_bytes: options
                .limit_bytes
                .and_then(|limit| u64::try_from(limit).ok()),
            stream: None,
        };
        let reader = LogReader::open(&pod.log_path(container, attempt), options);
        let reader = reader.map_err(|error| StreamError::Internal(error.to_string()))?;
        let chunks = stream::try_unfold(reader, async |mut reader| {
            let chunk = reader.next_chunk().await?;
            Ok::<_, io::Error>(chunk.map(|chunk| (Bytes::from(chunk), reader)))
        });
        Ok(chunks.boxed())
    }
}

/// Mirrors the error of `GetExec`.
fn not_found(container: &str) -> StreamError {
    StreamError::NotFound(format!("container not found ({container:?})"))
}

/// Worded as by container runtimes.
fn dial_error(uid: &str, address: SocketAddr, error: &Error) -> StreamError {
    let port = address.port();
    let cause = match error {
        // "connection refused", without the number of the error.
        Error::Io(error) => format!("dial tcp4 {address}: connect: {}", error.kind()),
        other => other.to_string(),
    };
    StreamError::Internal(format!(
        "failed to connect to localhost:{port} inside namespace {uid:?}: {cause}"
    ))
}

fn internal(error: &Error) -> StreamError {
    StreamError::Internal(error.to_string())
}

impl ContainerStreams for ProcessRuntime {
    fn logs(
        &self,
        pod: &PodRef,
        container: &str,
        options: LogOptions,
    ) -> BoxFuture<'_, Result<LogStream, StreamError>> {
        std::future::ready(self.read_log(pod, container, &options)).boxed()
    }

    fn exec(
        &self,
        pod: &PodRef,
        container: &str,
        command: Vec<String>,
        streams: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>> {
        let running = self.find_running(pod, container);
        let config = ExecConfig {
            argv: command,
            streams: Streams {
                stdin: streams.stdin,
                stdin_once: streams.stdin,
                tty: streams.tty,
            },
        };
        async move {
            let process = running?.exec(config).await;
            let process = process.map_err(|error| internal(&error))?;
            Ok(command_streams(process, streams))
        }
        .boxed()
    }

    fn attach(
        &self,
        pod: &PodRef,
        container: &str,
        streams: StreamOptions,
    ) -> BoxFuture<'_, Result<Process, StreamError>> {
        let running = self.find_running(pod, container);
        let process = running.map(|running| attached_streams(running.attach(), streams));
        std::future::ready(process).boxed()
    }

    fn usage(&self, pod: &PodRef, container: &str) -> BoxFuture<'_, Option<Usage>> {
        let running = self.find_running(pod, container);
        async move {
            let usage = running.ok()?.usage().await.ok()?;
            Some(Usage {
                cpu_nanos_total: u64::try_from(usage.cpu.as_nanos()).unwrap_or(u64::MAX),
                memory_working_set: usage.memory_bytes,
            })
        }
        .boxed()
    }

    fn dial(&self, pod: &PodRef, port: u16) -> BoxFuture<'_, Result<BoxedIo, StreamError>> {
        let sandbox = self.find_pod(pod).and_then(|pod| {
            let not_running = || StreamError::NotFound("pod is not running".to_owned());
            let sandbox = pod.created_sandbox().ok_or_else(not_running)?;
            Ok((pod.uid.clone(), sandbox))
        });
        let tier = self.0.runtime.tier();
        async move {
            let (uid, sandbox) = sandbox?;
            // A pod without a network namespace shares the localhost of the node.
            let ip = match tier {
                Tier::A => Ipv4Addr::LOCALHOST.into(),
                Tier::B => sandbox.listen_ip(),
            };
            let address = SocketAddr::new(ip, port);
            let stream = sandbox.dial(address, None).await;
            let stream = stream.map_err(|error| dial_error(&uid, address, &error))?;
            Ok(Box::new(stream) as BoxedIo)
        }
        .boxed()
    }
}

fn resize(terminal: Terminal) -> Resize {
    Box::new(move |size| terminal.resize(size.width, size.height))
}

/// The streams of a command.
fn command_streams(mut process: ExecProcess, streams: StreamOptions) -> Process {
    let stdout = process.stdout.take();
    let stderr = process.stderr.take();
    // A command that no one reads must not wait for a reader.
    let mut ignored: Vec<Output> = Vec::new();
    let mut select = |output: Option<Output>, is_selected: bool| match output {
        Some(output) if !is_selected => {
            ignored.push(output);
            None
        }
        output => output,
    };
    let stdout = select(stdout, streams.stdout);
    let stderr = select(stderr, streams.stderr);
    Process {
        stdin: process.stdin.take(),
        stdout,
        stderr,
        resize: process.terminal.clone().map(resize),
        exit: async move {
            let discard = async {
                for mut output in ignored {
                    // An error is an end as well.
                    let _ = copy(&mut output, &mut sink()).await;
                }
            };
            let (code, ()) = tokio::join!(process.wait(), discard);
            Ok(code)
        }
        .boxed(),
    }
}

/// The streams of the main process of a container.
fn attached_streams(attachment: Attachment, streams: StreamOptions) -> Process {
    let Attachment {
        mut output,
        stdin,
        terminal,
    } = attachment;
    let (stdout, mut stdout_writer) = output_pipe(streams.stdout);
    let (stderr, mut stderr_writer) = output_pipe(streams.stderr);
    let stdin = stdin.filter(|_| streams.stdin).map(|input| {
        let (writer, reader) = duplex(BUFFER_BYTES);
        (writer, forward_input(reader, input))
    });
    let (stdin, input) = stdin.unzip();
    let exit = async move {
        let output = async {
            while let Some(chunk) = output.recv().await {
                let writer = match chunk.stream {
                    Stream::Stdout => &mut stdout_writer,
                    Stream::Stderr => &mut stderr_writer,
                };
                if let Some(writer) = writer {
                    writer.write_all(&chunk.bytes).await?;
                }
            }
            Ok(0)
        };
        let input = async {
            if let Some(input) = input {
                input.await;
            }
            pending().await
        };
        tokio::select! {
            ended = output => ended,
            never = input => never,
        }
    };
    Process {
        stdin: stdin.map(|stdin| Box::new(stdin) as _),
        stdout,
        stderr,
        resize: terminal.map(resize),
        exit: exit.boxed(),
    }
}

fn output_pipe(is_selected: bool) -> (Option<Output>, Option<DuplexStream>) {
    if !is_selected {
        return (None, None);
    }
    let (reader, writer) = duplex(BUFFER_BYTES);
    (Some(Box::new(reader)), Some(writer))
}

/// Copies what a client types to the stdin of the container.
async fn forward_input(mut client: DuplexStream, input: SharedInput) {
    let mut buffer = vec![0; BUFFER_BYTES];
    // Neither half of the pipe fails.
    while let Ok(len @ 1..) = client.read(&mut buffer).await {
        // The container may have ended, or closed its stdin.
        if input.write(&buffer[..len]).await.is_err() {
            return;
        }
    }
    input.end().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_connection_is_worded_as_by_container_runtimes() {
        let address = "127.0.0.1:80".parse().unwrap();
        let refused = io::ErrorKind::ConnectionRefused.into();
        let error = dial_error("4c0a", address, &Error::Io(refused));
        assert_eq!(
            error.to_string(),
            "failed to connect to localhost:80 inside namespace \"4c0a\": \
             dial tcp4 127.0.0.1:80: connect: connection refused"
        );
    }
}
