//! Events: one stored form, served in two groups.
//! In: events of the core group or of events.k8s.io. Out: the core form, and back.
//! Guarantees: an event written in one group reads the same in both; events.k8s.io requires more
//! fields.
//! Mirrors `ValidateEventCreate` and `ValidateEventUpdate` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonExt, same},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{StoredAs, Strategy, validation};

/// The strategy of Events of the core group. Mirrors `pkg/registry/core/event`.
pub const EVENT: Strategy = Strategy {
    is_banned_owner: true,
    default: |event| complete(&mut event.body, CORE_ZEROS),
    validate: |event, out| validate_any(event, "reportingComponent", out),
    name: |_| Vec::new(),
    create_on_update: true,
    ..Strategy::PLAIN
};

/// The strategy of Events of the group `events.k8s.io`. Mirrors `pkg/registry/core/event`.
pub const EVENTS_EVENT: Strategy = Strategy {
    is_banned_owner: false,
    default: |event| complete(&mut event.body, NEWER_ZEROS),
    validate: |event, out| validate_any(event, "reportingController", out),
    validate_create: validate_newer,
    validate_update: same_but_series,
    name: names::dns_subdomain,
    ..EVENT
};

/// Events of `events.k8s.io` are stored as those of the core group.
pub const STORED_AS_CORE: StoredAs = StoredAs {
    group: "",
    version: "v1",
    plural: "events",
    to_storage,
    from_storage,
};

/// Fields that are written even when they are empty.
type Zeros = &'static [(&'static str, Zero)];

#[derive(Clone, Copy)]
enum Zero {
    Null,
    Map,
    Text,
}

const CORE_ZEROS: Zeros = &[
    ("involvedObject", Zero::Map),
    ("source", Zero::Map),
    ("firstTimestamp", Zero::Null),
    ("lastTimestamp", Zero::Null),
    ("eventTime", Zero::Null),
    ("reportingComponent", Zero::Text),
    ("reportingInstance", Zero::Text),
];

const NEWER_ZEROS: Zeros = &[
    ("regarding", Zero::Map),
    ("deprecatedSource", Zero::Map),
    ("deprecatedFirstTimestamp", Zero::Null),
    ("deprecatedLastTimestamp", Zero::Null),
    ("eventTime", Zero::Null),
];

fn complete(body: &mut Map<String, Value>, zeros: Zeros) {
    for (name, zero) in zeros {
        body.entry(*name).or_insert_with(|| match zero {
            Zero::Null => Value::Null,
            Zero::Map => json!({}),
            Zero::Text => json!(""),
        });
    }
}

/// Names in the core group and in events.k8s.io; all other fields are called the same.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn to_storage(event: &mut Object) {
    for (core, newer) in RENAMED {
        if let Some(value) = event.body.remove(*newer) {
            event.body.insert((*core).into(), value);
        }
    }
    complete(&mut event.body, CORE_ZEROS);
    event.api_version = "v1".into();
}

fn from_storage(event: &mut Object) {
    for (core, newer) in RENAMED {
        if let Some(value) = event.body.remove(*core) {
            event.body.insert((*newer).into(), value);
        }
    }
    for name in ["reportingController", "reportingInstance"] {
        if event.body.text(name).is_empty() {
            event.body.remove(name);
        }
    }
    complete(&mut event.body, NEWER_ZEROS);
    event.api_version = "events.k8s.io/v1".into();
}

const INSTANCE_MAX: usize = 128;
const ACTION_MAX: usize = 128;
const REASON_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

fn validate_any(event: &Object, controller_name: &str, out: &mut Vec<FieldError>) {
    let body = &event.body;
    if body.get_set("eventTime").is_none() {
        about_same_namespace(event, out);
    } else {
        if body.field("involvedObject").text("namespace").is_empty()
            && !["default", "kube-system"].contains(&event.meta.namespace.as_str())
        {
            out.push(FieldError::invalid(
                "involvedObject.namespace",
                "",
                "does not match event.namespace",
            ));
        }
        complete_report(event, controller_name, out);
    }
    validation::named(
        &Path::field("namespace"),
        &event.meta.namespace,
        names::dns_subdomain(&event.meta.namespace),
        out,
    );
}

fn about_same_namespace(event: &Object, out: &mut Vec<FieldError>) {
    let about = event.body.field("involvedObject").text("namespace");
    let own = event.meta.namespace.as_str();
    let fits = if about.is_empty() {
        ["", "default"].contains(&own)
    } else {
        about == own
    };
    if !fits {
        out.push(FieldError::invalid(
            "involvedObject.namespace",
            about,
            "does not match event.namespace",
        ));
    }
}

