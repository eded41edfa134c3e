//! The real binary from outside: its own contract, and the clients people use with it.

mod charts; // Helm charts
mod go; // client-go
mod kube_rs; // kube-rs
mod python; // the Python client
mod running; // a server that lives as long as a test
mod up; // `bellerophon up` as scripts rely on it
