//! The binary as a process: output, files, signals, exit codes, and kube-rs.

mod charts; // Helm charts
#[cfg(target_os = "linux")]
mod dev; // projects that are built and run
mod doctor; // checks of the system
mod envtest; // test binaries
mod hello; // the HTTP server of samples
#[cfg(target_os = "linux")]
mod hero; // the Bellerophon operator with real members
#[cfg(target_os = "linux")]
mod hero_stores; // its stores, and an operator that is killed
mod kube_client; // clients of kube-rs
mod kube_rs; // kube-rs
mod kube_rs_webhook; // a webhook of kube-rs
mod kubelet_sockets; // HTTPS sockets of kubelets
#[path = "../../../apiserver/tests/apiserver/admission/label_webhook.rs"]
mod label_webhook; // the handler of a webhook
mod new; // projects of operators
mod packages; // forms of manifests, and the files of a release
mod page; // the live page over HTTP
mod page_actions; // actions and filters of the live page, and the page of `run`
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
mod waiting; // conditions on other processes
mod webhook_server; // the webhook over HTTPS
