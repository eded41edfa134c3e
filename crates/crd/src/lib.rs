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
mod resource; // a custom resource on its way in and out
mod rule; // a validation rule as it is written
mod rules; // validation rules
mod scale; // replica counts
mod schema; // the schema, parsed once
mod structural; // what makes a schema structural
mod surface; // the parts of a definition around its schemas
mod validate; // values against schemas
pub mod validate_definition; // what a definition may say

pub use columns::{CustomColumn, SelectableField};
pub use definition::{Definition, Names, Scale, Status, Version};
pub use naming::{CLEANUP_FINALIZER, Termination, status, terminating};
pub use resource::CustomSchema;
pub use schema::{DEPTH_MAX as SCHEMA_DEPTH_MAX, Schema};
