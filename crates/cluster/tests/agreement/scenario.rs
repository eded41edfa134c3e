//! What happens in a scenario: rounds of actions. After each round everything comes to rest and is looked at.
//!
//! Three words in a scenario stand for more: `$pod IMAGE` is a template of pods labelled `app: web`, `$app` the selector of
//! those, and a namespace `other` is a second one of the scenario's own.

use std::{fs, path::Path};

use serde::Deserialize;
use serde_json::{Value, json};

/// What happens, and what is expected to differ.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Also the name of its namespace.
    pub(crate) name: String,
    /// What it is about, in half a sentence.
    pub(crate) about: String,
    /// Why our loops end otherwise, if they do.
    pub(crate) differs: Option<String>,
    pub(crate) rounds: Vec<Vec<Action>>,
}

/// One thing that happens.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Action {
    /// On the server's side.
    Apply(Value),
    Patch(Change),
    Delete(Deletion),
    Node(Operation),
    /// At least so many seconds go by before everything is at rest.
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

/// What becomes of what belongs to a deleted object.
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

/// Which object of a kind.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", untagged)]
pub(crate) enum Name {
    /// By its name.
    Is(String),
    /// The first one, in the order of names, whose name the server made up.
    First {
        /// What its name begins with.
        first: String,
    },
}

/// Something done to a simulated node.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Operation {
    PowerOff(String),
    Restore(String),
}

impl Scenario {
    /// All of them, in the order of files and in files.
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
                Action::Apply(object) => spell_out(object),
                Action::Patch(change) => spell_out(&mut change.with),
                _ => {}
            }
        }
        all
    }
}

/// Replaces the words that stand for more.
fn spell_out(value: &mut Value) {
    match value {
        Value::String(text) if text == "$app" => {
            *value = json!({ "matchLabels": { "app": "web" } })
        }
        Value::String(text) => {
            if let Some(image) = text.strip_prefix("$pod ") {
                *value = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "main", "image": image }] } });
            }
        }
        Value::Array(items) => items.iter_mut().for_each(spell_out),
        Value::Object(fields) => {
            // A template may say more than the word for it does.
            if let Some(Value::String(word)) = fields.remove("$base") {
                let mut base = Value::String(word);
                spell_out(&mut base);
                let more = std::mem::take(fields);
                merge(&mut base, Value::Object(more));
                *value = base;
                return spell_out(value);
            }
            fields.values_mut().for_each(spell_out);
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
