//! The entries of `metadata.managedFields`.
//! In: entries as JSON. Out: who owns which fields, and the same as JSON again.
//! Holds: no two owners are the same; entries are written in the order of the real server; of writers that did not apply, only the last
//! ten are told apart.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::FieldSet;
use crate::object::Time;

/// How many entries of updates are kept apart.
const UPDATERS_MAX: usize = 10;

/// The name under which older updates are kept together.
const ANCIENT: &str = "ancient-changes";

/// How a manager came to its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Operation {
    Apply,
    Update,
}

/// What tells a manager from others.
#[derive(PartialEq, Eq, Hash)]
struct Identity<'a> {
    manager: &'a str,
    operation: Operation,
    subresource: &'a str,
    /// Empty for one that applies.
    api_version: &'a str,
}

/// One manager and what it owns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Owner {
    pub(crate) manager: String,
    pub(crate) operation: Operation,
    /// The version its fields are named in.
    pub(crate) api_version: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
    pub(crate) time: Option<Time>,
    pub(crate) fields: FieldSet,
}

impl Owner {
    /// Whether both are the same manager doing the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// What tells it from others. One that applies may change the version.
    fn identity(&self) -> Identity<'_> {
        let api_version = match self.operation {
            Operation::Apply => "",
            Operation::Update => &self.api_version,
        };
        Identity {
            manager: &self.manager,
            operation: self.operation,
            subresource: &self.subresource,
            api_version,
        }
    }

    /// As conflicts name it: `"alpha"`, `"editor" using v1`.
    pub(super) fn shown(&self) -> String {
        let mut shown = crate::field::go_quote(&self.manager);
        if !self.subresource.is_empty() {
            shown.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            shown.push_str(&format!(" using {}", self.api_version));
        }
        shown
    }

    /// What owners are ordered by where their times are equal: their identity as the real server spells it.
    pub(super) fn spelling(&self) -> String {
        let rest = if self.operation == Operation::Apply {
            "Apply"
        } else {
            &self.api_version
        };
        format!("{:?} {rest} {}", self.manager, self.subresource)
    }

    fn read(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let fields = match value.get("fieldsV1") {
            None | Some(Value::Null) => FieldSet::default(),
            Some(fields) => FieldSet::from_json(fields).ok()?,
        };
        Some(Self {
            manager: text("manager").to_owned(),
            operation,
            api_version: text("apiVersion").to_owned(),
            subresource: text("subresource").to_owned(),
            time: Time::parse(text("time")).ok(),
            fields,
        })
    }

    fn write(&self) -> Value {
        let mut map = Map::new();
        let operation = if self.operation == Operation::Apply {
            "Apply"
        } else {
            "Update"
        };
        let texts = [
            ("manager", self.manager.as_str()),
            ("operation", operation),
            ("apiVersion", &self.api_version),
            ("subresource", &self.subresource),
            ("fieldsType", "FieldsV1"),
        ];
        map.extend(
            texts
                .into_iter()
                .filter(|(_, text)| !text.is_empty())
                .map(|(key, text)| (key.to_owned(), text.into())),
        );
        if let Some(time) = self.time {
            map.insert("time".into(), time.to_string().into());
        }
        map.insert("fieldsV1".into(), self.fields.to_json());
        Value::Object(map)
    }
}

/// Reads the entries of an object; `None` when one of them makes no sense.
pub(crate) fn read_owners(entries: &[Value]) -> Option<Vec<Owner>> {
    let owners = entries
        .iter()
        .map(Owner::read)
        .collect::<Option<Vec<Owner>>>()?;
    // Of the same owner the last entry counts.
    let mut last: HashMap<Identity, usize> = HashMap::with_capacity(owners.len());
    for (at, owner) in owners.iter().enumerate() {
        last.insert(owner.identity(), at);
    }
    let mut kept: Vec<usize> = last.into_values().collect();
    kept.sort_unstable();
    if kept.len() == owners.len() {
        return Some(owners);
    }
    let kept: HashSet<usize> = kept.into_iter().collect();
    let numbered = owners.into_iter().enumerate();
    Some(
        numbered
            .filter(|(at, _)| kept.contains(at))
            .map(|(_, owner)| owner)
            .collect(),
    )
}

/// The entries as an object carries them.
pub(crate) fn write_owners(mut owners: Vec<Owner>) -> Vec<Value> {
    let seconds = |owner: &Owner| owner.time.map_or(0, Time::as_second);
    owners.sort_by(|a, b| {
        let key = |o: &Owner| (o.operation, seconds(o));
        let names = |o: &Owner| {
            (
                o.manager.clone(),
                o.api_version.clone(),
                o.subresource.clone(),
            )
        };
        key(a).cmp(&key(b)).then_with(|| names(a).cmp(&names(b)))
    });
    owners.iter().map(Owner::write).collect()
}

/// Merges the oldest updates of each version until there are few enough.
pub(super) fn cap_updaters(owners: &mut Vec<Owner>) {
    let mut excess = owners
        .iter()
        .filter(|owner| owner.operation == Operation::Update)
        .count()
        .saturating_sub(UPDATERS_MAX);
    if excess == 0 {
        return;
    }
    owners.sort_by_cached_key(|owner| {
        (
            owner.operation,
            owner.time.map_or(0, Time::as_second),
            owner.spelling(),
        )
    });
    let (mut kept, mut updaters): (Vec<Owner>, Vec<Owner>) = owners
        .drain(..)
        .partition(|owner| owner.operation == Operation::Apply);
    let mut merged: Vec<Owner> = Vec::new();
    // By version: the place of its first owner, which takes the others in.
    let mut buckets: HashMap<String, usize> = HashMap::new();
    // By the same place: the fields of those.
    let mut taken_in: HashMap<usize, Vec<FieldSet>> = HashMap::new();
    for owner in updaters.drain(..) {
        match buckets.get(&owner.api_version) {
            Some(at) if excess > 0 => {
                excess -= 1;
                let bucket = &mut merged[*at];
                bucket.manager = ANCIENT.to_owned();
                bucket.subresource.clear();
                bucket.time = owner.time;
                taken_in.entry(*at).or_default().push(owner.fields);
            }
            _ => {
                buckets
                    .entry(owner.api_version.clone())
                    .or_insert(merged.len());
                merged.push(owner);
            }
        }
    }
    for (at, fields) in taken_in {
        merged[at].fields = merged[at].fields.union(&FieldSet::union_all(fields));
    }
    kept.append(&mut merged);
    *owners = kept;
}
