//! The kinds the server serves: one row each, and what each does differently.

mod row; // one served kind: names, scope, verbs, storage
mod selectable; // the fields that selectors may name
mod strategy; // what one kind does differently from all others
mod table; // the rows

pub(crate) use row::{Field, Row, StoredAs, Sub};
pub(crate) use strategy::{DeleteAnswer, Generation, Strategy};
pub(crate) use table::{ROWS, find, find_kind};
