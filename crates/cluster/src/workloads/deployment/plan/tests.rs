//! Whole rollouts played out on the plan alone: what it wants of sets comes true, then it is asked again.

use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

/// A Deployment of `replicas` pods with an image, and more of a spec.
fn deployment(replicas: i32, image: &str, more: Value) -> Deployment {
    let mut object = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "d", "generation": 1 },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "x", "image": image }] } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } },
            "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10,
        },
    });
    for (key, value) in more.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

/// Lets what a plan wants come true, with so many pods of each set available as `available` says.
fn come_true(
    deployment: &mut Deployment,
    plan: &Plan,
    available: impl Fn(&ReplicaSet) -> i32,
) -> Vec<Arc<ReplicaSet>> {
    deployment.status = Some(plan.status.clone());
    if let Some(revision) = plan.new_revision(deployment) {
        deployment
            .annotations_mut()
            .insert(REVISION.into(), revision);
    }
    let forgotten = |member: &&Member| {
        !plan
            .forgotten
            .iter()
            .any(|set| set.name_any() == member.wanted.name_any())
    };
    let sets = plan.family.all().filter(forgotten).enumerate().map(|(index, member)| {
        let mut set = member.wanted.clone();
        set.metadata.uid = set.metadata.name.clone();
        set.metadata.creation_timestamp.get_or_insert_with(|| crate::workloads::samples::at(index as i64));
        let replicas = member.replicas();
        let available = available(&set).min(replicas);
        let status = json!({ "replicas": replicas, "availableReplicas": available, "readyReplicas": available, "terminatingReplicas": 0, "observedGeneration": 1 });
        set.status = serde_json::from_value(status).unwrap();
        Arc::new(set)
    });
    sets.collect()
}

fn sizes(sets: &[Arc<ReplicaSet>]) -> Vec<i32> {
    sets.iter()
        .map(|set| set.spec.as_ref().unwrap().replicas.unwrap())
        .collect()
}

