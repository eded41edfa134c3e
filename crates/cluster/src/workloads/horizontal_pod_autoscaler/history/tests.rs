//! Cases of stabilization and limits.

use super::*;

const NOW: i64 = 1_000_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

/// Recommendations with their age in seconds.
fn recommendations(ages: &[(i32, i64)]) -> Vec<Recommendation> {
    let recommendations = ages.iter().map(|(replicas, age)| Recommendation {
        replicas: *replicas,
        at: Timestamp::from_second(NOW - age).unwrap(),
    });
    recommendations.collect()
}

/// Changes with their age in seconds.
fn events(ages: &[(i32, i64)]) -> Vec<ScaleEvent> {
    let events = ages.iter().map(|(change, age)| ScaleEvent {
        change: *change,
        at: Timestamp::from_second(NOW - age).unwrap(),
    });
    events.collect()
}

/// Rules with policies of type, value and period.
fn rules(select: &str, policies: &[(&str, i32, i32)]) -> HPAScalingRules {
    let policies = policies
        .iter()
        .map(|(type_, value, period)| HPAScalingPolicy {
            type_: (*type_).to_owned(),
            value: *value,
            period_seconds: *period,
        });
    HPAScalingRules {
        policies: Some(policies.collect()),
        select_policy: Some(select.to_owned()),
        stabilization_window_seconds: Some(0),
        tolerance: None,
    }
}

/// The behavior that the API server sets by default, without stabilization.
fn default_behavior() -> HorizontalPodAutoscalerBehavior {
    HorizontalPodAutoscalerBehavior {
        scale_up: Some(rules("Max", &[("Pods", 4, 15), ("Percent", 100, 15)])),
        scale_down: Some(rules("Max", &[("Percent", 100, 15)])),
    }
}

fn recommended(current: i32, desired: i32, min: i32, max: i32) -> Recommended {
    Recommended {
        current,
        desired,
        min,
        max,
    }
}

#[test]
fn replicas_are_limited_without_a_behavior() {
    for (case, recommended, replicas, reason) in [
        ("within range", recommended(5, 7, 3, 8), 7, WITHIN_RANGE),
        ("minimum", recommended(3, 1, 2, 8), 2, TOO_FEW_REPLICAS),
        (
            "maximum",
            recommended(20, 1000, 1, 10),
            10,
            TOO_MANY_REPLICAS,
        ),
        ("doubled", recommended(3, 1000, 1, 2000), 6, SCALE_UP_LIMIT),
        (
            "at least 4",
            recommended(1, 1000, 1, 2000),
            4,
            SCALE_UP_LIMIT,
        ),
    ] {
        assert_eq!(limit(recommended), (replicas, reason), "{case}");
    }
}

#[test]
fn highest_recommendation_of_five_minutes_prevents_a_scale_down() {
    let cases: &[(&str, &[(i32, i64)], i32, i32, usize)] = &[
        ("no recommendations", &[], 5, 5, 1),
        ("higher ones", &[(4, 120), (5, 60)], 3, 5, 3),
        ("lower ones", &[(1, 120), (2, 60)], 3, 3, 3),
        ("old ones", &[(10, 600), (9, 540)], 3, 3, 2),
        (
            "some old ones",
            &[(10, 600), (4, 60), (5, 120), (9, 540)],
            3,
            5,
            4,
        ),
    ];
    for (case, ages, desired, expected, length) in cases {
        let mut history = History {
            recommendations: recommendations(ages),
            ..History::default()
        };
        assert_eq!(history.stabilize(*desired, now()), *expected, "{case}");
        assert_eq!(history.recommendations.len(), *length, "{case}");
    }
}

