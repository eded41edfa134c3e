//! exec, attach, stdin and terminals.

use std::future::poll_fn;
use std::task::Poll;

use bellerophon_process_runtime::logs::Stream;
use bellerophon_process_runtime::{Error, ExecConfig, Streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

fn exec_config(argv: &[&str], streams: Streams) -> ExecConfig {
    ExecConfig {
        argv: argv.iter().map(ToString::to_string).collect(),
        streams,
    }
}

#[tokio::test]
async fn exec_returns_output_and_exit_code() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let mut config = container(&pod, &["sleep 1000; true"]);
        config.env.push(("COLOR".to_owned(), "blue".to_owned()));
        let container = pod.sandbox.start_container(config).await.unwrap();
        let (code, stdout) = exec(&container, &["sh", "-c", "echo $COLOR; exit 7"]).await;
        assert_eq!(stdout, "blue\n", "{tier:?}");
        assert_eq!(code, 7, "{tier:?}");
        let missing = exec_config(&["no-such-program"], Streams::default());
        let error = container.exec(missing).await.err().unwrap();
        let Error::Start(error) = error else {
            panic!("{error}");
        };
        assert_eq!(error.shell_exit_code(), 127);
        container.kill().await;
        within(container.wait()).await;
        let late = exec_config(&["true"], Streams::default());
        assert!(container.exec(late).await.is_err());
    }
}

#[tokio::test]
async fn exec_copies_binary_stdin_unchanged() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let container = pod.start(&["sleep 1000; true"]).await;
        let streams = Streams {
            stdin: true,
            ..Streams::default()
        };
        let mut process = container
            .exec(exec_config(&["cat"], streams))
            .await
            .unwrap();
        let sent: Vec<u8> = (0..1_000_000_u32)
            .map(|number| (number * 7 % 251) as u8)
            .collect();
        let mut stdin = process.stdin.take().unwrap();
        let mut stdout = process.stdout.take().unwrap();
        let mut received = Vec::new();
        let write = async {
            stdin.write_all(&sent).await.unwrap();
            drop(stdin);
        };
        let ((), read) =
            within(async { tokio::join!(write, stdout.read_to_end(&mut received)) }).await;
        read.unwrap();
        assert!(received == sent, "{tier:?}: {} bytes", received.len());
        assert_eq!(within(process.wait()).await, 0);
    }
}

#[tokio::test]
async fn dropped_exec_is_killed() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let container = pod.start(&["sleep 1000; true"]).await;
        let streams = Streams::default();
        let script = "echo started; sleep 1000; true";
        let mut process = container
            .exec(exec_config(&["sh", "-c", script], streams))
            .await
            .unwrap();
        let mut stdout = process.stdout.take().unwrap();
        let mut text = [0; 8];
        within(stdout.read_exact(&mut text)).await.unwrap();
        drop(process);
        // The sleep of the shell keeps stdout open in tier B, so only the shell is observed.
        let gone = async {
            loop {
                let (_, list) = exec(&container, &["sh", "-c", "cat /proc/[0-9]*/cmdline"]).await;
                if !list.contains("echo started; sleep 1000; true") {
                    return;
                }
            }
        };
        within(gone).await;
    }
}

#[tokio::test]
async fn terminal_has_a_size_and_no_separate_stderr() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let container = pod.start(&["sleep 1000; true"]).await;
        let streams = Streams {
            stdin: true,
            tty: true,
            ..Streams::default()
        };
        let script = "trap 'stty size; exit 9' WINCH; tty; echo error >&2; read line; echo $line;
            while :; do sleep 0.01; done";
        let mut process = container
            .exec(exec_config(&["sh", "-c", script], streams))
            .await
            .unwrap();
        assert!(process.stderr.is_none());
        let mut stdin = process.stdin.take().unwrap();
        let mut stdout = process.stdout.take().unwrap();
        let mut output = String::new();
        let mut until = async |text: &str| {
            while !output.contains(text) {
                let mut buffer = [0; 256];
                let len = within(stdout.read(&mut buffer)).await.unwrap();
                assert!(len > 0, "{tier:?}: {text:?} is not in {output:?}");
                output.push_str(&String::from_utf8_lossy(&buffer[..len]));
            }
        };
        until("error\r\n").await;
        stdin.write_all(b"typed\n").await.unwrap();
        until("typed\r\ntyped\r\n").await;
        process.terminal.as_ref().unwrap().resize(120, 40).unwrap();
        until("40 120\r\n").await;
        assert!(output.starts_with("/dev/pts/"), "{tier:?}: {output}");
        assert_eq!(within(process.wait()).await, 9);
        let mut rest = Vec::new();
        within(stdout.read_to_end(&mut rest)).await.unwrap();
    }
}

