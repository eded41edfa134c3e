//! `kubectl bellerophon why`: what led to the current state of an object.
//!
//! Input: the records of a cluster in the trace format. Output: per write of the object, who made it;
//! if that was a controller, the reconcile and its causes, and for each cause the write that made it.
//!
//! Guarantee: the depth and the number of causes are bounded.

use bellerophon::ObjectKey;
use futures_util::TryStreamExt as _;
use kube::Client;
use serde_json::Value;

use crate::{error::CliError, timeline::ObjectSelector, top};

/// How many writes a chain is followed back.
const DEPTH_MAX: usize = 8;

/// The causes of a reconcile that are printed.
const CAUSES_MAX: usize = 4;

/// The lines for the newest writes of an object; none if no write of it is known.
///
/// # Errors
/// The server cannot be reached or has no trace.
pub(super) async fn why(
    client: &Client,
    selector: &ObjectSelector,
    last: usize,
) -> Result<Vec<String>, CliError> {
    let lines = top::records(client, false).await?;
    let parse = |line: String| async move { Ok(serde_json::from_str::<Value>(&line).ok()) };
    let records: Vec<Value> = lines
        .try_filter_map(parse)
        .try_collect()
        .await
        .map_err(CliError::context("the server closed the connection"))?;
    Ok(explain(&records, selector, last))
}

fn explain(records: &[Value], selector: &ObjectSelector, last: usize) -> Vec<String> {
    let is_write = |record: &Value| {
        matches!(text(&record["type"]), "wrote" | "accepted")
            && selector.matches(text(&record["kind"]), &key(&record["object"]))
    };
    // A write of a controller in the same process is recorded by the server and by the controller.
    let mut versions: Vec<Write> = Vec::new();
    for record in records.iter().rev().filter(|record| is_write(record)) {
        let write = identity(record);
        if !versions.contains(&write) {
            versions.push(write);
        }
        if versions.len() == last {
            break;
        }
    }
    let mut lines = Vec::new();
    for write in versions.iter().rev() {
        Chain {
            records,
            lines: &mut lines,
        }
        .write(write, 0);
    }
    lines
}

/// A kind, an object and a resource version.
type Write = (String, String, String);

/// The write of a record, or the one that a cause refers to.
fn identity(record: &Value) -> Write {
    let kind = text(&record["kind"]).to_owned();
    // The server counts versions, controllers have the text of the API.
    let version = match &record["version"] {
        Value::Number(version) => version.to_string(),
        version => text(version).to_owned(),
    };
    (kind, key(&record["object"]).to_string(), version)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn key(name: &Value) -> ObjectKey {
    ObjectKey::new(name["namespace"].as_str(), text(&name["name"]))
}

struct Chain<'a> {
    records: &'a [Value],
    lines: &'a mut Vec<String>,
}

