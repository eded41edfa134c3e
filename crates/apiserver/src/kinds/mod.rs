//! The kinds the server serves: one row each, and what each does differently.

mod strategy; // what one kind does differently from all others

pub(crate) use strategy::{DeleteAnswer, Generation, Strategy};