#[tokio::test]
async fn attached_clients_share_streams() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let script = "while read line; do echo out $line; echo err $line >&2; done; echo end";
        let mut config = container(&pod, &[script]);
        config.streams = Streams {
            stdin: true,
            stdin_once: true,
            ..Streams::default()
        };
        let log_path = config.log_path.clone();
        let container = pod.sandbox.start_container(config).await.unwrap();
        let mut first = container.attach();
        let mut second = container.attach();
        first.stdin.as_ref().unwrap().write(b"1\n").await.unwrap();
        second.stdin.as_ref().unwrap().write(b"2\n").await.unwrap();
        second.stdin.as_ref().unwrap().end().await;
        for attachment in [&mut first, &mut second] {
            let mut stdout = Vec::new();
            let mut stderr = Vec::new();
            while let Some(chunk) = within(attachment.output.recv()).await {
                match chunk.stream {
                    Stream::Stdout => stdout.extend_from_slice(&chunk.bytes),
                    Stream::Stderr => stderr.extend_from_slice(&chunk.bytes),
                }
            }
            assert_eq!(
                String::from_utf8_lossy(&stdout),
                "out 1\nout 2\nend\n",
                "{tier:?}"
            );
            assert_eq!(
                String::from_utf8_lossy(&stderr),
                "err 1\nerr 2\n",
                "{tier:?}"
            );
        }
        assert_eq!(within(container.wait()).await.exit_code, 0);
        let mut lines: Vec<_> = output(&log_path).lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(
            lines,
            ["end", "err 1", "err 2", "out 1", "out 2"],
            "{tier:?}"
        );
    }
}

#[tokio::test]
async fn container_without_stdin_reads_its_end() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let (code, output) = pod.run(container(&pod, &["wc -c"])).await;
        assert_eq!(output.trim(), "0", "{tier:?}");
        assert_eq!(code, 0);
    }
}

#[tokio::test]
async fn signals_are_not_ignored_or_blocked() {
    const SIGPIPE: u64 = 1 << 12;
    const SIGCHLD: u64 = 1 << 16;
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let script = "grep -E 'SigIgn|SigBlk' /proc/self/status";
        let (_, output) = pod.run(container(&pod, &[script])).await;
        for line in output.lines() {
            let (_, mask) = line.split_once(":\t").unwrap();
            let mask = u64::from_str_radix(mask, 16).unwrap();
            assert_eq!(mask & (SIGPIPE | SIGCHLD), 0, "{tier:?} {line}");
        }
    }
}

/// A command whose start was cancelled, such as that of a probe with a timeout, ran on.
#[tokio::test]
async fn command_is_killed_if_its_start_is_cancelled() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let container = pod.start(&["sleep 1000; true"]).await;
        let idle = || marked_processes(node.dir.path());
        let (code, _) = exec(&container, &["true"]).await;
        assert_eq!(code, 0, "{tier:?}");
        let before = idle();
        for _ in 0..10 {
            let config = exec_config(&["sleep", "1000"], Streams::default());
            let mut start = Box::pin(container.exec(config));
            // The first poll sends the request.
            let first = poll_fn(|context| Poll::Ready(start.as_mut().poll(context)));
            assert!(first.await.is_pending(), "{tier:?}");
        }
        // Requests are handled in order, so that all commands have been started before this one.
        let (code, _) = exec(&container, &["true"]).await;
        assert_eq!(code, 0, "{tier:?}");
        within(async {
            while idle() > before {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}
