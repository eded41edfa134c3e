//! Scenarios: rounds of actions, after each of which the state is compared.
//!
//! Abbreviations: `$pod IMAGE` is a pod template with label `app: web`, `$app` the selector of that
//! label, and namespace `other` the second namespace of the scenario.

use std::{fs, path::Path};

use serde::Deserialize;
use serde_json::{Value, json};

/// Rounds of actions, and an expected difference.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Also the name of its namespace.
    pub(crate) name: String,
    /// Description, half a sentence.
    pub(crate) about: String,
    /// Why the result differs from upstream, if it does.
    pub(crate) differs: Option<String>,
    pub(crate) rounds: Vec<Vec<Action>>,
}

/// One action.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Action {
    /// Server-side apply.
    Apply(Value),
    Patch(Change),
    Delete(Deletion),
    Node(Operation),
    /// Minimum duration of the round in seconds.
    Pass(u64),
}

/// A merge patch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    pub(crate) kind: String,
    pub(crate) name: Name,
    pub(crate) with: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deletion {
    pub(crate) kind: String,
    pub(crate) name: Name,
    pub(crate) cascade: Option<Cascade>,
    /// Seconds.
    pub(crate) grace: Option<u32>,
}

/// Propagation policy of a deletion.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) enum Cascade {
    Background,
    Foreground,
    Orphan,
}

impl From<Cascade> for kube::api::PropagationPolicy {
    fn from(cascade: Cascade) -> Self {
        match cascade {
            Cascade::Background => Self::Background,
            Cascade::Foreground => Self::Foreground,
            Cascade::Orphan => Self::Orphan,
        }
    }
}

/// Name of an object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", untagged)]
pub(crate) enum Name {
    Is(String),
    /// The first object in name order whose name has this prefix.
    First {
        first: String,
    },
}

/// Operation of a simulated node.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Operation {
    PowerOff(String),
    Restore(String),
}

impl Scenario {
    /// All scenarios in the order of the files.
    pub(crate) fn all(folder: &Path) -> Vec<Self> {
        let mut files: Vec<_> = fs::read_dir(folder)
            .expect("a folder of scenarios")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        let read = |file: &std::path::PathBuf| {
            let text = fs::read_to_string(file).expect("a file");
            let scenarios: Vec<Self> = serde_saphyr::from_str(&text)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
            scenarios
        };
        let mut all: Vec<Self> = files.iter().flat_map(read).collect();
        for action in all
            .iter_mut()
            .flat_map(|scenario| scenario.rounds.iter_mut().flatten())
        {
            match action {
                Action::Apply(object) => expand(object),
                Action::Patch(change) => expand(&mut change.with),
                _ => {}
            }
        }
        all
    }
}

/// Replaces the abbreviations.
fn expand(value: &mut Value) {
    match value {
        Value::String(text) if text == "$app" => {
            *value = json!({ "matchLabels": { "app": "web" } })
        }
        Value::String(text) => {
            if let Some(image) = text.strip_prefix("$pod ") {
                *value = json!({
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "main", "image": image }] },
                });
            }
        }
        Value::Array(items) => items.iter_mut().for_each(expand),
        Value::Object(fields) => {
            // `$base` is an abbreviation that the other fields are merged into.
            if let Some(Value::String(abbreviation)) = fields.remove("$base") {
                let mut base = Value::String(abbreviation);
                expand(&mut base);
                let overrides = std::mem::take(fields);
                merge(&mut base, Value::Object(overrides));
                *value = base;
                return expand(value);
            }
            fields.values_mut().for_each(expand);
        }
        _ => {}
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter()
                .for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}
