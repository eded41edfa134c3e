//! Volumes at their mount paths, and their atomic updates.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bellerophon_process_runtime::atomic_writer::{AtomicWriter, FileProjection, Payload};
use bellerophon_process_runtime::{Error, Mount, StartErrorKind, Tier};

use crate::support::*;

fn mount(source: &Path, target: &str) -> Mount {
    Mount {
        name: "my-volume".to_owned(),
        source: source.to_owned(),
        target: target.into(),
        sub_path: None,
        read_only: false,
        create_sub_path: false,
    }
}

#[tokio::test]
async fn volumes_are_at_their_mount_paths() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let volume = pod.dir.join("volume");
    fs::create_dir_all(volume.join("sub")).unwrap();
    fs::write(volume.join("file"), "content").unwrap();
    fs::write(volume.join("sub/file"), "below").unwrap();
    let targets = [
        "/no-such-directory",
        "/etc/no-such-directory/a/b",
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "/usr/share/no-such-directory",
        "/mnt",
        "/tmp/a",
    ];
    for target in targets {
        let mut config = container(
            &pod,
            &[&format!("cat {target}/file; echo written > {target}/new")],
        );
        config.mounts = vec![mount(&volume, target)];
        let (code, output) = pod.run(config).await;
        assert_eq!(output, "content\n", "{target}");
        assert_eq!(code, 0, "{target}");
        assert_eq!(fs::read_to_string(volume.join("new")).unwrap(), "written\n");
        fs::remove_file(volume.join("new")).unwrap();
    }
    for target in [
        "/no-such-directory",
        "/etc/no-such-directory",
        "/usr/share/no-such-directory",
    ] {
        assert!(
            !Path::new(target).exists(),
            "{target} is not created on the node"
        );
    }
}

#[tokio::test]
async fn rest_of_the_file_system_stays_visible() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let script =
        "ls /etc/passwd /usr/bin/env /dev/null; stat -c %F /proc/self /dev/shm; ls / | wc -l";
    let (_, plain) = pod.run(container(&pod, &[script])).await;
    let mut config = container(&pod, &[script]);
    config.mounts = vec![mount(&pod.dir, "/etc/x/y"), mount(&pod.dir, "/usr/bin/x")];
    let (code, output) = pod.run(config).await;
    assert_eq!(output, plain);
    assert_eq!(code, 0);
    let mut config = container(
        &pod,
        &["ls /etc/passwd /usr/bin/env /dev/null; ls -d /.o* /dev/.root; true"],
    );
    config.mounts = vec![mount(&pod.dir, "/x")];
    let (_, output) = pod.run(config).await;
    assert!(
        output.starts_with("/dev/null\n/etc/passwd\n/usr/bin/env\n"),
        "{output}"
    );
    assert!(output.contains("cannot access '/.o*'"), "{output}");
}

#[tokio::test]
async fn files_are_mounted_over_files() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let hosts = pod.dir.join("hosts");
    fs::write(&hosts, "10.96.0.1 kubernetes.default").unwrap();
    let log = pod.dir.join("termination-log");
    fs::write(&log, "").unwrap();
    let mut config = container(&pod, &["cat /etc/hosts; echo bye > /dev/termination-log"]);
    config.mounts = vec![
        mount(&hosts, "/etc/hosts"),
        mount(&log, "/dev/termination-log"),
    ];
    let (code, output) = pod.run(config).await;
    assert_eq!(output, "10.96.0.1 kubernetes.default\n");
    assert_eq!(code, 0);
    assert_eq!(fs::read_to_string(&log).unwrap(), "bye\n");
}

#[tokio::test]
async fn read_only_volumes_cannot_be_written() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let volume = pod.dir.join("volume");
    fs::create_dir(&volume).unwrap();
    let mut config = container(&pod, &["touch /data/new"]);
    config.mounts = vec![Mount {
        read_only: true,
        ..mount(&volume, "/data")
    }];
    let (code, output) = pod.run(config).await;
    assert_eq!(code, 1);
    assert!(output.contains("Read-only file system"), "{output}");
}

#[tokio::test]
async fn read_only_root_leaves_volumes_writable() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let volume = pod.dir.join("volume");
    fs::create_dir(&volume).unwrap();
    let script = "touch /data/new && echo > /dev/null && cat /proc/self/comm
                  touch /tmp/new; touch /etc/new; touch /new";
    let mut config = container(&pod, &[script]);
    config.mounts = vec![mount(&volume, "/data")];
    config.read_only_root = true;
    let (code, output) = pod.run(config).await;
    assert_eq!(code, 1, "{output}");
    // Standard output and standard error are two pipes, so their lines have no common order.
    let (refused, printed): (Vec<&str>, Vec<&str>) = output
        .lines()
        .partition(|line| line.ends_with("Read-only file system"));
    assert_eq!(printed, ["cat"], "{output}");
    assert_eq!(refused.len(), 3, "{output}");
    assert!(volume.join("new").exists());
}

