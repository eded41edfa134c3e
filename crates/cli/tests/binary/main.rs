//! The binary as a process: output, files, signals, exit codes, and kube-rs.

mod charts; // Helm charts
mod kube_rs; // kube-rs
mod running; // a `bellerophon up` process for one test
mod up; // output, files, signals and exit codes
