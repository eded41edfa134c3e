//! The binary as a process: output, files, signals, exit codes, and kube-rs.

mod charts; // Helm charts
mod doctor; // checks of the system
mod hello; // the HTTP server of samples
mod kube_rs; // kube-rs
#[cfg(target_os = "linux")]
mod process_nodes; // pods as local processes
#[cfg(target_os = "linux")]
mod process_streams; // logs, exec, attach and port-forward of kube-rs
mod running; // a `bellerophon up` process for one test
mod store; // members, keys, backup and restore of a store
mod up; // output, files, signals and exit codes
