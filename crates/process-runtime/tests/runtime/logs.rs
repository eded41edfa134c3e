//! Logs: followers over rotations, and the options of `kubectl logs`.

use std::path::Path;
use std::sync::Arc;

use bellerophon_process_runtime::logs::{
    ContainerLog, LogReader, ReadOptions, RotationOptions, Stream,
};
use bellerophon_process_runtime::{Clock, Runtime};
use jiff::Timestamp;

use crate::support::*;

async fn read_all(path: &Path, options: ReadOptions) -> String {
    let mut reader = LogReader::open(path, options).unwrap();
    let mut text = String::new();
    while let Some(chunk) = within(reader.next_chunk()).await.unwrap() {
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    text
}

/// Lines of the second 0, 1, 2, ….
fn clock() -> Clock {
    let second = std::sync::atomic::AtomicI64::new(0);
    Arc::new(move || {
        let second = second.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Timestamp::from_second(second).unwrap()
    })
}

#[tokio::test]
async fn options_select_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let log = ContainerLog::open(&path, RotationOptions::default(), clock()).unwrap();
    for number in 0..8 {
        log.write(Stream::Stdout, format!("line {number}\n").as_bytes());
    }
    log.write(Stream::Stderr, b"error\n");
    let tail = |lines| ReadOptions {
        tail_lines: Some(lines),
        ..ReadOptions::default()
    };
    let cases = [
        (tail(0), ""),
        (tail(2), "line 7\nerror\n"),
        (
            ReadOptions {
                since: Some(Timestamp::from_second(7).unwrap()),
                ..ReadOptions::default()
            },
            "line 7\nerror\n",
        ),
        (
            ReadOptions {
                limit_bytes: Some(10),
                ..ReadOptions::default()
            },
            "line 0\nlin",
        ),
        (
            ReadOptions {
                timestamps: true,
                ..tail(1)
            },
            "1970-01-01T00:00:08.000000000Z error\n",
        ),
        (
            ReadOptions {
                stream: Some(Stream::Stderr),
                ..ReadOptions::default()
            },
            "error\n",
        ),
    ];
    for (options, expected) in cases {
        let shown = format!("{options:?}");
        assert_eq!(read_all(&path, options).await, expected, "{shown}");
    }
    for lines in [-1, 9, 100] {
        let text = read_all(&path, tail(lines)).await;
        assert_eq!(text.lines().count(), 9, "{lines}");
    }
    assert_eq!(read_all(&path, tail(5)).await.lines().count(), 5);
}

#[tokio::test]
async fn partial_lines_are_joined() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let log = ContainerLog::open(&path, RotationOptions::default(), clock()).unwrap();
    let long = "x".repeat(40_000);
    log.write(Stream::Stdout, format!("{long}\nend").as_bytes());
    log.close();
    let options = ReadOptions {
        timestamps: true,
        ..ReadOptions::default()
    };
    let text = read_all(&path, options).await;
    let time = "1970-01-01T00:00:00.000000000Z";
    assert_eq!(
        text,
        format!("{time} {long}\n1970-01-01T00:00:01.000000000Z end")
    );
}

/// Follows a log while numbered lines are written over many rotations; returns the next number.
async fn follow(path: &Path, log: Arc<ContainerLog>, lines: u64, per_write: u64) -> u64 {
    let options = ReadOptions {
        follow: Some(log.updates()),
        ..ReadOptions::default()
    };
    let mut reader = LogReader::open(path, options).unwrap();
    let writer = tokio::spawn(async move {
        for start in (0..lines).step_by(per_write as usize) {
            let text: String = (start..start + per_write)
                .map(|number| format!("line {number}\n"))
                .collect();
            log.write(Stream::Stdout, text.as_bytes());
            // A container waits for its pipe.
            tokio::task::yield_now().await;
        }
        log.close();
    });
    let mut next = 0;
    let mut rest = String::new();
    while let Some(chunk) = within(reader.next_chunk()).await.unwrap() {
        rest.push_str(std::str::from_utf8(&chunk).unwrap());
        let end = rest.rfind('\n').map_or(0, |end| end + 1);
        for line in rest[..end].lines() {
            assert_eq!(line, format!("line {next}"));
            next += 1;
        }
        rest.drain(..end);
    }
    writer.await.unwrap();
    next
}

async fn follower_reads(lines: u64, max_size: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let rotation = RotationOptions {
        max_size,
        ..RotationOptions::default()
    };
    let clock = bellerophon_process_runtime::system_clock();
    let log = Arc::new(ContainerLog::open(&path, rotation, clock).unwrap());
    assert_eq!(follow(&path, log, lines, 100).await, lines);
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 5, "it was rotated more often than files are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn follower_loses_no_line_over_rotations() {
    follower_reads(20_000, 200_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a million lines take seconds"]
async fn follower_loses_none_of_a_million_lines() {
    follower_reads(1_000_000, 10 << 20).await;
}

#[tokio::test]
async fn output_of_a_container_is_complete_when_it_has_ended() {
    for tier in tiers().await {
        let dir = tempfile::tempdir().unwrap();
        let mut options = options(dir.path(), tier);
        options.rotation.max_size = 200_000;
        let runtime = Runtime::start(options).await.unwrap();
        let mut node = Node::with_runtime(runtime, dir);
        let pod = node.pod().await;
        let config = container(&pod, &[HELPER, "lines", "20000"]);
        let path = config.log_path.clone();
        let container = pod.sandbox.start_container(config).await.unwrap();
        let options = ReadOptions {
            follow: Some(container.log_updates()),
            ..ReadOptions::default()
        };
        let followed = read_all(&path, options).await;
        assert_eq!(within(container.wait()).await.exit_code, 0);
        let expected: String = (0..20_000)
            .map(|number| format!("line {number}\n"))
            .collect();
        assert!(followed == expected, "{tier:?}: {} bytes", followed.len());
    }
}
