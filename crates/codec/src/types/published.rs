//! Types as published schemas name them: `io.k8s.api.core.v1.Pod`.

use super::{
    Item, Type, index,
    table::{KINDS, PACKAGES, TYPES, UNIONS},
};

/// A type with a discriminator field that selects one of the others.
#[derive(Clone, Copy, Debug)]
pub struct Union {
    /// The discriminator; empty where there is none.
    pub discriminator: &'static str,
    /// The other fields, each with the value that means it.
    pub members: &'static [(&'static str, &'static str)],
}

/// A type of the table, with what distinguishes it from others of the same short name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published(u16);

impl Published {
    /// The type of a kind that has one.
    pub fn of_kind(group: &str, version: &str, kind: &str) -> Option<Self> {
        Self::named(group, version, kind).map(|(ty, _)| ty)
    }

    /// The same, with group, version and kind as the table has them.
    pub(crate) fn named(
        group: &str,
        version: &str,
        kind: &str,
    ) -> Option<(Self, [&'static str; 3])> {
        let (group, version, kind, id) = index::find(group, version, kind)?;
        Some((Self(*id), [group, version, kind]))
    }

    /// The struct that a field holds, if it is one.
    pub fn of_item(item: Item) -> Option<Self> {
        match item {
            Item::Object(id) => Some(Self(id)),
            _ => None,
        }
    }

    /// Every type of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..u16::try_from(TYPES.len()).expect("the table counts types in 16 bits")).map(Self)
    }

    /// Its place among [`Self::all`].
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Its entry in the table.
    pub fn type_(self) -> &'static Type {
        &TYPES[usize::from(self.0)]
    }

    /// Its name in schemas.
    pub fn name(self) -> String {
        let after = PACKAGES.partition_point(|(_, first)| *first <= self.0);
        let (package, _) = PACKAGES[..after]
            .last()
            .expect("the first package begins with the first type");
        format!("{package}.{}", self.type_().name())
    }

    /// The union of its fields, if they exclude each other.
    pub fn union(self) -> Option<Union> {
        let at = UNIONS.binary_search_by_key(&self.0, |(id, ..)| *id).ok()?;
        let (_, discriminator, members) = UNIONS[at];
        Some(Union {
            discriminator,
            members,
        })
    }

    /// Group, version and kind of everything that has this type.
    pub fn kinds(self) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        KINDS
            .iter()
            .filter(move |(_, _, _, id)| *id == self.0)
            .map(|(group, version, kind, _)| (*group, *version, *kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_the_package_of_a_type() {
        for (group, kind, name) in [
            ("", "Pod", "io.k8s.api.core.v1.Pod"),
            ("apps", "Deployment", "io.k8s.api.apps.v1.Deployment"),
            ("", "Status", "io.k8s.apimachinery.pkg.apis.meta.v1.Status"),
            (
                "apiregistration.k8s.io",
                "APIService",
                "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService",
            ),
            (
                "admissionregistration.k8s.io",
                "ValidatingWebhookConfiguration",
                "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration",
            ),
        ] {
            let published = Published::of_kind(group, "v1", kind).expect("it is in the table");
            assert_eq!(published.name(), name);
            assert!(published.kinds().any(|known| known == (group, "v1", kind)));
        }
    }
}
