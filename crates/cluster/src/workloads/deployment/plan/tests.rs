//! Rollouts simulated with the planner: each plan is applied to the ReplicaSets, then planned
//! again.

use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

/// A Deployment with replicas, an image and further fields of the spec.
fn deployment(replicas: i32, image: &str, more: Value) -> Deployment {
    let mut object = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "d", "generation": 1 },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "x", "image": image }] },
            },
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 },
            },
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 10,
        },
    });
    for (key, value) in more.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn set_image(deployment: &mut Deployment, image: &str) {
    let template = &mut deployment.spec.as_mut().unwrap().template;
    template.spec.as_mut().unwrap().containers[0].image = Some(image.into());
}

/// Applies a plan. `available` is the number of available pods of each ReplicaSet.
fn apply(
    deployment: &mut Deployment,
    plan: &Plan,
    available: impl Fn(&ReplicaSet) -> i32,
) -> Vec<Arc<ReplicaSet>> {
    deployment.status = Some(plan.status.clone());
    if let Some(revision) = plan.new_revision(deployment) {
        deployment
            .annotations_mut()
            .insert(REVISION_ANNOTATION.into(), revision);
    }
    let is_kept = |replica_set: &&PlannedReplicaSet| {
        !plan
            .delete
            .iter()
            .any(|set| set.name_any() == replica_set.desired.name_any())
    };
    let sets = plan
        .replica_sets
        .all()
        .filter(is_kept)
        .enumerate()
        .map(|(index, replica_set)| {
            let mut set = replica_set.desired.clone();
            set.metadata.uid = set.metadata.name.clone();
            set.metadata
                .creation_timestamp
                .get_or_insert_with(|| crate::workloads::test_objects::at(index as i64));
            let replicas = replica_set.replicas();
            let available = available(&set).min(replicas);
            let status = json!({
                "replicas": replicas,
                "availableReplicas": available,
                "readyReplicas": available,
                "terminatingReplicas": 0,
                "observedGeneration": 1,
            });
            set.status = serde_json::from_value(status).unwrap();
            Arc::new(set)
        });
    sets.collect()
}

fn replicas_of(sets: &[Arc<ReplicaSet>]) -> Vec<i32> {
    sets.iter()
        .map(|set| set.spec.as_ref().unwrap().replicas.unwrap())
        .collect()
}

/// Plans and applies 50 times. Returns the ReplicaSets and the replicas after each change.
fn run_rollout(
    deployment: &mut Deployment,
    mut sets: Vec<Arc<ReplicaSet>>,
    available: impl Fn(&ReplicaSet) -> i32 + Copy,
) -> (Vec<Arc<ReplicaSet>>, Vec<Vec<i32>>) {
    let mut steps = Vec::new();
    for _ in 0..50 {
        let plan = plan(deployment, &sets, |_| false, now());
        let next = apply(deployment, &plan, available);
        let changed = replicas_of(&next) != replicas_of(&sets);
        sets = next;
        if changed {
            steps.push(replicas_of(&sets));
        }
    }
    (sets, steps)
}

fn progress(deployment: &Deployment) -> (String, String) {
    let status = deployment.status.clone().unwrap();
    let condition = status
        .conditions
        .unwrap()
        .into_iter()
        .find(|condition| condition.type_ == "Progressing")
        .unwrap();
    (condition.status, condition.reason.unwrap())
}

fn all(_: &ReplicaSet) -> i32 {
    i32::MAX
}

#[test]
fn rolling_update_stays_within_bounds() {
    let mut web = deployment(3, "web:1", json!({}));
    let (sets, steps) = run_rollout(&mut web, Vec::new(), all);
    assert_eq!(steps, [[3]]);
    assert_eq!(
        progress(&web),
        ("True".into(), "NewReplicaSetAvailable".into())
    );
    assert_eq!(sets[0].annotations()[REVISION_ANNOTATION], "1");
    assert_eq!(web.annotations()[REVISION_ANNOTATION], "1");

    set_image(&mut web, "web:2");
    let (sets, steps) = run_rollout(&mut web, sets, all);
    assert_eq!(
        steps,
        [[2, 1], [2, 2], [0, 2], [0, 3]],
        "at least 2 available, at most 4 replicas"
    );
    assert_eq!(sets[1].annotations()[REVISION_ANNOTATION], "2");
    let status = web.status.as_ref().unwrap();
    assert_eq!(status.replicas, Some(3));
    assert_eq!(status.updated_replicas, Some(3));
    assert_eq!(status.available_replicas, Some(3));

    set_image(&mut web, "web:1");
    let (sets, _) = run_rollout(&mut web, sets, all);
    let first = sets
        .iter()
        .find(|set| set.spec.as_ref().unwrap().replicas == Some(3))
        .unwrap();
    assert_eq!(
        first.annotations()[REVISION_ANNOTATION],
        "3",
        "rolled back to the first ReplicaSet with a new revision"
    );
    assert_eq!(
        first.annotations()["deployment.kubernetes.io/revision-history"],
        "1"
    );
    assert_eq!(sets.len(), 2);
}

