//! The path of a field in a body, for errors.
//! Guarantees: a path lives on the stack while a body is read, and is printed only when it is
//! needed.

use super::{Field, Type};

/// The path of a field, from the innermost step outwards.
#[derive(Clone, Copy)]
pub(super) struct FieldPath<'p> {
    pub(super) parent: Option<&'p FieldPath<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
pub(super) enum Step<'p> {
    Field(&'static Type, &'static Field),
    Key(&'p str),
    Index(usize),
}

impl<'p> FieldPath<'p> {
    pub(super) const fn below(parent: Option<&'p FieldPath<'p>>, step: Step<'p>) -> Self {
        Self { parent, step }
    }

    /// The path with keys and indices: `spec.containers[0].image`.
    pub(super) fn write_path(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.write_path(out);
        }
        let name = match self.step {
            Step::Field(_, field) => field.name,
            Step::Key(key) => key,
            Step::Index(index) => return out.push_str(&format!("[{index}]")),
        };
        if !out.is_empty() {
            out.push('.');
        }
        out.push_str(name);
    }

    /// The path of fields alone, with the structs that only Go sees:
    /// `spec.volumes.VolumeSource.emptyDir`.
    pub(super) fn write_fields(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.write_fields(out);
        }
        if let Step::Field(_, field) = self.step {
            for name in [field.embedded, field.name]
                .into_iter()
                .filter(|name| !name.is_empty())
            {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
        }
    }

    /// The struct of the innermost field.
    pub(super) fn owner(&self) -> Option<&'static Type> {
        match self.step {
            Step::Field(owner, _) => Some(owner),
            _ => self.parent.and_then(FieldPath::owner),
        }
    }
}
