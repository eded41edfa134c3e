//! Start, exit, stop and start errors of containers.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bellerophon_process_runtime::{ContainerState, Error, StartErrorKind, Tier, User};
use tokio::time::Instant;

use crate::support::*;

#[tokio::test]
async fn exit_codes_and_signals_are_reported() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let cases = [
            ("exit 0", 0, None, "Completed"),
            ("exit 7", 7, None, "Error"),
            ("sleep 1000 & exit 3", 3, None, "Error"),
        ];
        for (script, code, signal, reason) in cases {
            let container = pod.start(&[script]).await;
            let exit = within(container.wait()).await;
            assert_eq!(exit.exit_code, code, "{tier:?} {script}");
            assert_eq!(exit.signal, signal, "{tier:?} {script}");
            assert_eq!(exit.reason(), reason, "{tier:?} {script}");
            assert_eq!(container.state(), ContainerState::Exited(exit));
        }
        let container = pod.start(&["sleep 1000; true"]).await;
        container.kill().await;
        let exit = within(container.wait()).await;
        assert_eq!(exit.exit_code, 137, "{tier:?}");
        assert_eq!(exit.signal, Some(9), "{tier:?}");
    }
}

#[tokio::test]
async fn environment_and_working_directory_are_those_of_the_container() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let mut config = container(&pod, &["echo $GREETING $HOSTNAME $CARGO_PKG_NAME; pwd"]);
        config.env.push(("GREETING".to_owned(), "hello".to_owned()));
        config.working_dir = Some("/usr".into());
        let (code, output) = pod.run(config).await;
        assert_eq!(output, "hello pod-1\n/usr\n", "{tier:?}");
        assert_eq!(code, 0);
        let (_, output) = pod.run(container(&pod, &["pwd"])).await;
        let node_dir = std::env::current_dir().unwrap();
        let expected = match tier {
            Tier::A => "/\n".to_owned(),
            Tier::B => format!("{}\n", node_dir.display()),
        };
        assert_eq!(output, expected, "{tier:?}");
    }
}

/// Programs inherited the mask of the shim: those that do not reset it, unlike shells, never
/// received SIGTERM.
#[tokio::test]
async fn program_starts_without_blocked_signals() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let config = container(&pod, &["grep", "SigBlk", "/proc/self/status"]);
        let (_, output) = pod.run(config).await;
        assert_eq!(output, "SigBlk:\t0000000000000000\n", "{tier:?}");
    }
}

#[tokio::test]
async fn containers_of_a_pod_have_their_own_processes() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let _other = pod.start(&["sleep 1000"]).await;
    // Of a pipeline, a command may list the processes before the next one is forked: no pipeline.
    let config = container(&pod, &["hostname; set -- /proc/[0-9]*; echo $#; echo $$"]);
    let (_, output) = pod.run(config).await;
    // The shell only, which is process 1.
    assert_eq!(output, "pod-1\n1\n1\n");
}

#[tokio::test]
async fn users_are_those_of_the_container() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let users = [(None, "0 0\n"), (Some((1000, 2000)), "1000 2000\n")];
    for (user, expected) in users {
        let mut config = container(&pod, &["echo $(id -u) $(id -g)"]);
        config.user = user.map(|(uid, gid)| User { uid, gid });
        let (_, output) = pod.run(config).await;
        assert_eq!(output, expected);
    }
    let mut config = container(&pod, &["sleep 1000"]);
    config.user = Some(User {
        uid: 1000,
        gid: 2000,
    });
    let container = pod.sandbox.start_container(config).await.unwrap();
    let (code, output) = exec(&container, &["id", "-u"]).await;
    assert_eq!(output, "1000\n");
    assert_eq!(code, 0);
}

#[tokio::test]
async fn another_user_is_a_start_error_without_namespaces() {
    let mut node = Node::start(Tier::B).await;
    let pod = node.pod().await;
    let mut config = container(&pod, &["true"]);
    config.user = Some(User {
        uid: 54_321,
        gid: 0,
    });
    let error = pod.sandbox.start_container(config).await.err().unwrap();
    assert!(error.to_string().contains("remove runAsUser"), "{error}");
}

#[tokio::test]
async fn programs_that_cannot_run_are_start_errors() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let text = pod.dir.join("text");
        std::fs::write(&text, "no program").unwrap();
        let script = pod.dir.join("script");
        std::fs::write(&script, "#!/no/interpreter\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let text = text.to_str().unwrap();
        let script = script.to_str().unwrap();
        let cases = [
            (
                "no-such-program",
                StartErrorKind::NotFound,
                "executable file not found in $PATH",
            ),
            (
                "/no/such",
                StartErrorKind::NotFound,
                "stat /no/such: no such file or directory",
            ),
            (
                script,
                StartErrorKind::NotFound,
                "no such file or directory",
            ),
            (text, StartErrorKind::NotExecutable, "permission denied"),
            ("/usr", StartErrorKind::NotExecutable, "is a directory"),
            ("", StartErrorKind::NotFound, "no command specified"),
        ];
        for (program, kind, message) in cases {
            let error = within(pod.try_start(&[program, "arg"]))
                .await
                .err()
                .unwrap();
            let Error::Start(error) = error else {
                panic!("{program}: {error}");
            };
            assert_eq!(error.kind, kind, "{tier:?} {error}");
            assert!(error.message.contains(message), "{tier:?} {error}");
            let code = if kind == StartErrorKind::NotFound {
                127
            } else {
                126
            };
            assert_eq!(error.shell_exit_code(), code);
        }
        let mut config = container(&pod, &["true"]);
        config.working_dir = Some("/no/such/directory".into());
        let error = pod.sandbox.start_container(config).await.err().unwrap();
        assert!(
            error.to_string().contains("chdir to cwd"),
            "{tier:?} {error}"
        );
        // The sandbox is still usable.
        let (code, _) = pod.run(container(&pod, &["exit 4"])).await;
        assert_eq!(code, 4);
    }
}

