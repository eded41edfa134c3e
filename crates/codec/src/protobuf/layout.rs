//! The fields of a type by their protobuf numbers.
//! Guarantees: members are in the order of their numbers; a message that JSON inlines has its own
//! layout.

use std::sync::LazyLock;

use crate::types::{self, Field, Published, Type};

/// The numbered fields of a message.
#[derive(Debug)]
pub(super) struct Layout {
    /// The message as errors name it.
    pub(super) name: &'static str,
    /// In the order of their numbers.
    pub(super) members: Vec<Member>,
}

/// The field of a number.
#[derive(Debug)]
pub(super) enum Member {
    Field(&'static Field),
    /// A message whose fields JSON shows among those of the message around it.
    Inline(u16, Layout),
}

static LAYOUTS: LazyLock<Vec<Layout>> =
    LazyLock::new(|| Published::all().map(|ty| Layout::of(ty.type_())).collect());

impl Layout {
    /// The layout of a type.
    pub(super) fn find(ty: Published) -> &'static Self {
        &LAYOUTS[ty.index()]
    }

    /// The layout of the metadata of a core kind.
    pub(super) fn of_metadata(kind: &str) -> Self {
        let ty = types::find("", "v1", kind).expect("a kind of the table");
        Self {
            name: ty.name(),
            members: ty
                .field("metadata")
                .map(Member::Field)
                .into_iter()
                .collect(),
        }
    }

    /// The field of a number.
    pub(super) fn member(&self, number: u32) -> Option<&Member> {
        let at = self
            .members
            .binary_search_by(|member| u32::from(member.number()).cmp(&number))
            .ok()?;
        self.members.get(at)
    }

    fn of(ty: &'static Type) -> Self {
        let mut layout = Self {
            name: ty.name(),
            members: Vec::new(),
        };
        for field in ty.fields().iter().filter(|field| field.number != 0) {
            layout.add(field, field.inside);
        }
        layout
    }

    fn add(&mut self, field: &'static Field, inside: &[u16]) {
        let number = inside.first().copied().unwrap_or(field.number);
        let at = self
            .members
            .partition_point(|member| member.number() < number);
        match inside {
            [] => self.members.insert(at, Member::Field(field)),
            [_, deeper @ ..] => {
                if self
                    .members
                    .get(at)
                    .is_none_or(|member| member.number() != number)
                {
                    self.members.insert(
                        at,
                        Member::Inline(
                            number,
                            Self {
                                name: self.name,
                                members: Vec::new(),
                            },
                        ),
                    );
                }
                if let Some(Member::Inline(_, inner)) = self.members.get_mut(at) {
                    inner.add(field, deeper);
                }
            }
        }
    }
}

impl Member {
    /// Its number.
    pub(super) const fn number(&self) -> u16 {
        match self {
            Self::Field(field) => field.number,
            Self::Inline(number, _) => *number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(layout: &Layout) -> usize {
        let of_member = |member: &Member| match member {
            Member::Field(_) => 1,
            Member::Inline(_, inner) => count(inner),
        };
        assert!(
            layout.members.is_sorted_by(|a, b| a.number() < b.number()),
            "{}",
            layout.name
        );
        layout.members.iter().map(of_member).sum()
    }

    #[test]
    fn every_numbered_field_has_its_place() {
        for ty in Published::all() {
            let numbered = ty
                .type_()
                .fields()
                .iter()
                .filter(|field| field.number != 0)
                .count();
            assert_eq!(count(Layout::find(ty)), numbered, "{}", ty.name());
        }
    }
}
