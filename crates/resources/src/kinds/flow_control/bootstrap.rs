//! The PriorityLevelConfigurations and FlowSchemas of a new cluster. Mirrors
//! `apis/flowcontrol/bootstrap`.

use bellerophon_apimachinery::{
    json_ext::{JsonDefaults as _, JsonExt as _},
    time::Time,
};
use bellerophon_codec::object::Object;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The condition that states whether the level of a FlowSchema is missing.
pub const DANGLING: &str = "Dangling";
const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
/// Set on objects whose spec the server maintains.
pub const AUTO_UPDATE_ANNOTATION: &str = "apf.kubernetes.io/autoupdate-spec";
const QUEUE_LENGTH: u32 = 50;

/// A priority level: its shares, how much of them it lends, and its queues and hand size (none:
/// requests are rejected).
struct Level(&'static str, u32, u32, Option<(u32, u32)>);

const LEVELS: [Level; 7] = [
    Level("catch-all", 5, 0, None),
    Level("system", 30, 33, Some((64, 6))),
    Level("node-high", 40, 25, Some((64, 6))),
    Level("leader-election", 10, 0, Some((16, 4))),
    Level("workload-high", 40, 50, Some((128, 6))),
    Level("workload-low", 100, 90, Some((128, 6))),
    Level("global-default", 20, 50, Some((128, 6))),
];

/// The rules of a flow schema.
enum Matches {
    /// Every request of its subjects.
    Everything,
    /// The health checks.
    Probes,
    /// These verbs on these resources of these groups; cluster-scoped ones only where `true`.
    Resources(&'static [(&'static str, &'static str, &'static str, bool)]),
}

/// A flow schema: name, level, precedence, flow distinguisher, subjects, rules.
struct Schema(
    &'static str,
    &'static str,
    u32,
    &'static str,
    &'static str,
    Matches,
);

const ALL_USERS: &str = "group system:unauthenticated, group system:authenticated";

const SCHEMAS: [Schema; 11] = [
    Schema(
        "exempt",
        "exempt",
        1,
        "",
        "group system:masters",
        Matches::Everything,
    ),
    Schema("probes", "exempt", 2, "", ALL_USERS, Matches::Probes),
    Schema(
        "system-leader-election",
        "leader-election",
        100,
        "ByUser",
        "user system:kube-controller-manager, user system:kube-scheduler, account kube-system/*",
        Matches::Resources(&[("get create update", "coordination.k8s.io", "leases", false)]),
    ),
    Schema(
        "system-node-high",
        "node-high",
        400,
        "ByUser",
        "group system:nodes",
        Matches::Resources(&[
            ("*", "", "nodes nodes/status", true),
            ("*", "coordination.k8s.io", "leases", false),
        ]),
    ),
    Schema(
        "system-nodes",
        "system",
        500,
        "ByUser",
        "group system:nodes",
        Matches::Everything,
    ),
    Schema(
        "kube-controller-manager",
        "workload-high",
        800,
        "ByNamespace",
        "user system:kube-controller-manager",
        Matches::Everything,
    ),
    Schema(
        "kube-scheduler",
        "workload-high",
        800,
        "ByNamespace",
        "user system:kube-scheduler",
        Matches::Everything,
    ),
    Schema(
        "kube-system-service-accounts",
        "workload-high",
        900,
        "ByNamespace",
        "account kube-system/*",
        Matches::Everything,
    ),
    Schema(
        "service-accounts",
        "workload-low",
        9000,
        "ByUser",
        "group system:serviceaccounts",
        Matches::Everything,
    ),
    Schema(
        "global-default",
        "global-default",
        9900,
        "ByUser",
        ALL_USERS,
        Matches::Everything,
    ),
    Schema(
        "catch-all",
        "catch-all",
        10_000,
        "ByUser",
        ALL_USERS,
        Matches::Everything,
    ),
];

