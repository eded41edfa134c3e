//! Cases of the replica calculator.

use serde_json::json;

use super::*;

const NOW: i64 = 1_000_000;
const HOUR: i64 = 3600;

/// The state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Ready for an hour.
    Ready,
    /// Started an hour ago and never ready.
    Unready,
    /// Started an hour ago, was ready, and is not since 10 minutes.
    WasReady,
    /// Started a minute ago and ready for a second.
    Hot,
    /// Started two minutes ago and ready for a minute.
    Warm,
    Pending,
    Failed,
    Deleted,
    /// Running without a condition `Ready`.
    NoCondition,
}

use State::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// A pod with a request of 1 CPU.
fn pod(position: usize, state: State) -> Arc<Pod> {
    let (age, ready, since) = match state {
        Ready | Deleted | Failed | Pending | NoCondition => (HOUR, "True", HOUR),
        Unready => (HOUR, "False", HOUR),
        WasReady => (HOUR, "False", 600),
        Hot => (60, "True", 1),
        Warm => (120, "True", 60),
    };
    let phase = match state {
        Pending => "Pending",
        Failed => "Failed",
        _ => "Running",
    };
    let since = at(NOW - since).to_string();
    let mut conditions =
        vec![json!({"type": "Ready", "status": ready, "lastTransitionTime": since})];
    conditions.retain(|_| state != NoCondition);
    let mut pod = json!({
        "metadata": {"name": format!("pod-{position}")},
        "spec": {"containers": [
            {"name": "app", "resources": {"requests": {"cpu": "1", "memory": "1Ki"}}},
        ]},
        "status": {
            "phase": phase, "startTime": at(NOW - age).to_string(), "conditions": conditions,
        },
    });
    if state == Deleted {
        pod["metadata"]["deletionTimestamp"] = at(NOW).to_string().into();
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// Metrics of the first pods.
fn metrics(levels: &[i64]) -> PodMetrics {
    let levels = levels.iter().enumerate().map(|(position, value)| {
        let metric = PodMetric {
            timestamp: at(NOW),
            window: Duration::from_secs(30),
            value: *value,
        };
        (format!("pod-{position}"), metric)
    });
    levels.collect()
}

const CPU: ResourceMetric<'static> = ResourceMetric {
    resource: "cpu",
    container: None,
};

const MEMORY: ResourceMetric<'static> = ResourceMetric {
    resource: "memory",
    container: None,
};

const TOLERANCES: Tolerances = Tolerances {
    scale_down: 0.1,
    scale_up: 0.1,
};

fn calculate(
    current_replicas: i32,
    pods: &[Arc<Pod>],
    metrics: PodMetrics,
    metric: ResourceMetric<'_>,
    target: Target,
) -> Result<Proposal, String> {
    let calculator = ReplicaCalculator {
        pods,
        current_replicas,
        tolerances: TOLERANCES,
        now: at(NOW),
    };
    calculator.resource_replicas(metrics, metric, target)
}

