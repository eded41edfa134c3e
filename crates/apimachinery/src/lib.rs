//! Values of the Kubernetes API, without IO: parsed and printed the same way by the API server and
//! the controllers.
//! Guarantees: everything here is a pure function of its arguments; nothing reads a clock, a file
//! or the network.

pub mod cron; // cron schedules
pub mod duration; // durations
pub mod error; // `ApiError` and `Status`
pub mod field; // field paths and field errors
pub mod json_ext; // reads and defaults of JSON fields
pub mod label_selector; // label selectors of requests
pub mod names; // validation of names and labels
pub mod quantity; // quantities of resources
pub mod table_column; // column definitions of tables
pub mod time; // times of objects