#[test]
fn windows_of_a_behavior_stabilize_both_directions() {
    let cases: &[(&str, &[(i32, i64)], i32, i32, i32, i32, i32, &[i32])] = &[
        // Recommendations, current, desired, windows up and down, expected, then recorded.
        ("none", &[], 100, 5, 0, 0, 5, &[5]),
        (
            "scale down",
            &[(4, 120), (5, 60)],
            100,
            3,
            0,
            180,
            5,
            &[4, 5, 3],
        ),
        (
            "scale up",
            &[(4, 120), (5, 60)],
            1,
            7,
            300,
            0,
            4,
            &[4, 5, 7],
        ),
        (
            "no scale down",
            &[(1, 120), (2, 60)],
            100,
            3,
            300,
            0,
            3,
            &[1, 2, 3],
        ),
        (
            "no scale up",
            &[(4, 120), (5, 60)],
            1,
            3,
            0,
            300,
            3,
            &[4, 5, 3],
        ),
        (
            "reuse on scale down",
            &[(10, 600), (9, 540)],
            100,
            3,
            0,
            0,
            3,
            &[10, 3],
        ),
        (
            "reuse on scale up",
            &[(10, 600), (9, 540)],
            1,
            100,
            0,
            0,
            100,
            &[10, 100],
        ),
        (
            "reuse of one",
            &[(10, 600), (4, 60), (5, 120), (9, 540)],
            100,
            3,
            0,
            180,
            5,
            &[10, 4, 5, 3],
        ),
        (
            "reuse of the first",
            &[(10, 6000), (6, 60), (5, 120), (9, 180)],
            1,
            100,
            300,
            0,
            5,
            &[100, 6, 5, 9],
        ),
        (
            "lower after higher",
            &[(2, 6000), (3, 180)],
            2,
            1,
            300,
            300,
            2,
            &[1, 3],
        ),
        (
            "higher after lower",
            &[(2, 6000), (1, 180)],
            2,
            3,
            300,
            300,
            2,
            &[3, 1],
        ),
    ];
    for (case, ages, current, desired, up, down, expected, recorded) in cases {
        let mut history = History {
            recommendations: recommendations(ages),
            ..History::default()
        };
        let window = |seconds: i32| HPAScalingRules {
            stabilization_window_seconds: Some(seconds),
            ..HPAScalingRules::default()
        };
        let behavior = HorizontalPodAutoscalerBehavior {
            scale_up: Some(window(*up)),
            scale_down: Some(window(*down)),
        };
        let recommended = recommended(*current, *desired, 1, 1000);
        let (stabilized, _) = history.stabilize_with_behavior(recommended, &behavior, now());
        assert_eq!(stabilized, *expected, "{case}");
        let replicas = history.recommendations.iter().map(|it| it.replicas);
        assert_eq!(replicas.collect::<Vec<_>>(), *recorded, "{case}");
    }
}