#[test]
fn failing_rollout_stops_and_exceeds_its_deadline() {
    let mut web = deployment(10, "web:1", json!({}));
    let (sets, _) = run_rollout(&mut web, Vec::new(), all);
    set_image(&mut web, "broken");
    let available = |set: &ReplicaSet| {
        if set
            .spec
            .as_ref()
            .unwrap()
            .template
            .as_ref()
            .unwrap()
            .spec
            .as_ref()
            .unwrap()
            .containers[0]
            .image
            .as_deref()
            == Some("broken")
        {
            0
        } else {
            99
        }
    };
    let (sets, steps) = run_rollout(&mut web, sets, available);
    assert_eq!(
        steps.last().unwrap(),
        &[9, 2],
        "9 remain available, at most 11 replicas"
    );
    let plan = plan(
        &web,
        &sets,
        |_| false,
        Timestamp::from_second(NOW + 601).unwrap(),
    );
    web.status = Some(plan.status);
    assert_eq!(
        progress(&web),
        ("False".into(), "ProgressDeadlineExceeded".into())
    );
    assert_eq!(plan.requeue_after, None);
}

#[test]
fn rollout_is_requeued_at_its_progress_deadline() {
    let web = deployment(2, "web:1", json!({}));
    let plan = plan(&web, &[], |_| false, now());
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(601)));
    let no_deadline = deployment(2, "web:1", json!({ "progressDeadlineSeconds": i32::MAX }));
    assert_eq!(
        super::plan(&no_deadline, &[], |_| false, now()).requeue_after,
        None
    );
}

#[test]
fn recreate_waits_until_old_pods_are_gone() {
    let recreate = json!({ "strategy": { "type": "Recreate" } });
    let mut web = deployment(3, "web:1", recreate);
    let (sets, _) = run_rollout(&mut web, Vec::new(), all);
    set_image(&mut web, "web:2");
    let scaled_down = plan(&web, &sets, |_| true, now());
    assert!(scaled_down.replica_sets.new.is_none());
    let sets = apply(&mut web, &scaled_down, all);
    assert_eq!(replicas_of(&sets), [0]);
    assert!(
        plan(&web, &sets, |_| true, now())
            .replica_sets
            .new
            .is_none(),
        "old pods are still terminating"
    );
    assert_eq!(
        plan(&web, &sets, |_| false, now())
            .replica_sets
            .new
            .unwrap()
            .replicas(),
        3
    );
}

#[test]
fn paused_deployment_is_scaled_but_not_rolled_out() {
    let mut web = deployment(3, "web:1", json!({}));
    let (sets, _) = run_rollout(&mut web, Vec::new(), all);
    let spec = web.spec.as_mut().unwrap();
    spec.paused = Some(true);
    spec.replicas = Some(5);
    spec.template.spec.as_mut().unwrap().containers[0].image = Some("web:2".into());
    let (sets, steps) = run_rollout(&mut web, sets, all);
    assert_eq!(steps, [[5]]);
    assert_eq!(
        progress(&web),
        ("Unknown".into(), "DeploymentPaused".into())
    );
    web.spec.as_mut().unwrap().paused = None;
    let (sets, _) = run_rollout(&mut web, sets, all);
    assert_eq!(replicas_of(&sets), [0, 5]);
}

#[test]
fn revision_history_limit_is_applied() {
    let mut web = deployment(1, "web:0", json!({ "revisionHistoryLimit": 2 }));
    let mut sets = Vec::new();
    for version in 1..6 {
        set_image(&mut web, &format!("web:{version}"));
        sets = run_rollout(&mut web, sets, all).0;
    }
    let mut revisions: Vec<_> = sets
        .iter()
        .map(|set| set.annotations()[REVISION_ANNOTATION].as_str())
        .collect();
    revisions.sort_unstable();
    assert_eq!(revisions, ["3", "4", "5"]);
}

#[test]
fn terminating_deployment_is_not_scaled() {
    let mut web = deployment(3, "web:1", json!({}));
    let (sets, _) = run_rollout(&mut web, Vec::new(), all);
    web.metadata.deletion_timestamp = Some(crate::workloads::test_objects::at(1));
    web.spec.as_mut().unwrap().replicas = Some(7);
    let plan = plan(&web, &sets, |_| false, now());
    assert_eq!(plan.replica_sets.new.unwrap().replicas(), 3);
    assert_eq!(plan.status.available_replicas, Some(3));
}
