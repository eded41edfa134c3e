//! Custom resources: what their definitions may say, and what objects of them must look like.
//! In: CustomResourceDefinitions and custom resources as JSON. Out: the same completed, or their
//! errors, field by field.
//! Guarantees: everything here is a pure function of its arguments; serving, storing and
//! discovering custom resources happens elsewhere.

mod approval; // groups that need an approval
mod bounds; // bounds of numbers
mod columns; // cells of tables, selectable fields
mod default; // filling in defaults, and what null means
mod defaults; // defaults must fit their schema
mod definition; // a definition, typed
mod embedded; // resources inside a custom resource
mod formats; // string formats
mod jsonpath; // paths into objects
mod lists; // sets and maps written as lists
mod metadata; // metadata inside custom resources
mod naming; // which names a definition gets
mod number; // numbers as Go sees them
mod openapi; // which keywords a schema may use
mod problem; // what validation finds
mod prune; // dropping unknown fields
mod refused; // what this server cannot do yet
mod resource; // a custom resource on its way in and out
mod rules; // validation rules
mod scale; // replica counts
mod schema; // the schema, parsed once
mod strategy; // CustomResourceDefinition as a kind
mod structural; // what makes a schema structural
mod surface; // the parts of a definition around its schemas
mod validate;
mod validate_definition; // what a definition may say

pub(crate) use columns::{CustomColumn, SelectableField};
pub(crate) use definition::{Definition, Names, Scale, Status, Version};
pub(crate) use naming::{CLEANUP_FINALIZER, Termination, status, terminating};
pub(crate) use resource::CustomSchema;
pub(crate) use schema::Schema;
pub(crate) use strategy::DEFINITION;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use validate_definition::create as validate_new_definition;
