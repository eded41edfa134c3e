//! CustomResourceDefinitions and custom resources: validation, pruning and defaulting.
//! In: CustomResourceDefinitions and custom resources as JSON. Out: the same pruned and defaulted,
//! or their errors by field.
//! Guarantees: everything here is a pure function of its arguments; serving, storage and discovery
//! of custom resources are in the API server.

mod approval; // groups that need an approval
mod bounds; // bounds of numbers
mod columns; // cells of tables, selectable fields
mod default; // defaulting, and handling of null
mod defaults; // validation of defaults
mod definition; // a definition, typed
mod embedded; // resources inside a custom resource
mod formats; // string formats
mod jsonpath; // paths into objects
mod lists; // sets and maps written as lists
mod metadata; // metadata inside custom resources
mod naming; // accepted names and conditions
mod number; // numbers as Go sees them
mod openapi; // validation of OpenAPI keywords
mod problem; // validation problems
mod prune; // pruning of unknown fields
mod resource; // pruning, defaulting and validation of a resource
mod rule; // a parsed validation rule
mod rules; // validation rules
mod scale; // replica counts
mod schema; // the schema, parsed once
mod structural; // structural schemas
mod surface; // validation of names, columns, scale, conversion
mod validate; // values against schemas
pub mod validate_definition; // validation of definitions

pub use columns::{CustomColumn, SelectableField};
pub use definition::{Definition, Names, Scale, Status, Version};
pub use naming::{CLEANUP_FINALIZER, Termination, status, terminating};
pub use resource::CustomSchema;
pub use schema::{DEPTH_MAX as SCHEMA_DEPTH_MAX, Schema};
