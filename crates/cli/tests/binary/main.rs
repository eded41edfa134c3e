//! The binary as a process: output, files, signals, exit codes, and clients in several languages.

mod charts; // Helm charts
mod go; // client-go
mod kube_rs; // kube-rs
mod python; // the Python client
mod running; // a `bellerophon up` process for one test
mod up; // output, files, signals and exit codes