#[test]
fn policies_limit_the_change_per_period() {
    let up = |select: &str, policies: &[(&str, i32, i32)]| HorizontalPodAutoscalerBehavior {
        scale_up: Some(rules(select, policies)),
        ..default_behavior()
    };
    let down = |select: &str, policies: &[(&str, i32, i32)]| HorizontalPodAutoscalerBehavior {
        scale_down: Some(rules(select, policies)),
        ..default_behavior()
    };
    let none = History::default;
    let scaled_up = |ages: &[(i32, i64)]| History {
        scale_ups: events(ages),
        ..History::default()
    };
    let scaled_down = |ages: &[(i32, i64)]| History {
        scale_downs: events(ages),
        ..History::default()
    };
    let scaled_both = History {
        scale_ups: events(&[(4, 60)]),
        scale_downs: events(&[(2, 60)]),
        ..History::default()
    };
    let recent = &[(1, 20), (5, 60), (9, 100)];
    for (case, history, behavior, recommended, replicas, reason) in [
        (
            "default",
            none(),
            default_behavior(),
            recommended(10, 50, 1, 1000),
            20,
            SCALE_UP_LIMIT,
        ),
        (
            "default, 4 pods",
            none(),
            default_behavior(),
            recommended(1, 50, 1, 1000),
            5,
            SCALE_UP_LIMIT,
        ),
        (
            "maximum",
            none(),
            default_behavior(),
            recommended(100, 1000, 100, 150),
            150,
            TOO_MANY_REPLICAS,
        ),
        (
            "within range",
            none(),
            up("Max", &[("Pods", 100, 60)]),
            recommended(10, 50, 1, 1000),
            50,
            WITHIN_RANGE,
        ),
        (
            "larger of pods and percent",
            none(),
            up("Max", &[("Pods", 100, 60), ("Percent", 100, 60)]),
            recommended(10, 500, 1, 1000),
            110,
            SCALE_UP_LIMIT,
        ),
        (
            "smaller of pods and percent",
            none(),
            up("Min", &[("Pods", 100, 60), ("Percent", 100, 60)]),
            recommended(10, 500, 1, 1000),
            20,
            SCALE_UP_LIMIT,
        ),
        (
            "percent is rounded up",
            none(),
            up("Max", &[("Percent", 5, 60)]),
            recommended(3, 500, 1, 1000),
            4,
            SCALE_UP_LIMIT,
        ),
        (
            "disabled up",
            none(),
            up("Disabled", &[("Pods", 100, 60)]),
            recommended(10, 500, 1, 1000),
            10,
            SCALE_UP_LIMIT,
        ),
        (
            "scale-ups of the period count",
            scaled_up(recent),
            up("Max", &[("Pods", 150, 120)]),
            recommended(100, 500, 1, 1000),
            235,
            SCALE_UP_LIMIT,
        ),
        (
            "percent of the replicas before the period",
            scaled_up(recent),
            up("Max", &[("Percent", 200, 120)]),
            recommended(100, 500, 1, 1000),
            255,
            SCALE_UP_LIMIT,
        ),
        (
            "policy is used up",
            scaled_up(recent),
            up("Max", &[("Pods", 5, 120)]),
            recommended(100, 500, 1, 1000),
            100,
            SCALE_UP_LIMIT,
        ),
        (
            "scale-downs of the period count too",
            scaled_both,
            up("Max", &[("Percent", 300, 300)]),
            recommended(6, 24, 1, 1000),
            16,
            SCALE_UP_LIMIT,
        ),
        (
            "larger scale-down",
            none(),
            down("Max", &[("Pods", 20, 60), ("Percent", 1, 60)]),
            recommended(100, 2, 1, 1000),
            80,
            SCALE_DOWN_LIMIT,
        ),
        (
            "smaller scale-down",
            none(),
            down("Min", &[("Pods", 20, 60), ("Percent", 1, 60)]),
            recommended(100, 2, 1, 1000),
            99,
            SCALE_DOWN_LIMIT,
        ),
        (
            "minimum",
            none(),
            down("Max", &[("Percent", 100, 60)]),
            recommended(10, 2, 5, 1000),
            5,
            TOO_FEW_REPLICAS,
        ),
        (
            "disabled down",
            none(),
            down("Disabled", &[("Percent", 100, 60)]),
            recommended(10, 2, 1, 1000),
            10,
            SCALE_DOWN_LIMIT,
        ),
        (
            "scale-downs of the period count",
            scaled_down(recent),
            down("Max", &[("Pods", 20, 120)]),
            recommended(100, 2, 1, 1000),
            95,
            SCALE_DOWN_LIMIT,
        ),
    ] {
        let limited = history.limit_rate(recommended, &behavior, now());
        assert_eq!(limited, (replicas, reason), "{case}");
    }
}

#[test]
fn scale_events_take_the_place_of_outdated_ones() {
    let behavior = HorizontalPodAutoscalerBehavior {
        scale_up: Some(rules("Max", &[("Pods", 4, 60), ("Pods", 4, 120)])),
        ..default_behavior()
    };
    let mut history = History {
        scale_ups: events(&[(7, 110), (8, 130)]),
        ..History::default()
    };
    history.record_scale(Some(&behavior), 5, 10, now());
    assert_eq!(history.scale_ups, events(&[(7, 110), (5, 0)]));
    history.record_scale(Some(&behavior), 10, 7, now());
    assert_eq!(history.scale_downs, events(&[(3, 0)]));
    history.record_scale(None, 7, 9, now());
    assert_eq!(history.scale_ups.len(), 2);
}

#[test]
fn first_sync_after_a_restart_does_not_scale_down() {
    let mut history = History::default();
    history.record_initial(8, now());
    history.record_initial(9, now());
    let normalized = history.normalize(recommended(8, 2, 1, 10), None, now());
    assert_eq!(normalized.replicas, 8);
    assert_eq!(normalized.able_to_scale, SCALE_DOWN_STABILIZED);
    assert!(!normalized.is_limited);
}
