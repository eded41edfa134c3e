//! Plain values of the Kubernetes API, without IO: what every other crate of the API server, and
//! the controllers, parse and print in one way.
//! Guarantees: everything here is a pure function of its arguments; nothing reads a clock, a file
//! or the network.

pub mod cron; // cron schedules
pub mod duration; // spans of time, as tables show them
pub mod error; // `ApiError` and `Status`
pub mod field; // field paths and field errors
pub mod json_ext; // reads and defaults of JSON fields
pub mod label_selector; // label selectors of requests
pub mod names; // rules of names and labels
pub mod quantity; // amounts of resources
pub mod table_column; // column definitions of tables
pub mod time; // times of objects
