//! Real kubectls against the real binary: what people type, and what they see.
//! KUBECTL names the programs to test with, parted by colons; without it the one on the PATH is taken. Every test runs with each of them and a
//! server of its own. Without any, each test says so and passes; with BELLEROPHON_REQUIRE_KUBECTL=1 it fails.

mod access; // who may do what, and speaks for whom
mod applying; // declared objects: apply, diff, validation
mod custom; // resources that are defined
mod deleting; // objects that go, and what they own
mod driver; // a kubectl with a server
mod explaining; // what there is and what it means
mod nodes; // where pods run, and what becomes of them with their nodes
mod objects; // create, read, change
mod operators; // operators, installed and at work
#[path = "../binary/running.rs"]
mod running; // a server that lives as long as a test
mod workloads; // pods by template: scale, roll out, wait
