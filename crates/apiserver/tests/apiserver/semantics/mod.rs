//! The semantics of the API: reads, pages, watches, writes, deletions, errors, selectors, custom
//! resources.
//! In: rows of setup, request and expectation, run in-process and over HTTPS.
//! Guarantees: time is paused unless a row advances it, so no test sleeps or depends on the speed
//! of the machine.

mod answer; // a response
mod cluster; // one server, two transports
mod custom; // custom resources and their definitions
mod deletes; // finalizers, grace, preconditions
mod effect; // a write and what it changed
mod errors; // codes and reasons
mod expired; // what is no longer kept
mod names; // definitions that want the same names
mod objects; // short builders
mod pages; // limit and continue
mod races; // concurrent writers
mod reads; // resourceVersion and resourceVersionMatch
mod scale; // the scale of an object
mod selectors; // labels and fields
mod tables; // rows and columns
mod watches; // events, bookmarks, ends
mod watching; // a watch that is read in the background
mod writes; // versions and generations