/// The levels, then the schemas that refer to them.
pub fn default_objects(now: Time) -> Vec<Object> {
    let exempt =
        json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let levels = LEVELS.iter().map(|level| (level.0, limited(level)));
    let levels = std::iter::once(("exempt", exempt))
        .chain(levels)
        .map(|(name, spec)| {
            Object::named(
                API_VERSION,
                "PriorityLevelConfiguration",
                name,
                json!({"spec": spec, "status": {}}),
            )
        });
    let schemas = SCHEMAS.iter().map(|schema| {
        let body = json!({"spec": spec(schema), "status": {"conditions": [dangling(schema.1, true, now)]}});
        Object::named(API_VERSION, "FlowSchema", schema.0, body)
    });
    levels
        .chain(schemas)
        .map(|o| {
            o.annotated(AUTO_UPDATE_ANNOTATION, "true")
                .first_generation()
        })
        .collect()
}

/// The mandatory objects of flow control, without a uid and with a fixed time.
pub fn mandatory_objects() -> impl Iterator<Item = Object> {
    default_objects(Time::from_timestamp(Timestamp::UNIX_EPOCH))
        .into_iter()
        .filter(|object| ["exempt", "catch-all"].contains(&object.meta.name.as_str()))
}

/// Whether specs are equal; seats of the exempt level are free to choose.
pub fn equal_specs(name: &str, wanted: &Value, found: &Value) -> bool {
    let mut wanted = wanted.clone();
    if name == "exempt"
        && let (Some(free), Some(exempt)) = (
            found.get_set("exempt"),
            wanted
                .as_object_mut()
                .and_then(|spec| spec.map_mut("exempt")),
        )
    {
        exempt.take_over("nominalConcurrencyShares", free);
        exempt.take_over("lendablePercent", free);
    }
    wanted == *found
}

/// The condition of a FlowSchema. Mirrors `presyncFlowSchemaStatus`.
pub fn dangling(level: &str, found: bool, now: Time) -> Value {
    let (status, reason, end) = if found {
        ("False", "Found", "and it exists")
    } else {
        ("True", "NotFound", "but there is no such object")
    };
    let object = "the PriorityLevelConfiguration object named";
    json!({
        "type": DANGLING,
        "status": status,
        "lastTransitionTime": now,
        "reason": reason,
        "message": format!("This FlowSchema references {object} {level:?} {end}"),
    })
}

fn limited(&Level(_, shares, lends, queues): &Level) -> Value {
    let response = match queues {
        None => json!({"type": "Reject"}),
        Some((queues, hand)) => {
            json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": QUEUE_LENGTH}})
        }
    };
    json!({"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "lendablePercent": lends, "limitResponse": response}})
}

fn spec(Schema(_, level, precedence, distinguisher, subjects, matches): &Schema) -> Value {
    let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
    let resources = |(verbs, group, resources, cluster): &(
        &'static str,
        &str,
        &'static str,
        bool,
    )| {
        let mut rule = json!({"verbs": words(verbs), "apiGroups": [group], "resources": words(resources), "namespaces": ["*"]});
        if *cluster {
            rule["clusterScope"] = true.into();
        }
        rule
    };
    let paths = |verbs: &'static str, urls: &'static str| json!([{"verbs": words(verbs), "nonResourceURLs": words(urls)}]);
    let mut rule = Map::from_iter([(
        "subjects".to_owned(),
        subjects.split(", ").map(subject).collect::<Value>(),
    )]);
    let mut matching = |key: &str, value: Value| rule.insert(key.to_owned(), value);
    match matches {
        Matches::Everything => {
            matching("resourceRules", json!([resources(&("*", "*", "*", true))]));
            matching("nonResourceRules", paths("*", "*"));
        }
        Matches::Probes => {
            matching("nonResourceRules", paths("get", "/healthz /readyz /livez"));
        }
        Matches::Resources(rows) => {
            matching("resourceRules", rows.iter().map(resources).collect());
        }
    }
    let mut spec = json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule]});
    if !distinguisher.is_empty() {
        spec["distinguisherMethod"] = json!({ "type": distinguisher });
    }
    spec
}

fn subject(text: &str) -> Value {
    match text.split_once(' ') {
        Some(("user", name)) => json!({"kind": "User", "user": {"name": name}}),
        Some(("account", place)) => {
            let (namespace, name) = place.split_once('/').unwrap_or(("", place));
            json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}})
        }
        Some((_, name)) => json!({"kind": "Group", "group": {"name": name}}),
        None => Value::Null,
    }
}
