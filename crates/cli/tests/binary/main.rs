//! The binary as a process: output, files, signals, exit codes, and kube-rs.

mod charts; // Helm charts
mod doctor; // checks of the system
mod hello; // the HTTP server of samples
#[cfg(target_os = "linux")]
mod hero; // the Bellerophon operator with real members
#[cfg(target_os = "linux")]
mod hero_stores; // its stores, and an operator that is killed
mod kube_rs; // kube-rs
mod page; // the live page over HTTP
#[cfg(target_os = "linux")]
mod process_nodes; // pods as local processes
#[cfg(target_os = "linux")]
mod process_streams; // logs, exec, attach and port-forward of kube-rs
mod running; // a `bellerophon up` process for one test
mod store; // members, keys, backup and restore of a store
#[cfg(target_os = "linux")]
#[path = "../../../store/tests/processes/load.rs"]
mod store_load; // clients of a store that record what they do
mod up; // output, files, signals and exit codes
