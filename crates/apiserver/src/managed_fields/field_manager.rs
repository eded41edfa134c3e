//! The entries of `metadata.managedFields`.
//! In: entries as JSON. Out: the managers with their field sets, and the same as JSON again.
//! Guarantees: no two managers are equal; entries are written in the order of kube-apiserver; of
//! managers with the operation Update, only the last ten are kept apart.

use std::collections::{HashMap, HashSet};

use bellerophon_apimachinery::time::Time;
use bellerophon_codec::object::ManagedFieldsEntry;

use super::FieldSet;

/// How many entries of updates are kept apart.
const UPDATERS_MAX: usize = 10;

/// The only form of field sets.
const FIELDS_TYPE: &str = "FieldsV1";

/// The name under which older updates are kept together.
const ANCIENT: &str = "ancient-changes";

/// The operation of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Operation {
    Apply,
    Update,
}

/// The identity of a manager.
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
pub(crate) struct FieldManager {
    pub(crate) manager: String,
    pub(crate) operation: Operation,
    /// The version its fields are named in.
    pub(crate) api_version: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
    pub(crate) time: Option<Time>,
    pub(crate) fields: FieldSet,
}

impl FieldManager {
    /// Whether both are the same manager doing the same.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Its identity. One that applies may change the version.
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
        let mut shown = bellerophon_apimachinery::field::go_quote(&self.manager);
        if !self.subresource.is_empty() {
            shown.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            shown.push_str(&format!(" using {}", self.api_version));
        }
        shown
    }

    /// The sort key of managers with equal times: their identity as kube-apiserver formats it.
    pub(super) fn spelling(&self) -> String {
        let rest = if self.operation == Operation::Apply {
            "Apply"
        } else {
            &self.api_version
        };
        format!("{:?} {rest} {}", self.manager, self.subresource)
    }

    fn read(entry: &ManagedFieldsEntry) -> Option<Self> {
        let operation = match entry.operation.as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if entry.api_version.is_empty() || entry.fields_type != FIELDS_TYPE {
            return None;
        }
        let fields = match &entry.fields_v1 {
            None => FieldSet::default(),
            Some(fields) => FieldSet::from_fields_v1(fields).ok()?,
        };
        Some(Self {
            manager: entry.manager.clone(),
            operation,
            api_version: entry.api_version.clone(),
            subresource: entry.subresource.clone(),
            time: Time::parse(&entry.time).ok(),
            fields,
        })
    }

    fn write(&self) -> ManagedFieldsEntry {
        let operation = match self.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        ManagedFieldsEntry {
            api_version: self.api_version.clone(),
            fields_type: FIELDS_TYPE.to_owned(),
            fields_v1: Some(self.fields.to_fields_v1()),
            manager: self.manager.clone(),
            operation: operation.to_owned(),
            subresource: self.subresource.clone(),
            time: self.time.map(|time| time.to_string()).unwrap_or_default(),
        }
    }
}

/// Reads the entries of an object; `None` when one of them makes no sense.
pub(crate) fn read_managed_fields(entries: &[ManagedFieldsEntry]) -> Option<Vec<FieldManager>> {
    let field_managers = entries
        .iter()
        .map(FieldManager::read)
        .collect::<Option<Vec<FieldManager>>>()?;
    // Of the same owner the last entry counts.
    let mut last: HashMap<Identity, usize> = HashMap::with_capacity(field_managers.len());
    for (at, field_manager) in field_managers.iter().enumerate() {
        last.insert(field_manager.identity(), at);
    }
    let mut kept: Vec<usize> = last.into_values().collect();
    kept.sort_unstable();
    if kept.len() == field_managers.len() {
        return Some(field_managers);
    }
    let kept: HashSet<usize> = kept.into_iter().collect();
    let numbered = field_managers.into_iter().enumerate();
    Some(
        numbered
            .filter(|(at, _)| kept.contains(at))
            .map(|(_, field_manager)| field_manager)
            .collect(),
    )
}

/// The entries as an object carries them.
pub(crate) fn write_managed_fields(
    mut field_managers: Vec<FieldManager>,
) -> Vec<ManagedFieldsEntry> {
    let seconds = |field_manager: &FieldManager| field_manager.time.map_or(0, Time::as_second);
    field_managers.sort_by(|a, b| {
        let key = |o: &FieldManager| (o.operation, seconds(o));
        let names = |o: &FieldManager| {
            (
                o.manager.clone(),
                o.api_version.clone(),
                o.subresource.clone(),
            )
        };
        key(a).cmp(&key(b)).then_with(|| names(a).cmp(&names(b)))
    });
    field_managers.iter().map(FieldManager::write).collect()
}

/// Merges the oldest updates of each version until there are few enough.
pub(super) fn cap_updaters(field_managers: &mut Vec<FieldManager>) {
    let mut excess = field_managers
        .iter()
        .filter(|field_manager| field_manager.operation == Operation::Update)
        .count()
        .saturating_sub(UPDATERS_MAX);
    if excess == 0 {
        return;
    }
    field_managers.sort_by_cached_key(|field_manager| {
        (
            field_manager.operation,
            field_manager.time.map_or(0, Time::as_second),
            field_manager.spelling(),
        )
    });
    let (mut kept, mut updaters): (Vec<FieldManager>, Vec<FieldManager>) = field_managers
        .drain(..)
        .partition(|field_manager| field_manager.operation == Operation::Apply);
    let mut merged: Vec<FieldManager> = Vec::new();
    // By version: the place of its first owner, which takes the others in.
    let mut buckets: HashMap<String, usize> = HashMap::new();
    // By the same place: the fields of those.
    let mut taken_in: HashMap<usize, Vec<FieldSet>> = HashMap::new();
    for field_manager in updaters.drain(..) {
        match buckets.get(&field_manager.api_version) {
            Some(at) if excess > 0 => {
                excess -= 1;
                let bucket = &mut merged[*at];
                bucket.manager = ANCIENT.to_owned();
                bucket.subresource.clear();
                bucket.time = field_manager.time;
                taken_in.entry(*at).or_default().push(field_manager.fields);
            }
            _ => {
                buckets
                    .entry(field_manager.api_version.clone())
                    .or_insert(merged.len());
                merged.push(field_manager);
            }
        }
    }
    for (at, fields) in taken_in {
        merged[at].fields = merged[at].fields.union(&FieldSet::union_all(fields));
    }
    kept.append(&mut merged);
    *field_managers = kept;
}