#[tokio::test]
async fn tmpfs_is_shared_by_the_containers_of_a_pod() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let volume = pod.dir.join("volume");
    fs::create_dir(&volume).unwrap();
    let mounted = pod.sandbox.mount_tmpfs(volume.clone(), Some(1 << 20)).await;
    mounted.unwrap();
    let run = |script: &str, sub_path: Option<&str>| {
        let mut config = container(&pod, &[script]);
        config.mounts = vec![Mount {
            sub_path: sub_path.map(PathBuf::from),
            create_sub_path: true,
            ..mount(&volume, "/cache")
        }];
        pod.run(config)
    };
    let script =
        "stat --file-system --format %T /cache; stat --format %a /cache; echo a > /cache/b";
    assert_eq!(run(script, None).await, (0, "tmpfs\n777\n".to_owned()));
    assert_eq!(run("cat /cache/b", None).await, (0, "a\n".to_owned()));
    assert_eq!(run("ls /cache; touch /cache/c", Some("x/y")).await.1, "");
    assert_eq!(run("ls /cache/x/y", None).await.1, "c\n");
    let (code, _) = run("head --bytes 2M /dev/zero > /cache/large", None).await;
    assert_eq!(code, 1);
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
}

#[tokio::test]
async fn sub_path_cannot_leave_its_volume() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let volume = pod.dir.join("volume");
    fs::create_dir_all(volume.join("sub")).unwrap();
    fs::write(volume.join("sub/file"), "below").unwrap();
    std::os::unix::fs::symlink("/etc", volume.join("link")).unwrap();
    let with_sub_path = |sub_path: &str| {
        let mut config = container(&pod, &["cat /data/file"]);
        config.mounts = vec![Mount {
            sub_path: Some(PathBuf::from(sub_path)),
            ..mount(&volume, "/data")
        }];
        config
    };
    let (_, output) = pod.run(with_sub_path("sub")).await;
    assert_eq!(output, "below\n");
    for sub_path in ["link", "../..", "/etc", "missing"] {
        let error = pod
            .sandbox
            .start_container(with_sub_path(sub_path))
            .await
            .err()
            .unwrap();
        let Error::Start(error) = error else {
            panic!("{sub_path}: {error}");
        };
        assert_eq!(error.kind, StartErrorKind::Mount, "{sub_path}: {error}");
    }
}

#[tokio::test]
async fn volumes_of_tier_b_are_named_by_variables() {
    let mut node = Node::start(Tier::B).await;
    let pod = node.pod().await;
    let volume = pod.dir.join("volume");
    fs::create_dir_all(volume.join("sub")).unwrap();
    fs::write(volume.join("sub/file"), "below").unwrap();
    let mut config = container(&pod, &["cat $KUBERNETES_MOUNT_MY_VOLUME/file"]);
    config.mounts = vec![Mount {
        sub_path: Some("sub".into()),
        ..mount(&volume, "/data")
    }];
    let (_, output) = pod.run(config).await;
    assert_eq!(output, "below\n");
    let mut config = container(&pod, &["true"]);
    config.mounts = vec![Mount {
        sub_path: Some("../..".into()),
        ..mount(&volume, "/data")
    }];
    let error = pod.sandbox.start_container(config).await.err().unwrap();
    assert!(error.to_string().contains("leaves the volume"), "{error}");
}

fn version(number: u32) -> Payload {
    let file = |name: &str| {
        let projection = FileProjection {
            data: number.to_string().into_bytes(),
            mode: 0o644,
        };
        (PathBuf::from(name), projection)
    };
    ["a", "b", "nested/c"].into_iter().map(file).collect()
}

/// Updates a volume against a reader that checks each version.
fn update_volume(updates: u32) {
    let dir = tempfile::tempdir().unwrap();
    let writer = AtomicWriter::new(dir.path());
    let now = jiff::Timestamp::UNIX_EPOCH;
    writer.write(&version(0), now).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = 0;
            while !done.load(Ordering::Relaxed) {
                // A reader keeps one version by resolving the link once.
                let data = dir.path().join("..data");
                let version = dir.path().join(fs::read_link(data).unwrap());
                let files = ["a", "b", "nested/c"].map(|name| fs::read(version.join(name)));
                // The version may be removed while it is read.
                if let [Ok(a), Ok(b), Ok(c)] = files {
                    assert_eq!(a, b);
                    assert_eq!(b, c);
                    read += 1;
                }
            }
            read
        });
        for number in 1..=updates {
            writer.write(&version(number), now).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}

#[test]
fn reader_never_sees_files_of_two_versions() {
    update_volume(200);
}

#[test]
#[ignore = "takes a minute on a slow disk"]
fn reader_never_sees_files_of_two_of_ten_thousand_versions() {
    update_volume(10_000);
}
