//! Tests of the workload strategies, with recorded responses of kube-apiserver.

use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::*;
use crate::kinds::{
    Strategy,
    pod::testing::{created, object, refusals, update_refusals},
};

/// A workload `web` with this spec.
fn workload(spec: Value) -> Object {
    object(json!({"metadata": {"name": "web"}, "spec": spec}))
}

/// A template with these labels and these fields next to one valid container.
fn template(labels: Value, own: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "a", "image": "a:1"}]});
    merge(&mut spec, own);
    json!({"metadata": {"labels": labels}, "spec": spec})
}

fn merge(into: &mut Value, own: Value) {
    into.as_object_mut()
        .expect("an object")
        .extend(own.as_object().cloned().expect("an object"));
}

/// A spec with a fitting selector and template next to these fields.
fn web(own: Value) -> Object {
    let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template(json!({"app": "web"}), json!({}))});
    merge(&mut spec, own);
    workload(spec)
}

/// A job spec with these fields.
fn job(own: Value) -> Object {
    let mut spec = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a:1"}]}}});
    merge(&mut spec, own);
    workload(spec)
}

/// A CronJob spec with these fields.
fn cron(own: Value) -> Object {
    let mut spec = json!({"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "a", "image": "a:1"}]}}}}});
    merge(&mut spec, own);
    workload(spec)
}

fn check(strategy: &Strategy, object: &Object, expected: &[&str]) {
    assert_eq!(refusals(strategy, object), expected);
}

/// The stored spec without selector and template.
fn stored(strategy: &Strategy, object: &Object) -> Value {
    let mut spec = created(strategy, object).body["spec"].clone();
    let map = spec.as_object_mut().expect("an object");
    map.retain(|k, _| !matches!(k.as_str(), "selector" | "template" | "jobTemplate"));
    spec
}

#[test]
fn workloads_are_stored_with_their_defaults() {
    assert_eq!(
        stored(
            &DEPLOYMENT,
            &web(json!({"strategy": {"rollingUpdate": {"maxSurge": 0}}}))
        ),
        json!({"replicas": 1, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": 0}},
            "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600})
    );
    assert_eq!(
        stored(&DEPLOYMENT, &web(json!({"strategy": {"type": "Recreate"}})))["strategy"],
        json!({"type": "Recreate"})
    );
    assert_eq!(
        stored(
            &STATEFUL_SET,
            &web(
                json!({"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}, "volumeClaimTemplates": [
            {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]})
            )
        ),
        json!({"replicas": 1, "serviceName": "", "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"},
            "volumeClaimTemplates": [{"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeMode": "Filesystem"},
                "status": {"phase": "Pending"}}]})
    );
    let daemons = created(&DAEMON_SET, &web(json!({})));
    assert_eq!(
        daemons.meta.annotations["deprecated.daemonset.template.generation"],
        "1"
    );
    assert_eq!(
        daemons.body["spec"]["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}})
    );
    assert_eq!(
        daemons.body["status"],
        json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0})
    );
    assert_eq!(
        stored(&CRON_JOB, &cron(json!({"successfulJobsHistoryLimit": 0}))),
        json!({"schedule": "0 0 * * *", "concurrencyPolicy": "Allow", "suspend": false, "successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 1})
    );
}

#[test]
fn controller_takes_selector_and_labels_from_its_template() {
    let controller = created(
        &REPLICATION_CONTROLLER,
        &workload(json!({"template": template(json!({"app": "web", "tier": "front"}), json!({}))})),
    );
    assert_eq!(
        controller.body["spec"]["selector"],
        json!({"app": "web", "tier": "front"})
    );
    assert_eq!(controller.meta.labels["tier"], "front");
    assert_eq!(controller.body["status"], json!({"replicas": 0}));
}

#[test]
fn job_gets_selector_labels_and_defaults() {
    let marks = json!({"batch.kubernetes.io/controller-uid": "u-1", "batch.kubernetes.io/job-name": "web", "controller-uid": "u-1", "job-name": "web"});
    let once = created(&JOB, &job(json!({})));
    assert_eq!(
        once.body["spec"]["selector"],
        json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}})
    );
    assert_eq!(once.body["spec"]["template"]["metadata"]["labels"], marks);
    assert_eq!(
        serde_json::to_value(&once.meta.labels).expect("strings"),
        marks
    );
    assert_eq!(
        stored(&JOB, &job(json!({}))),
        json!({"parallelism": 1, "completions": 1, "backoffLimit": 6, "manualSelector": false, "completionMode": "NonIndexed", "suspend": false,
            "podReplacementPolicy": "TerminatingOrFailed"})
    );
    assert_eq!(
        stored(&JOB, &job(json!({"parallelism": 3}))).get("completions"),
        None
    );
    let indexed = stored(
        &JOB,
        &job(
            json!({"completionMode": "Indexed", "completions": 4, "backoffLimitPerIndex": 1, "podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}),
        ),
    );
    assert_eq!(&indexed["backoffLimit"], &json!(2_147_483_647));
    assert_eq!(&indexed["podReplacementPolicy"], &json!("Failed"));
    assert_eq!(
        indexed["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"],
        "True"
    );
}

#[test]
fn selectors_must_be_there_and_fit_the_template() {
    let other = template(json!({"app": "other"}), json!({}));
    const UNFIT: &str = "spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`";
    check(
        &DEPLOYMENT,
        &workload(json!({ "template": other })),
        &["spec.selector: Required value", UNFIT],
    );
    check(&DEPLOYMENT, &web(json!({ "template": other })), &[UNFIT]);
    check(&REPLICA_SET, &web(json!({ "template": other })), &[UNFIT]);
    check(
        &DEPLOYMENT,
        &web(json!({"selector": {}})),
        &["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    );
    check(
        &DEPLOYMENT,
        &web(
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Is", "values": ["web"]}]}}),
        ),
        &[
            "spec.selector.matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator",
            "spec.selector: Invalid value: {\"matchExpressions\":[{\"key\":\"app\",\"operator\":\"Is\",\"values\":[\"web\"]}]}: invalid label selector",
        ],
    );
    check(
        &REPLICATION_CONTROLLER,
        &workload(json!({"replicas": -1, "selector": {"app": "a"}, "template": other})),
        &[
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            UNFIT,
        ],
    );
    check(
        &REPLICATION_CONTROLLER,
        &workload(json!({"selector": {"app": "a"}})),
        &["spec.template: Required value"],
    );
    check(
        &JOB,
        &job(
            json!({"selector": {"matchLabels": {"a": "b"}}, "template": template(json!({"a": "b"}), json!({"restartPolicy": "Never"}))}),
        ),
        &[
            "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"batch.kubernetes.io/controller-uid\":\"u-1\"}}: `selector` not auto-generated",
        ],
    );
}

#[test]
fn numbers_and_strategies_are_refused_as_recorded() {
    check(
        &DEPLOYMENT,
        &web(
            json!({"replicas": -1, "minReadySeconds": -1, "revisionHistoryLimit": -1, "progressDeadlineSeconds": 0}),
        ),
        &[
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
            "spec.revisionHistoryLimit: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    let rolling = |surge: Value, unavailable: Value| {
        web(
            json!({"strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}),
        )
    };
    const AT: &str = "spec.strategy.rollingUpdate";
    check(
        &DEPLOYMENT,
        &rolling(json!(0), json!(0)),
        &[&format!(
            "{AT}.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"
        )],
    );
    check(
        &DEPLOYMENT,
        &rolling(json!(-1), json!("101%")),
        &[
            &format!("{AT}.maxSurge: Invalid value: -1: must be greater than or equal to 0"),
            &format!("{AT}.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"),
        ],
    );
    check(
        &DEPLOYMENT,
        &rolling(json!(20), json!("20")),
        &[&format!(
            "{AT}.maxUnavailable: Invalid value: \"20\": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
        )],
    );
    check(
        &DEPLOYMENT,
        &web(json!({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}})),
        &[
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
        ],
    );
    check(
        &DEPLOYMENT,
        &web(json!({"strategy": {"type": "BlueGreen"}})),
        &[
            "spec.strategy: Unsupported value: {\"Type\":\"BlueGreen\",\"RollingUpdate\":null}: supported values: \"Recreate\", \"RollingUpdate\"",
        ],
    );
    check(
        &STATEFUL_SET,
        &web(json!({"podManagementPolicy": "Random", "updateStrategy": {"type": "Rolling"}})),
        &[
            "spec.podManagementPolicy: Invalid value: \"Random\": must be 'OrderedReady' or 'Parallel'",
            "spec.updateStrategy: Invalid value: {\"Type\":\"Rolling\",\"RollingUpdate\":null}: must be 'RollingUpdate' or 'OnDelete'",
        ],
    );
    check(
        &STATEFUL_SET,
        &web(
            json!({"replicas": -2, "updateStrategy": {"rollingUpdate": {"partition": -1}}, "ordinals": {"start": -1},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Keep", "whenScaled": "Delete"}, "template": template(json!({"app": "x"}), json!({}))}),
        ),
        &[
            "spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0",
            "spec.persistentVolumeClaimRetentionPolicy.whenDeleted: Unsupported value: \"Keep\": supported values: \"Retain\", \"Delete\"",
            "spec.replicas: Invalid value: -2: must be greater than or equal to 0",
            "spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0",
            "spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`",
        ],
    );
    let daemons = |unavailable: i64, surge: i64| {
        web(
            json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}}),
        )
    };
    check(
        &DAEMON_SET,
        &daemons(0, 0),
        &[
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0",
        ],
    );
    check(
        &DAEMON_SET,
        &daemons(1, 1),
        &[
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
        ],
    );
}

#[test]
fn templates_are_validated_at_their_path() {
    let ending = |policy: &str| {
        web(
            json!({"template": template(json!({"app": "web"}), json!({ "restartPolicy": policy }))}),
        )
    };
    check(
        &DEPLOYMENT,
        &ending("Never"),
        &[
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ],
    );
    check(
        &DAEMON_SET,
        &ending("OnFailure"),
        &[
            "spec.template.spec.restartPolicy: Unsupported value: \"OnFailure\": supported values: \"Always\"",
        ],
    );
    check(
        &REPLICA_SET,
        &web(
            json!({"template": template(json!({"app": "web"}), json!({"restartPolicy": "Never", "activeDeadlineSeconds": 5}))}),
        ),
        &[
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
        ],
    );
    check(
        &DEPLOYMENT,
        &web(
            json!({"template": template(json!({"app": "web"}), json!({"containers": [{"name": "a", "image": "a",
            "volumeMounts": [{"name": "cfg", "mountPath": "/c"}], "ports": [{"containerPort": 99999}]}, {"name": "a"}]}))}),
        ),
        &[
            "spec.template.spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive",
            "spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"cfg\"",
            "spec.template.spec.containers[1].image: Required value",
            "spec.template.spec.containers[1].name: Duplicate value: \"a\"",
        ],
    );
    check(
        &CRON_JOB,
        &cron(
            json!({"jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Always", "containers": []}}}}}),
        ),
        &[
            "spec.jobTemplate.spec.template.spec.containers: Required value",
            "spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ],
    );
    check(
        &POD_TEMPLATE,
        &object(json!({"template": {"spec": {"containers": []}}})),
        &["template.spec.containers: Required value"],
    );
    check(
        &CONTROLLER_REVISION,
        &object(json!({"revision": -1})),
        &[
            "revision: Invalid value: -1: must be greater than or equal to 0",
            "data: Required value: data is mandatory",
        ],
    );
}

#[test]
fn jobs_are_refused_as_recorded() {
    check(
        &JOB,
        &job(
            json!({"parallelism": -1, "completions": -1, "backoffLimit": -1, "activeDeadlineSeconds": -1, "ttlSecondsAfterFinished": -1}),
        ),
        &[
            "spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
            "spec.completions: Invalid value: -1: must be greater than or equal to 0",
            "spec.activeDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
            "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0",
            "spec.ttlSecondsAfterFinished: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    check(
        &JOB,
        &job(json!({"completionMode": "Indexed", "parallelism": 2})),
        &["spec.completions: Required value: when completion mode is Indexed"],
    );
    check(
        &JOB,
        &job(json!({"completionMode": "Ordered", "backoffLimitPerIndex": 1})),
        &[
            "spec.completionMode: Unsupported value: \"Ordered\": supported values: \"NonIndexed\", \"Indexed\"",
        ],
    );
    check(
        &JOB,
        &job(
            json!({"podFailurePolicy": {"rules": [{"action": "Restart", "onExitCodes": {"operator": "In", "values": [0, 3, 3]}}, {"action": "Ignore"}]},
            "template": {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "a", "image": "a"}]}}}),
        ),
        &[
            "spec.podFailurePolicy.rules[0].action: Unsupported value: \"Restart\": supported values: \"Count\", \"FailIndex\", \"FailJob\", \"Ignore\"",
            "spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator",
            "spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Duplicate value: 3",
            "spec.podFailurePolicy.rules[1]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
            "spec.template.spec.restartPolicy: Invalid value: \"OnFailure\": only \"Never\" is supported when podFailurePolicy is specified",
        ],
    );
}

