//! Patches.
//! In: a patch document and the JSON of an object. Out: the JSON of the patched object.
//! Guarantees: a patch is applied completely or not at all.

mod json;
mod merge;
mod strategic;

pub use json::{JsonPatch, Unreadable};
pub use merge::{merge, opened_by};
pub use strategic::{GoValue, strategic_merge};