#[tokio::test]
async fn stop_terminates_the_main_process_only() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let config = container(
            &pod,
            &[
                "sh -c 'trap \"echo child terminated\" TERM; while :; do sleep 0.01; done' &
              trap 'echo terminated; exit 5' TERM; echo ready; while :; do sleep 0.01; done",
            ],
        );
        let log_path = config.log_path.clone();
        let container = pod.sandbox.start_container(config).await.unwrap();
        wait_for_output(&container, &log_path, "ready").await;
        let exit = within(container.stop(TIMEOUT)).await;
        assert_eq!(exit.exit_code, 5, "{tier:?}");
        assert_eq!(output(&log_path), "ready\nterminated\n", "{tier:?}");
    }
}

#[tokio::test]
async fn program_that_ignores_sigterm_is_killed_after_the_grace_period() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let script = "trap '' TERM; echo ready; while :; do sleep 1000; done";
        let config = container(&pod, &[script]);
        let log_path = config.log_path.clone();
        let container = pod.sandbox.start_container(config).await.unwrap();
        wait_for_output(&container, &log_path, "ready").await;
        let grace_period = Duration::from_millis(200);
        let start = Instant::now();
        let exit = within(container.stop(grace_period)).await;
        assert_eq!(exit.exit_code, 137, "{tier:?}");
        assert!(start.elapsed() >= grace_period, "{tier:?}");
        assert!(start.elapsed() < TIMEOUT, "{tier:?}");
    }
}

#[tokio::test]
async fn leftovers_of_a_container_end_with_its_main_process() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let other = pod.start(&["sleep", "1000"]).await;
        let data_dir = node.dir.path().join("data").canonicalize().unwrap();
        let before = marked_processes(&data_dir);
        let script = "(setsid sh -c 'trap \"\" TERM; (setsid sleep 1000 &); sleep 1000' &); exit 0";
        let container = pod.start(&[script]).await;
        within(container.wait()).await;
        drop(container);
        // Tier B: the shim of the container ends with it.
        let ended = async {
            while marked_processes(&data_dir) > before {
                tokio::task::yield_now().await;
            }
        };
        within(ended).await;
        assert!(
            matches!(other.state(), ContainerState::Running { .. }),
            "{tier:?}"
        );
    }
}

#[tokio::test]
async fn program_can_open_ten_thousand_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < 10_100) {
        eprintln!(
            "not tested: the hard limit of open files is {:?}",
            limit.maximum
        );
        return;
    }
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let (code, output) = pod.run(container(&pod, &[HELPER, "open", "10000"])).await;
        assert_eq!(output, "10000 files\n", "{tier:?}");
        assert_eq!(code, 0);
    }
}

#[tokio::test]
async fn stopped_sandbox_has_no_processes() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        let container = pod
            .start(&["trap '' TERM; setsid sleep 1000 & sleep 1000"])
            .await;
        within(pod.sandbox.stop()).await.unwrap();
        let data_dir = node.dir.path().join("data").canonicalize().unwrap();
        assert_eq!(marked_processes(&data_dir), 0, "{tier:?}");
        assert_eq!(within(container.wait()).await.exit_code, 137, "{tier:?}");
    }
}

#[tokio::test]
async fn missing_limits_are_reported() {
    let node = Node::start(Tier::B).await;
    let capabilities = node.runtime.capabilities();
    assert_eq!(
        capabilities.tier.reason.as_deref(),
        Some("tier B was requested")
    );
    if let Err(reason) = &capabilities.limits {
        assert!(!reason.is_empty());
    }
}

#[tokio::test]
async fn usage_has_the_cpu_time_and_memory_of_all_processes() {
    for tier in tiers().await {
        let mut node = Node::start(tier).await;
        let pod = node.pod().await;
        // A child allocates 32 MiB and both use CPU time.
        let script = "sh -c 'x=$(yes | head -c 33554432); echo ready; while :; do :; done' &
                      while :; do :; done";
        let config = container(&pod, &[script]);
        let log_path = config.log_path.clone();
        let busy = pod.sandbox.start_container(config).await.unwrap();
        wait_for_output(&busy, &log_path, "ready").await;
        let idle = pod.start(&["sleep 1000; true"]).await;
        let first = busy.usage().await.unwrap();
        assert!(first.memory_bytes > 32 << 20, "{tier:?} {first:?}");
        assert!(first.memory_bytes < 512 << 20, "{tier:?} {first:?}");
        let mut last = first;
        within(async {
            while last.cpu < first.cpu + Duration::from_millis(200) {
                last = busy.usage().await.unwrap();
            }
        })
        .await;
        let of_idle = idle.usage().await.unwrap();
        assert!(
            of_idle.cpu < Duration::from_millis(200),
            "{tier:?} {of_idle:?}"
        );
        assert!(of_idle.memory_bytes > 0, "{tier:?}");
        assert!(of_idle.memory_bytes < 32 << 20, "{tier:?} {of_idle:?}");
        busy.kill().await;
        within(busy.wait()).await;
        assert!(busy.usage().await.is_err(), "{tier:?}");
    }
}
