//! Events of both groups.
//! Mirrors `printEvent` in `pkg/printers/internalversion`.

use bellerophon_apimachinery::{duration::since, table_column::Column, time::Time};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, name},
};

const COLUMNS: &[Column] = &[
    Column::text("Last Seen", descriptions::EVENT_LAST_SEEN),
    Column::text("Type", descriptions::EVENT_TYPE),
    Column::text("Reason", descriptions::EVENT_REASON),
    Column::text("Object", descriptions::EVENT_OBJECT),
    Column::text("Subobject", descriptions::EVENT_SUBOBJECT).wide(),
    Column::text("Source", descriptions::EVENT_SOURCE).wide(),
    Column::text("Message", descriptions::EVENT_MESSAGE),
    Column::text("First Seen", descriptions::EVENT_FIRST_SEEN).wide(),
    Column::text("Count", descriptions::EVENT_COUNT).wide(),
    Column::NAME.wide(),
];

/// An event of the core group.
pub(super) static CORE: Printer = Printer {
    columns: COLUMNS,
    cells: |event, now| cells(event, &CORE_FIELDS, now),
    ..Printer::PLAIN
};

/// An event of group `events.k8s.io`.
pub(super) static EVENTS: Printer = Printer {
    columns: COLUMNS,
    cells: |event, now| cells(event, &EVENTS_FIELDS, now),
    ..Printer::PLAIN
};

/// The field names of a group.
struct Names {
    object: &'static str,
    message: &'static str,
    source: &'static str,
    controller: &'static str,
    first_seen: &'static str,
    last_seen: &'static str,
    count: &'static str,
}

const CORE_FIELDS: Names = Names {
    object: "involvedObject",
    message: "message",
    source: "source",
    controller: "reportingComponent",
    first_seen: "firstTimestamp",
    last_seen: "lastTimestamp",
    count: "count",
};

const EVENTS_FIELDS: Names = Names {
    object: "regarding",
    message: "note",
    source: "deprecatedSource",
    controller: "reportingController",
    first_seen: "deprecatedFirstTimestamp",
    last_seen: "deprecatedLastTimestamp",
    count: "deprecatedCount",
};

fn cells(event: &Object, names: &Names, now: Time) -> Vec<Value> {
    let empty = Value::Null;
    let about = event.field(names.object).unwrap_or(&empty);
    let first_seen = event
        .time(names.first_seen)
        .or_else(|| event.time("eventTime"));
    let (last_seen, count) = match (event.field("series"), event.int(names.count)) {
        (Some(series), _) => (series.time("lastObservedTime"), series.int("count")),
        // An event that happened once has no count in the newer group.
        (None, count) => (
            event.time(names.last_seen).or(first_seen),
            if count == 0 { 1 } else { count },
        ),
    };
    vec![
        since(last_seen, now).into(),
        event.text("type").into(),
        event.text("reason").into(),
        target(about).into(),
        about.text("fieldPath").into(),
        source(event, names).into(),
        event.text(names.message).trim().into(),
        since(first_seen, now).into(),
        count.into(),
        name(event),
    ]
}

fn target(about: &Value) -> String {
    let kind = about.text("kind").to_lowercase();
    match about.text("name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

/// The source of the event: component and host; the older field takes precedence.
fn source(event: &Object, names: &Names) -> String {
    let empty = Value::Null;
    let older = event.field(names.source).unwrap_or(&empty);
    let component = older.filled_or("component", event.text(names.controller));
    match older.filled_or("host", event.text("reportingInstance")) {
        "" => component.into(),
        instance => format!("{component}, {instance}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::print::printer::tests::check;

    #[test]
    fn both_groups_print_the_same() {
        let about = json!({ "kind": "Pod", "name": "p", "fieldPath": "spec.containers" });
        let source = json!({ "component": "kubelet", "host": "n1" });
        let cells = json!([
            "60s",
            "Normal",
            "Started",
            "pod/p",
            "spec.containers",
            "kubelet, n1",
            "Started it",
            "2m",
            4,
            "x"
        ]);
        let first = "2026-01-02T03:12:05Z";
        let last = "2026-01-02T03:13:05Z";
        let core = json!({
            "involvedObject": about, "source": source, "type": "Normal", "reason": "Started", "message": " Started it \n",
            "firstTimestamp": first, "lastTimestamp": last, "count": 4, "eventTime": null, "reportingComponent": "",
        });
        check("v1", "Event", core, cells.clone());
        let events = json!({
            "regarding": about, "deprecatedSource": source, "type": "Normal", "reason": "Started", "note": " Started it \n",
            "deprecatedFirstTimestamp": first, "deprecatedLastTimestamp": last, "deprecatedCount": 4, "eventTime": null,
        });
        check("events.k8s.io/v1", "Event", events, cells);
    }

    #[test]
    fn series_show_the_last_time_and_the_count() {
        let event = json!({
            "regarding": { "kind": "Node" }, "reportingController": "ctl", "reportingInstance": "ctl-0", "eventTime": "2026-01-02T03:12:05.123456Z",
            "series": { "count": 7, "lastObservedTime": "2026-01-02T03:14:00.000001Z" },
        });
        check(
            "events.k8s.io/v1",
            "Event",
            event,
            json!(["5s", "", "", "node", "", "ctl, ctl-0", "", "2m", 7, "x"]),
        );
        let once =
            json!({ "reportingComponent": "ctl", "eventTime": "2026-01-02T03:12:05.000000Z" });
        check(
            "v1",
            "Event",
            once,
            json!(["2m", "", "", "", "", "ctl", "", "2m", 1, "x"]),
        );
        check(
            "v1",
            "Event",
            json!({}),
            json!(["<unknown>", "", "", "", "", "", "", "<unknown>", 1, "x"]),
        );
    }
}