#[test]
fn cron_jobs_are_refused_as_recorded() {
    check(
        &CRON_JOB,
        &cron(json!({"schedule": ""})),
        &["spec.schedule: Required value"],
    );
    check(
        &CRON_JOB,
        &cron(json!({"schedule": "* * * *", "concurrencyPolicy": "Queue"})),
        &[
            "spec.schedule: Invalid value: \"* * * *\": expected exactly 5 fields, found 4: [* * * *]",
            "spec.concurrencyPolicy: Unsupported value: \"Queue\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
        ],
    );
    check(
        &CRON_JOB,
        &cron(json!({"timeZone": "Mars/Olympus", "startingDeadlineSeconds": -1})),
        &[
            "spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
            "spec.timeZone: Invalid value: \"Mars/Olympus\": unknown time zone Mars/Olympus",
        ],
    );
    check(
        &CRON_JOB,
        &cron(json!({"schedule": "TZ=UTC 0 0 * * *"})),
        &[
            "spec.schedule: Invalid value: \"TZ=UTC 0 0 * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        ],
    );
    check(&CRON_JOB, &cron(json!({"timeZone": "Europe/Berlin"})), &[]);
    let mut long = cron(json!({}));
    long.meta.name = "x".repeat(53);
    check(
        &CRON_JOB,
        &long,
        &[&format!(
            "metadata.name: Invalid value: \"{}\": must be no more than 52 characters",
            long.meta.name
        )],
    );
}

/// The errors of an update with this merged into the spec.
fn change(strategy: &Strategy, old: &Object, own: Value) -> Vec<String> {
    update_refusals(strategy, old, |new| {
        merge(new.body.get_mut("spec").expect("a spec"), own)
    })
}

#[test]
fn immutable_fields_of_workloads_cannot_change() {
    let both = json!({"matchLabels": {"app": "web", "tier": "front"}});
    let old = web(json!({"template": template(json!({"app": "web", "tier": "front"}), json!({}))}));
    const FIXED: &str = "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"web\",\"tier\":\"front\"}}: field is immutable";
    for strategy in [&DEPLOYMENT, &REPLICA_SET, &DAEMON_SET] {
        assert_eq!(
            change(
                strategy,
                &created(strategy, &old),
                json!({ "selector": both })
            ),
            [FIXED]
        );
        assert_eq!(
            change(
                strategy,
                &created(strategy, &old),
                json!({"minReadySeconds": 3})
            ),
            [""; 0]
        );
    }
    const SET: &str = "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
    let set = created(&STATEFUL_SET, &web(json!({"serviceName": "db"})));
    assert_eq!(
        change(&STATEFUL_SET, &set, json!({"serviceName": "other"})),
        [SET]
    );
    assert_eq!(
        change(
            &STATEFUL_SET,
            &set,
            json!({"replicas": 4, "minReadySeconds": 2, "ordinals": {"start": 1}})
        ),
        [""; 0]
    );
    let revision = created(
        &CONTROLLER_REVISION,
        &object(json!({"revision": 1, "data": {"a": 1}})),
    );
    assert_eq!(
        update_refusals(&CONTROLLER_REVISION, &revision, |new| {
            new.body.insert("data".into(), json!({"a": 2}));
        }),
        ["data: Invalid value: {\"a\":2}: field is immutable"]
    );
}

#[test]
fn changed_template_counts_in_a_daemon_set() {
    let old = created(&DAEMON_SET, &web(json!({})));
    let mut new = old.clone();
    new.body["spec"]["template"]["spec"]["containers"][0]["image"] = json!("a:2");
    new.meta.annotations.clear();
    (DAEMON_SET.prepare_update)(&mut new, &old);
    assert_eq!(
        new.meta.annotations["deprecated.daemonset.template.generation"],
        "2"
    );
}

#[test]
fn job_changes_only_where_it_may() {
    let old = created(&JOB, &job(json!({"completions": 2})));
    assert_eq!(
        change(&JOB, &old, json!({"completions": 3})),
        ["spec.completions: Invalid value: 3: field is immutable"]
    );
    assert_eq!(
        change(
            &JOB,
            &old,
            json!({"completionMode": "Indexed", "backoffLimitPerIndex": 1})
        ),
        [
            "spec.completionMode: Invalid value: \"Indexed\": field is immutable",
            "spec.backoffLimitPerIndex: Invalid value: 1: field is immutable"
        ]
    );
    assert_eq!(
        change(
            &JOB,
            &old,
            json!({"parallelism": 2, "suspend": true, "backoffLimit": 3, "activeDeadlineSeconds": 60})
        ),
        [""; 0]
    );
    let steer = |old: &Object, image: &str| {
        update_refusals(&JOB, old, |new| {
            let template = &mut new.body["spec"]["template"];
            template["metadata"]["labels"]["queue"] = json!("fast");
            template["spec"]["nodeSelector"] = json!({"disk": "ssd"});
            template["spec"]["containers"][0]["image"] = json!(image);
        })
        .into_iter()
        .map(|e| e.split(": ").next().unwrap_or_default().to_owned())
        .collect::<Vec<_>>()
    };
    let waiting = created(&JOB, &job(json!({"suspend": true})));
    assert_eq!(steer(&waiting, "a:1"), [""; 0]);
    assert_eq!(steer(&waiting, "a:2"), ["spec.template.spec"]);
    assert_eq!(steer(&old, "a:1"), ["spec.template"]);
}

#[test]
fn status_of_a_workload_must_add_up() {
    let refused = |strategy: &Strategy, workload: Object, old: Value, new: Value| {
        let stored = created(strategy, &workload);
        let with = |status: Value| {
            let mut object = stored.clone();
            object.body.insert("status".into(), status);
            object
        };
        let mut out = Vec::new();
        (strategy.validate_status)(&with(new), &with(old), &mut out);
        out.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        refused(
            &DEPLOYMENT,
            web(json!({})),
            json!({}),
            json!({"replicas": 1, "readyReplicas": 3})
        ),
        ["status.readyReplicas: Invalid value: 3: cannot be greater than status.replicas"]
    );
    assert_eq!(
        refused(
            &DAEMON_SET,
            web(json!({})),
            json!({"collisionCount": 2}),
            json!({"numberReady": -1, "collisionCount": 1})
        ),
        [
            "status.numberReady: Invalid value: -1: must be greater than or equal to 0",
            "status.collisionCount: Invalid value: 1: cannot be decremented",
        ]
    );
    let done = json!({"startTime": "2024-05-01T10:00:00Z", "completionTime": "2024-05-01T10:00:01Z", "succeeded": 1,
        "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}]});
    assert_eq!(
        refused(
            &JOB,
            job(json!({})),
            json!({"startTime": "2024-05-01T10:00:00Z"}),
            done.clone()
        ),
        [""; 0]
    );
    assert_eq!(
        refused(
            &JOB,
            job(json!({})),
            json!({}),
            json!({"conditions": [{"type": "Failed", "status": "True"}], "active": 1})
        ),
        [
            "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
            "status.startTime: Required value: startTime is required for finished job",
            "status.active: Invalid value: 1: active>0 is invalid for finished job",
        ]
    );
    assert_eq!(
        refused(
            &JOB,
            job(json!({})),
            done,
            json!({"startTime": "2024-05-01T10:00:00Z", "succeeded": 1})
        ),
        [
            "status.conditions: Invalid value: cannot disable the terminal Complete=True condition",
            "status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition",
        ]
    );
}