#[test]
fn utilization_determines_the_replicas() {
    let cases: &[(&str, i32, &[State], &[i64], i32, i32, i32)] = &[
        // Current replicas, pods, levels, target, expected replicas, expected utilization.
        ("scale up", 3, &[Ready; 3], &[300, 500, 700], 30, 5, 50),
        (
            "scale down",
            5,
            &[Ready; 5],
            &[100, 300, 500, 250, 250],
            50,
            3,
            28,
        ),
        (
            "within the tolerance",
            3,
            &[Ready; 3],
            &[1010, 1030, 1020],
            100,
            3,
            102,
        ),
        (
            "an unready pod damps a scale-up",
            3,
            &[Unready, Ready, Ready],
            &[300, 500, 700],
            30,
            4,
            60,
        ),
        (
            "unready pods prevent a scale-up",
            3,
            &[Ready, Unready, Unready],
            &[400, 500, 700],
            30,
            3,
            40,
        ),
        (
            "a pod that has just started damps a scale-up",
            3,
            &[Hot, Ready, Ready],
            &[300, 500, 700],
            30,
            4,
            60,
        ),
        (
            "a pod that was ready counts",
            3,
            &[WasReady, Ready, Ready],
            &[300, 500, 700],
            30,
            5,
            50,
        ),
        (
            "a pod with a full window counts",
            3,
            &[Warm, Ready, Ready],
            &[300, 500, 700],
            30,
            5,
            50,
        ),
        (
            "failed pods are ignored",
            2,
            &[Ready, Ready, Failed, Failed],
            &[500, 700],
            30,
            4,
            60,
        ),
        (
            "deleted pods are ignored",
            2,
            &[Ready, Ready, Deleted, Deleted],
            &[500, 700, 900, 900],
            30,
            4,
            60,
        ),
        (
            "unready pods do not count on a scale-down",
            5,
            &[Ready, Ready, Ready, Unready, Unready],
            &[100, 300, 500, 250, 250],
            50,
            2,
            30,
        ),
        (
            "pending pods do not count on a scale-down",
            5,
            &[Ready, Pending, Pending, Pending, Pending],
            &[100],
            50,
            1,
            10,
        ),
        (
            "metrics of unknown pods do not count",
            4,
            &[Ready; 4],
            &[4000, 9500, 3000, 7000, 3200, 2000],
            100,
            24,
            587,
        ),
        (
            "missing pods use their request on a scale-down",
            4,
            &[Ready; 4],
            &[400, 95],
            100,
            3,
            24,
        ),
        (
            "missing pod at the target",
            2,
            &[Ready; 2],
            &[1000],
            100,
            2,
            100,
        ),
        (
            "missing pod prevents a scale-up",
            2,
            &[Ready; 2],
            &[1900],
            100,
            2,
            190,
        ),
        (
            "missing pod prevents a scale-down",
            2,
            &[Ready; 2],
            &[600],
            100,
            2,
            60,
        ),
        (
            "missing and unready pods within the tolerance",
            3,
            &[Unready, Ready, Ready],
            &[100, 450],
            50,
            3,
            45,
        ),
        (
            "missing and unready pods on a scale-up",
            3,
            &[Unready, Ready, Ready],
            &[100, 2000],
            50,
            4,
            200,
        ),
        (
            "missing and unready pods on a scale-down",
            4,
            &[Unready, Ready, Ready, Ready],
            &[100, 100, 100],
            50,
            3,
            10,
        ),
        (
            "surge pods of a rollout do not cause a scale-up",
            2,
            &[Ready; 3],
            &[100, 100],
            50,
            2,
            10,
        ),
    ];
    for (case, current, states, levels, target, replicas, utilization) in cases {
        let states = states.iter().enumerate();
        let pods: Vec<_> = states.map(|(at, state)| pod(at, *state)).collect();
        let target = Target::Utilization(*target);
        let proposal = calculate(*current, &pods, metrics(levels), CPU, target);
        let proposal = proposal.expect(case);
        assert_eq!(proposal.replicas, *replicas, "{case}");
        assert_eq!(proposal.utilization, Some(*utilization), "{case}");
    }
}

#[test]
fn average_value_determines_the_replicas() {
    let cases: &[(&str, i32, &[State], &[i64], i64, i32, i64)] = &[
        // Current replicas, pods, levels, target, expected replicas, expected average value.
        (
            "scale up",
            3,
            &[Ready; 3],
            &[20_000, 10_000, 30_000],
            15_000,
            4,
            20_000,
        ),
        (
            "scale down",
            5,
            &[Ready; 5],
            &[12_000; 5],
            20_000,
            3,
            12_000,
        ),
        (
            "within the tolerance",
            3,
            &[Ready; 3],
            &[20_000, 21_000, 21_000],
            20_000,
            3,
            20_666,
        ),
        (
            "missing pods at the target",
            5,
            &[Ready; 5],
            &[20_000; 3],
            20_000,
            5,
            20_000,
        ),
        (
            "missing pods use the target",
            2,
            &[Ready; 3],
            &[10_000; 2],
            17_000,
            2,
            10_000,
        ),
        (
            "readiness does not matter",
            3,
            &[Hot, Unready, Ready],
            &[50_000, 10_000, 30_000],
            15_000,
            6,
            30_000,
        ),
    ];
    for (case, current, states, levels, target, replicas, average_value) in cases {
        let states = states.iter().enumerate();
        let pods: Vec<_> = states.map(|(at, state)| pod(at, *state)).collect();
        let target = Target::AverageValue(*target);
        let proposal = calculate(*current, &pods, metrics(levels), MEMORY, target);
        let expected = Proposal {
            replicas: *replicas,
            utilization: None,
            average_value: *average_value,
        };
        assert_eq!(proposal, Ok(expected), "{case}");
    }
}