fn complete_report(event: &Object, controller_name: &str, out: &mut Vec<FieldError>) {
    let body = &event.body;
    let controller = Path::field(controller_name);
    validation::required(&controller, body.text("reportingComponent"), out);
    validation::named(
        &controller,
        body.text("reportingComponent"),
        names::qualified_name(body.text("reportingComponent")),
        out,
    );
    for (name, max) in [
        ("reportingInstance", INSTANCE_MAX),
        ("action", ACTION_MAX),
        ("reason", REASON_MAX),
    ] {
        validation::required(&Path::field(name), body.text(name), out);
        at_most(name, body.text(name), max, out);
    }
    at_most("message", body.text("message"), NOTE_MAX, out);
}

fn at_most(name: &str, text: &str, max: usize, out: &mut Vec<FieldError>) {
    if text.len() > max {
        out.push(FieldError::invalid(
            name,
            "",
            &format!("can have at most {max} characters"),
        ));
    }
}

/// What only events.k8s.io requires, and only of new events: those of the core group may be updated
/// through it unchanged.
fn validate_newer(event: &Object, out: &mut Vec<FieldError>) {
    let body = &event.body;
    series(body.field("series"), out);
    if body.get_set("eventTime").is_none() {
        out.push(FieldError::required("eventTime", ""));
    }
    let kind = body.text("type");
    if !["Normal", "Warning"].contains(&kind) {
        out.push(FieldError::invalid(
            "type",
            "",
            &format!("has invalid value: {kind}"),
        ));
    }
    for name in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let unset = body.is_empty_at(name) || body.int(name) == Some(0);
        if !unset {
            out.push(FieldError::invalid(name, "", "needs to be unset"));
        }
    }
}

fn series(series: &Value, out: &mut Vec<FieldError>) {
    if series.is_null() {
        return;
    }
    if series.int("count").unwrap_or_default() < 2 {
        out.push(FieldError::invalid(
            "series.count",
            "",
            "should be at least 2",
        ));
    }
    if series.get_set("lastObservedTime").is_none() {
        out.push(FieldError::required("series.lastObservedTime", ""));
    }
}

fn same_but_series(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    const FIXED: &[(&str, &str)] = &[
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        // Kubernetes validates it twice.
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    if !same(new.body.field("series"), old.body.field("series")) {
        series(new.body.field("series"), out);
    }
    for (name, shown) in FIXED {
        let at = Path::field(shown);
        let new = new.body.field(name);
        let old = old.body.field(name);
        match *name {
            "involvedObject" | "related" => {
                validation::immutable_struct(&at, "core.ObjectReference", new, old, out)
            }
            "source" => validation::immutable_struct(&at, "core.EventSource", new, old, out),
            _ => validation::immutable(&at, new, old, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, object, refused};

    fn core() -> Value {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a", "namespace": "n"}, "involvedObject": {"kind": "Pod", "namespace": "n"}, "reason": "Started",
            "message": "hello", "source": {"component": "kubelet"}, "firstTimestamp": "2024-05-01T10:00:00Z", "lastTimestamp": null, "count": 1, "type": "Normal",
            "eventTime": null, "reportingComponent": "", "reportingInstance": ""})
    }

    #[test]
    fn event_reads_the_same_in_both_groups() {
        let mut event = object(core());
        from_storage(&mut event);
        assert_eq!(
            Value::Object(event.body.clone()),
            json!({"regarding": {"kind": "Pod", "namespace": "n"}, "reason": "Started", "note": "hello", "deprecatedSource": {"component": "kubelet"},
                "deprecatedFirstTimestamp": "2024-05-01T10:00:00Z", "deprecatedLastTimestamp": null, "deprecatedCount": 1, "type": "Normal", "eventTime": null})
        );
        to_storage(&mut event);
        assert_eq!(event.to_value(), core());
    }

    #[test]
    fn core_event_needs_little() {
        let (event, errors) = create(
            &EVENT,
            json!({"metadata": {"name": "min", "namespace": "n"}, "involvedObject": {"namespace": "n"}}),
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(event.body["source"], json!({}));
        refused(
            &EVENT,
            json!({"metadata": {"namespace": "n"}, "involvedObject": {"namespace": "m"}}),
            &["involvedObject.namespace: Invalid value: \"m\": does not match event.namespace"],
        );
    }

    #[test]
    fn newer_group_requires_more_fields() {
        let base = json!({"metadata": {"name": "a", "namespace": "n"}, "involvedObject": {"namespace": "n"}, "type": "Normal"});
        refused(&EVENTS_EVENT, base.clone(), &["eventTime: Required value"]);
        let mut timed = base;
        timed["eventTime"] = json!("2024-05-01T10:00:00.123456Z");
        refused(
            &EVENTS_EVENT,
            timed,
            &[
                "reportingController: Required value",
                "reportingController: Invalid value: \"\": name part must be non-empty",
                "reportingController: Invalid value: \"\": name part must consist…",
                "reportingInstance: Required value",
                "action: Required value",
                "reason: Required value",
            ],
        );
    }
}