impl Chain<'_> {
    /// Explains a write.
    fn write(&mut self, write: &Write, depth: usize) {
        let (kind, object, version) = write;
        let indent = "    ".repeat(depth);
        self.lines
            .push(format!("{indent}{kind} {object}{}", at(version)));
        let is_this = |record: &Value| identity(record) == *write;
        let of_controller = self
            .records
            .iter()
            .rposition(|record| record["type"] == "wrote" && is_this(record));
        if let Some(index) = of_controller {
            return self.reconcile(index, depth);
        }
        let mut accepted = self.records.iter().rev();
        let accepted = accepted.find(|record| record["type"] == "accepted" && is_this(record));
        let line = match accepted {
            Some(record) => {
                let subresource = match text(&record["subresource"]) {
                    "" => String::new(),
                    subresource => format!(" of {subresource}"),
                };
                format!(
                    "{} by {}, user {}{subresource}",
                    text(&record["verb"]),
                    text(&record["manager"]),
                    text(&record["user"]),
                )
            }
            None => "its write is not recorded".to_owned(),
        };
        self.lines.push(format!("{indent}  {line}"));
    }

    /// Explains the write at an index by the reconcile that made it.
    fn reconcile(&mut self, index: usize, depth: usize) {
        let record = &self.records[index];
        let indent = "    ".repeat(depth);
        let controller = text(&record["controller"]);
        let reconciled = key(&record["key"]);
        let is_start = |start: &&Value| {
            start["type"] == "started"
                && start["controller"] == controller
                && start["key"] == record["key"]
        };
        let start = self.records[..index].iter().rev().find(is_start);
        let attempt = start.and_then(|start| start["attempt"].as_u64());
        let attempt = match attempt {
            Some(attempt) if attempt > 1 => format!(", attempt {attempt}"),
            _ => String::new(),
        };
        self.lines.push(format!(
            "{indent}  written by controller {controller}, which reconciled {reconciled}{attempt}"
        ));
        let causes: Vec<&Value> = start
            .and_then(|start| start["causes"].as_array())
            .into_iter()
            .flatten()
            .collect();
        for cause in causes.iter().take(CAUSES_MAX) {
            self.cause(cause, depth);
        }
        let omitted = start
            .and_then(|start| start["omitted"].as_u64())
            .unwrap_or(0);
        let omitted = omitted + causes.len().saturating_sub(CAUSES_MAX) as u64;
        if omitted > 0 {
            self.lines
                .push(format!("{indent}  and {omitted} more causes"));
        }
    }

    fn cause(&mut self, cause: &Value, depth: usize) {
        let indent = "    ".repeat(depth);
        let event = text(&cause["event"]);
        let reason = match text(&cause["reason"]) {
            "" => event.to_owned(),
            reason => format!("{event}: {reason}"),
        };
        self.lines.push(format!("{indent}  because of ({reason})"));
        let write = identity(cause);
        let is_known = !write.2.is_empty();
        if is_known && depth + 1 < DEPTH_MAX {
            return self.write(&write, depth + 1);
        }
        let (kind, object, version) = write;
        self.lines
            .push(format!("{indent}    {kind} {object}{}", at(&version)));
    }
}

fn at(version: &str) -> String {
    match version {
        "" => String::new(),
        version => format!(" at {version}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn records() -> Vec<Value> {
        let hero = json!({"namespace": "default", "name": "hero"});
        let started = |controller: &str, kind: &str, version: &str| {
            json!({
                "type": "started", "controller": controller, "key": hero, "attempt": 1,
                "causes": [{"kind": kind, "object": hero, "version": version, "event": "added"}],
            })
        };
        let wrote = |controller: &str, kind: &str, version: &str| {
            json!({
                "type": "wrote", "controller": controller, "key": hero,
                "kind": kind, "object": hero, "version": version,
            })
        };
        vec![
            json!({
                "type": "accepted", "user": "admin", "manager": "kubectl", "verb": "create",
                "kind": "Hero.example.com", "object": hero, "version": 7,
            }),
            started("heroes", "Hero.example.com", "7"),
            json!({
                "type": "accepted", "user": "heroes", "manager": "heroes", "verb": "apply",
                "kind": "Deployment.apps", "object": hero, "version": 8,
            }),
            wrote("heroes", "Deployment.apps", "8"),
            started("deployment", "Deployment.apps", "8"),
            wrote("deployment", "ReplicaSet.apps", "9"),
        ]
    }

    #[test]
    fn chain_of_controllers_ends_at_the_client() {
        let selector = ObjectSelector::parse("rs/hero", "default");
        let lines = explain(&records(), &selector, 1);
        assert_eq!(
            lines,
            [
                "ReplicaSet.apps default/hero at 9",
                "  written by controller deployment, which reconciled default/hero",
                "  because of (added)",
                "    Deployment.apps default/hero at 8",
                "      written by controller heroes, which reconciled default/hero",
                "      because of (added)",
                "        Hero.example.com default/hero at 7",
                "          create by kubectl, user admin",
            ]
        );
    }

    #[test]
    fn write_that_two_records_have_is_explained_once() {
        let selector = ObjectSelector::parse("deployment/hero", "default");
        let lines = explain(&records(), &selector, 5);
        let starts = lines
            .iter()
            .filter(|line| line.starts_with("Deployment.apps"));
        assert_eq!(starts.count(), 1, "{lines:?}");
    }

    #[test]
    fn unknown_objects_and_evicted_writes_are_reported() {
        let selector = ObjectSelector::parse("hero", "other");
        assert!(explain(&records(), &selector, 1).is_empty());
        let selector = ObjectSelector::parse("rs/hero", "default");
        let lines = explain(&records()[4..], &selector, 1);
        let last = lines.last().expect("lines");
        assert_eq!(last, "      its write is not recorded");
    }
}