#[test]
fn pods_are_grouped_by_their_state() {
    let cases: &[(State, &str, &str)] = &[
        (Ready, "cpu", "ready"),
        (Unready, "cpu", "unready"),
        (Unready, "memory", "ready"),
        (WasReady, "cpu", "ready"),
        (Hot, "cpu", "unready"),
        (Hot, "memory", "ready"),
        (Warm, "cpu", "ready"),
        (NoCondition, "cpu", "unready"),
        (Pending, "memory", "unready"),
        (Failed, "cpu", "ignored"),
        (Deleted, "cpu", "ignored"),
    ];
    for (state, resource, expected) in cases {
        let pods = [pod(0, *state)];
        let calculator = ReplicaCalculator {
            pods: &pods,
            current_replicas: 1,
            tolerances: TOLERANCES,
            now: at(NOW),
        };
        let groups = calculator.group_pods(&metrics(&[1]), resource);
        let group = if groups.ready == 1 {
            "ready"
        } else if !groups.unready.is_empty() {
            "unready"
        } else if !groups.ignored.is_empty() {
            "ignored"
        } else {
            "missing"
        };
        assert_eq!(group, *expected, "{state:?} {resource}");
    }
}

#[test]
fn tolerance_of_an_autoscaler_applies_per_direction() {
    let pods = [pod(0, Ready)];
    for (scale_down, scale_up, level, expected) in [
        (0.1, 0.0, 1010, 2),
        (0.1, 0.5, 1490, 1),
        (0.1, 0.5, 1510, 2),
        (0.9, 0.1, 200, 1),
    ] {
        let calculator = ReplicaCalculator {
            pods: &pods,
            current_replicas: 1,
            tolerances: Tolerances {
                scale_down,
                scale_up,
            },
            now: at(NOW),
        };
        let target = Target::Utilization(100);
        let proposal = calculator.resource_replicas(metrics(&[level]), CPU, target);
        assert_eq!(proposal.unwrap().replicas, expected, "level {level}");
    }
}

#[test]
fn failures_have_the_messages_of_upstream() {
    let ready = [pod(0, Ready)];
    let unready = [pod(0, Unready)];
    let target = Target::Utilization(100);
    let gpu = ResourceMetric {
        resource: "gpu",
        container: None,
    };
    let other = ResourceMetric {
        container: Some("other"),
        ..CPU
    };
    let foreign = PodMetrics::from([("other".to_owned(), metrics(&[100])["pod-0"])]);
    for (pods, metrics, metric, expected) in [
        (
            &[][..],
            metrics(&[1]),
            CPU,
            "no pods returned by selector while calculating replica count",
        ),
        (
            &unready[..],
            metrics(&[1]),
            CPU,
            "did not receive metrics for targeted pods (pods might be unready)",
        ),
        (
            &ready[..],
            metrics(&[1]),
            gpu,
            "missing request for gpu in container app of Pod pod-0",
        ),
        (
            &ready[..],
            metrics(&[1]),
            other,
            "container other not found in Pod pod-0",
        ),
        (
            &ready[..],
            foreign,
            CPU,
            "no metrics returned matched known pods",
        ),
    ] {
        let proposal = calculate(1, pods, metrics, metric, target);
        assert_eq!(proposal, Err(expected.to_owned()));
    }
}

#[test]
fn requests_are_those_of_containers_and_sidecars_or_of_the_pod() {
    let container = |name: &str, cpu: &str, restart_policy: Option<&str>| {
        json!({
            "name": name, "restartPolicy": restart_policy,
            "resources": {"requests": {"cpu": cpu}},
        })
    };
    let containers = json!([container("a", "100m", None), container("b", "200m", None)]);
    let sidecars = json!([
        container("s", "50m", Some("Always")),
        container("i", "9", None)
    ]);
    let pod_level = json!({"requests": {"cpu": "1"}});
    for (case, resources, container, expected) in [
        ("sum", json!(null), None, 350),
        ("container", json!(null), Some("b"), 200),
        ("sidecar", json!(null), Some("s"), 50),
        ("pod-level", pod_level.clone(), None, 1000),
        ("container before pod-level", pod_level, Some("a"), 100),
    ] {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {
                "containers": containers, "initContainers": sidecars, "resources": resources,
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let metric = ResourceMetric { container, ..CPU };
        assert_eq!(pod_request(&pod, metric), Ok(expected), "{case}");
    }
}

#[test]
fn large_values_do_not_overflow() {
    let pods = [pod(0, Ready), pod(1, Ready)];
    let target = Target::Utilization(1);
    let proposal = calculate(1, &pods, metrics(&[i64::MAX, i64::MAX]), CPU, target);
    assert_eq!(proposal.unwrap().replicas, i32::MAX);
    let target = Target::AverageValue(1);
    let proposal = calculate(1, &pods, metrics(&[i64::MAX, i64::MAX]), MEMORY, target);
    assert_eq!(proposal.unwrap().replicas, i32::MAX);
}
