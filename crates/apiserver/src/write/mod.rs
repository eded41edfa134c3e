//! The write path: the only code that changes storage.
//! In: decoded objects, and the attributes of the request. Out: stored objects, or an error. Calls
//! mutating admission before validation and validating admission after it.
//! Guarantees: every write is prepared, validated and compared before it is committed; a write that
//! changes nothing is not stored.

mod admit;
mod create;
mod delete;
mod meta;
mod quota;
mod update;

pub(crate) use admit::admit;
pub(crate) use create::{create, store_as_is};
pub(crate) use delete::{
    DeleteOptions, Deleted, Preconditions, Propagation, check_preconditions, delete,
    delete_in_collection, delete_requested,
};
pub(crate) use meta::dedup_owners;
pub(crate) use update::{Change, Updated, uid_conflict, update};

use std::sync::Arc;

use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::Generation;
use bellerophon_storage::Stored;

use crate::{
    api::{Api, WriteEvent},
    registry::Resource,
};

/// The number of attempts of a write without a resource version, when others write the same object.
const ATTEMPTS_MAX: usize = 64;

/// How the effects of a write, besides the object, are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effects {
    /// By the write itself, before its response is sent.
    #[default]
    Immediate,
    /// By the caller, so that a write that handles another one does not call back into it.
    Deferred,
}

/// An object as it was written, or would have been.
#[derive(Debug)]
pub(crate) enum Written {
    /// The stored object.
    Stored(Arc<Stored>),
    /// Not stored: a dry run, or the last state of a deleted object.
    Unstored(Box<Object>),
}

/// Runs what the server does after a write, unless the caller does.
async fn after_write(
    api: &Api,
    resource: &Resource,
    old: Option<&Object>,
    new: Option<&Object>,
    effects: Effects,
) {
    if effects == Effects::Immediate {
        let event = WriteEvent { resource, old, new };
        (api.after_write)(api, event).await;
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
