//! The write path: the only code that changes storage.
//! In: objects decoded and admitted. Out: objects stored, or the reason why not.
//! Holds: every write is prepared, checked and compared before it is committed; a write that changes nothing is not one.

mod create;
mod delete;
mod meta;
mod update;

pub(crate) use delete::{DeleteOptions, Deleted, Preconditions, Propagation, check_preconditions};
pub(crate) use meta::dedup_owners;
pub(crate) use update::{Change, Updated, uid_conflict};

use std::sync::Arc;

use crate::{
    kinds::Generation,
    object::Object,
    registry::Resource,
    store::{Put, Stored},
};

/// How often a write that needs no particular version is tried again when others write the same object.
const ATTEMPTS_MAX: usize = 64;

/// Who deals with what a write changes in the server besides the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effects {
    /// The write itself, before it is answered.
    #[default]
    Immediate,
    /// The caller, so that a write made in dealing with another one does not call back into it.
    Deferred,
}

/// An object as it was written, or would have been.
#[derive(Debug)]
pub(crate) enum Written {
    /// As it is stored now.
    Stored(Arc<Stored>),
    /// Not stored: a dry run, or the last state of an object that is gone.
    Unstored(Box<Object>),
}

/// What storage gets of an object: the stored version, without a resourceVersion.
pub(crate) fn put_of(resource: &Resource, object: &Object) -> Put {
    let mut stored = object.clone();
    resource.to_storage(&mut stored);
    stored.meta.resource_version.clear();
    Put {
        facets: resource.facets(&stored),
        draft: stored.draft(),
        schema: resource.schema(),
    }
}

/// Whether the generation grows from the old object to the new one.
fn generation_grows(rule: Generation, new: &Object, old: &Object) -> bool {
    let spec_changed = || new.body.get("spec") != old.body.get("spec");
    match rule {
        Generation::None => false,
        Generation::Spec => spec_changed(),
        Generation::SpecAndAnnotations => {
            spec_changed() || new.meta.annotations != old.meta.annotations
        }
        Generation::All => new.body != old.body,
        Generation::Body => {
            let without_status = |o: &Object| {
                o.body
                    .iter()
                    .filter(|(k, _)| *k != "status")
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect::<Vec<_>>()
            };
            without_status(new) != without_status(old)
        }
    }
}
