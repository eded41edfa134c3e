//! A set of paths inside an object, kept as a trie.
//! Guarantees: entries are sorted and each leads to at least one member, so every operation is one
//! walk over both sets.

use std::cmp::Ordering;

use super::PathElement;

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    entries: Vec<Entry>,
}

/// A step, and what lies behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) element: PathElement,
    /// Whether the path that ends here is in the set.
    pub(super) member: bool,
    pub(super) children: FieldSet,
}

impl Entry {
    fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

impl FieldSet {
    pub(super) const EMPTY: Self = Self {
        entries: Vec::new(),
    };

    /// A set from entries in any order, of which no two are for the same step.
    pub(super) fn from_entries(mut entries: Vec<Entry>) -> Self {
        entries.retain(|entry| !entry.is_empty());
        if !entries.is_sorted_by(|a, b| a.element < b.element) {
            entries.sort_by(|a, b| a.element.cmp(&b.element));
        }
        Self::checked(entries)
    }

    /// A set from entries that a client sent, of which several may be for the same step, such as
    /// `v:1` and `v:1.0`.
    pub(super) fn from_sent(entries: Vec<Entry>) -> Self {
        let is_sorted = entries.is_sorted_by(|a, b| a.element < b.element);
        if is_sorted {
            return Self::from_entries(entries);
        }
        let sets = entries
            .into_iter()
            .map(|entry| Self::from_entries(vec![entry]));
        Self::union_all(sets.collect())
    }

    fn checked(entries: Vec<Entry>) -> Self {
        let set = Self { entries };
        debug_assert!(set.is_consistent());
        set
    }

    /// Whether entries are sorted, no two are for the same path element, and each has a member.
    /// Sets below were checked when they were made.
    fn is_consistent(&self) -> bool {
        let is_sorted = self.entries.is_sorted_by(|a, b| a.element < b.element);
        is_sorted && !self.entries.iter().any(Entry::is_empty)
    }

    /// The set of one path of fields.
    pub(crate) fn of_path(path: &[&str]) -> Self {
        let Some((first, rest)) = path.split_first() else {
            return Self::default();
        };
        Self {
            entries: vec![Entry {
                element: PathElement::field(first),
                member: rest.is_empty(),
                children: Self::of_path(rest),
            }],
        }
    }

    /// The set of several paths of fields.
    pub(crate) fn of_paths(paths: &[&[&str]]) -> Self {
        paths
            .iter()
            .fold(Self::default(), |set, path| set.union(&Self::of_path(path)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entry of a path element.
    pub(super) fn get(&self, element: &PathElement) -> Option<&Entry> {
        self.entries
            .binary_search_by(|entry| entry.element.cmp(element))
            .ok()
            .map(|i| &self.entries[i])
    }

    /// The entry of a field.
    pub(super) fn get_field(&self, name: &str) -> Option<&Entry> {
        let by_name = |entry: &Entry| match &entry.element {
            PathElement::Field(field) => (**field).cmp(name),
            _ => Ordering::Greater,
        };
        self.entries
            .binary_search_by(by_name)
            .ok()
            .map(|i| &self.entries[i])
    }

    /// Whether a path of fields is in the set.
    pub(crate) fn has(&self, path: &[&str]) -> bool {
        match path {
            [] => false,
            [last] => self.get_field(last).is_some_and(|entry| entry.member),
            [first, rest @ ..] => self
                .get_field(first)
                .is_some_and(|entry| entry.children.has(rest)),
        }
    }

    /// The union of two sets.
    pub(crate) fn union(&self, other: &Self) -> Self {
        self.zip(other, |left, right| match (left, right) {
            (Some(left), Some(right)) => Some((
                left.member || right.member,
                left.children.union(&right.children),
            )),
            (Some(only), None) | (None, Some(only)) => Some((only.member, only.children.clone())),
            (None, None) => None,
        })
    }

    /// The union of many sets. They are joined in pairs, so that no set grows by one small set at a
    /// time.
    pub(super) fn union_all(mut sets: Vec<Self>) -> Self {
        while sets.len() > 1 {
            sets = sets
                .chunks(2)
                .map(|pair| match pair {
                    [left, right] => left.union(right),
                    _ => pair[0].clone(),
                })
                .collect();
        }
        sets.pop().unwrap_or_default()
    }

    /// The intersection of two sets.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        self.each(other, |left, right| {
            let right = right?;
            Some((
                left.member && right.member,
                left.children.intersection(&right.children),
            ))
        })
    }

    /// The paths of this set that are not in the other. A path is removed only if it is itself in
    /// the other set.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        self.each(other, |left, right| match right {
            None => Some((left.member, left.children.clone())),
            Some(right) => Some((
                left.member && !right.member,
                left.children.difference(&right.children),
            )),
        })
    }

    /// The paths of this set that are not in or below a path of the other.
    pub(crate) fn without(&self, other: &Self) -> Self {
        self.each(other, |left, right| match right {
            None => Some((left.member, left.children.clone())),
            Some(right) if right.member => None,
            Some(right) => Some((left.member, left.children.without(&right.children))),
        })
    }

    /// Maps each entry, with the other set's entry for the same path element. The cost is linear in
    /// this set, however large the other is.
    fn each(
        &self,
        other: &Self,
        change: impl Fn(&Entry, Option<&Entry>) -> Option<(bool, Self)>,
    ) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len());
        let mut rest = other.entries.as_slice();
        for left in &self.entries {
            rest = &rest[first_from(rest, &left.element)..];
            let right = rest.first().filter(|right| right.element == left.element);
            let Some((member, children)) = change(left, right) else {
                continue;
            };
            let entry = Entry {
                element: left.element.clone(),
                member,
                children,
            };
            if !entry.is_empty() {
                entries.push(entry);
            }
        }
        Self::checked(entries)
    }

    fn zip(
        &self,
        other: &Self,
        join: impl Fn(Option<&Entry>, Option<&Entry>) -> Option<(bool, Self)>,
    ) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len());
        let mut left = self.entries.iter().peekable();
        let mut right = other.entries.iter().peekable();
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Self::checked(entries),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(l), Some(r)) => l.element.cmp(&r.element),
            };
            let l = if order == Ordering::Greater {
                None
            } else {
                left.next()
            };
            let r = if order == Ordering::Less {
                None
            } else {
                right.next()
            };
            let Some((member, children)) = join(l, r) else {
                continue;
            };
            let entry = Entry {
                element: l.or(r).expect("one side has the step").element.clone(),
                member,
                children,
            };
            if !entry.is_empty() {
                entries.push(entry);
            }
        }
    }

    /// Every path in the set as errors show it, parents before children.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.write_paths("", &mut paths);
        paths
    }

    fn write_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        let shown = |entry: &Entry| format!("{prefix}{}", entry.element);
        paths.extend(self.entries.iter().filter(|entry| entry.member).map(shown));
        for entry in self
            .entries
            .iter()
            .filter(|entry| !entry.children.is_empty())
        {
            entry.children.write_paths(&shown(entry), paths);
        }
    }
}

/// The place of the first entry that does not stand before a step. The search widens from the
/// front, where it usually ends.
fn first_from(entries: &[Entry], element: &PathElement) -> usize {
    let mut width = 1;
    while width < entries.len() && entries[width - 1].element < *element {
        width *= 2;
    }
    entries[..width.min(entries.len())].partition_point(|entry| entry.element < *element)
}
