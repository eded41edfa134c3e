//! The kinds the server serves: one row each, and what each does differently.

mod checks; // little checks that many kinds share
mod look; // reading JSON with what is absent as empty
mod quantity; // amounts such as 500m and 1Gi
mod row; // one served kind: names, scope, verbs, storage
mod selectable; // the fields that selectors may name
mod selector; // label selectors inside objects
mod strategy; // what one kind does differently from all others
mod table; // the rows

pub(crate) use quantity::Quantity;
pub(crate) use row::{Field, Row, StoredAs, Sub};
pub(crate) use strategy::{DeleteAnswer, Deletion, Effect, Generation, Strategy};
pub(crate) use table::{ROWS, find, find_kind};