/// Plans and lets it come true until nothing moves. Returns the sets and every step on the way.
fn settle(
    deployment: &mut Deployment,
    mut sets: Vec<Arc<ReplicaSet>>,
    available: impl Fn(&ReplicaSet) -> i32 + Copy,
) -> (Vec<Arc<ReplicaSet>>, Vec<Vec<i32>>) {
    let mut steps = Vec::new();
    for _ in 0..50 {
        let plan = plan(deployment, &sets, |_| false, now());
        let next = come_true(deployment, &plan, available);
        let moved = sizes(&next) != sizes(&sets);
        sets = next;
        if moved {
            steps.push(sizes(&sets));
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
fn rollout_goes_step_by_step() {
    let mut web = deployment(3, "web:1", json!({}));
    let (sets, steps) = settle(&mut web, Vec::new(), all);
    assert_eq!(steps, [[3]]);
    assert_eq!(
        progress(&web),
        ("True".into(), "NewReplicaSetAvailable".into())
    );
    assert_eq!(sets[0].annotations()[REVISION], "1");
    assert_eq!(web.annotations()[REVISION], "1");

    web.spec
        .as_mut()
        .unwrap()
        .template
        .spec
        .as_mut()
        .unwrap()
        .containers[0]
        .image = Some("web:2".into());
    let (sets, steps) = settle(&mut web, sets, all);
    assert_eq!(
        steps,
        [[2, 1], [2, 2], [0, 2], [0, 3]],
        "never fewer than two available, never more than four"
    );
    assert_eq!(sets[1].annotations()[REVISION], "2");
    let status = web.status.as_ref().unwrap();
    assert_eq!(status.replicas, Some(3));
    assert_eq!(status.updated_replicas, Some(3));
    assert_eq!(status.available_replicas, Some(3));

    web.spec
        .as_mut()
        .unwrap()
        .template
        .spec
        .as_mut()
        .unwrap()
        .containers[0]
        .image = Some("web:1".into());
    let (sets, _) = settle(&mut web, sets, all);
    let first = sets
        .iter()
        .find(|set| set.spec.as_ref().unwrap().replicas == Some(3))
        .unwrap();
    assert_eq!(
        first.annotations()[REVISION],
        "3",
        "rolled back to the first set, under a new number"
    );
    assert_eq!(
        first.annotations()["deployment.kubernetes.io/revision-history"],
        "1"
    );
    assert_eq!(sets.len(), 2);
}

#[test]
fn broken_template_stops_halfway_and_times_out() {
    let mut web = deployment(10, "web:1", json!({}));
    let (sets, _) = settle(&mut web, Vec::new(), all);
    web.spec
        .as_mut()
        .unwrap()
        .template
        .spec
        .as_mut()
        .unwrap()
        .containers[0]
        .image = Some("broken".into());
    let works = |set: &ReplicaSet| {
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
    let (sets, steps) = settle(&mut web, sets, works);
    assert_eq!(
        steps.last().unwrap(),
        &[9, 2],
        "nine stay available, eleven at most"
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
    assert_eq!(plan.next_look, None);
}

#[test]
fn deadline_is_looked_at_when_it_is_due() {
    let web = deployment(2, "web:1", json!({}));
    let plan = plan(&web, &[], |_| false, now());
    assert_eq!(plan.next_look, Some(Duration::from_secs(601)));
    let forever = deployment(2, "web:1", json!({ "progressDeadlineSeconds": i32::MAX }));
    assert_eq!(super::plan(&forever, &[], |_| false, now()).next_look, None);
}

#[test]
fn recreate_waits_for_every_old_pod() {
    let recreate = json!({ "strategy": { "type": "Recreate" } });
    let mut web = deployment(3, "web:1", recreate);
    let (sets, _) = settle(&mut web, Vec::new(), all);
    web.spec
        .as_mut()
        .unwrap()
        .template
        .spec
        .as_mut()
        .unwrap()
        .containers[0]
        .image = Some("web:2".into());
    let emptied = plan(&web, &sets, |_| true, now());
    assert!(emptied.family.new.is_none());
    let sets = come_true(&mut web, &emptied, all);
    assert_eq!(sizes(&sets), [0]);
    assert!(
        plan(&web, &sets, |_| true, now()).family.new.is_none(),
        "pods of the old set still end"
    );
    assert_eq!(
        plan(&web, &sets, |_| false, now())
            .family
            .new
            .unwrap()
            .replicas(),
        3
    );
}

#[test]
fn paused_deployment_is_resized_but_not_rolled_out() {
    let mut web = deployment(3, "web:1", json!({}));
    let (sets, _) = settle(&mut web, Vec::new(), all);
    let spec = web.spec.as_mut().unwrap();
    spec.paused = Some(true);
    spec.replicas = Some(5);
    spec.template.spec.as_mut().unwrap().containers[0].image = Some("web:2".into());
    let (sets, steps) = settle(&mut web, sets, all);
    assert_eq!(steps, [[5]]);
    assert_eq!(
        progress(&web),
        ("Unknown".into(), "DeploymentPaused".into())
    );
    web.spec.as_mut().unwrap().paused = None;
    let (sets, _) = settle(&mut web, sets, all);
    assert_eq!(sizes(&sets), [0, 5]);
}

#[test]
fn history_is_kept_to_its_limit() {
    let mut web = deployment(1, "web:0", json!({ "revisionHistoryLimit": 2 }));
    let mut sets = Vec::new();
    for version in 1..6 {
        web.spec
            .as_mut()
            .unwrap()
            .template
            .spec
            .as_mut()
            .unwrap()
            .containers[0]
            .image = Some(format!("web:{version}"));
        sets = settle(&mut web, sets, all).0;
    }
    let mut revisions: Vec<_> = sets
        .iter()
        .map(|set| set.annotations()[REVISION].as_str())
        .collect();
    revisions.sort_unstable();
    assert_eq!(revisions, ["3", "4", "5"]);
}

#[test]
fn deployment_on_its_way_out_only_counts() {
    let mut web = deployment(3, "web:1", json!({}));
    let (sets, _) = settle(&mut web, Vec::new(), all);
    web.metadata.deletion_timestamp = Some(crate::workloads::samples::at(1));
    web.spec.as_mut().unwrap().replicas = Some(7);
    let plan = plan(&web, &sets, |_| false, now());
    assert_eq!(plan.family.new.unwrap().replicas(), 3);
    assert_eq!(plan.status.available_replicas, Some(3));
}
