//! An embedded Kubernetes API server: a tower service in-process, or HTTPS for kubectl and any other client.

mod admission; // what the cluster demands of a request
mod aggregation; // versions of groups that other servers serve
mod api; // the state every verb works on
mod auth; // who asks, and whether they may
mod bootstrap; // what a fresh cluster holds
mod connect; // requests that are passed on to kubelets, pods and Services
mod crd; // custom resources: definitions and schemas
mod decode; // request bodies: JSON and YAML
mod definitions; // definitions at work: names, serving, clean-up
mod discovery; // what is served, told to clients
mod entropy; // the one source of randomness
mod error; // every failure, and its Status
mod field; // what is wrong with an object, field by field
mod flow_control; // API Priority and Fairness
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing; // what fuzz targets and benchmarks call
mod http; // requests to calls, outcomes to bytes
mod kinds; // the rows: one per served kind
mod kubeconfig; // the file through which clients find the server
mod limits; // how many requests are executed concurrently
mod listen; // from connections to requests
mod metrics; // what a scrape tells
mod names; // what names and labels may look like
mod object; // typed metadata, opaque body, the clock
mod observe; // accepted writes, for an observer in the process
mod offload; // long work off the threads of other requests
mod openapi; // what requests and objects look like
mod ownership; // who set which field, and apply
mod pages; // paths that are no resources
mod patch; // a change instead of an object
mod print; // tables and metadata-only forms
mod protobuf; // the binary form of built-in kinds
mod registry; // what is served right now
mod selector; // labels and fields
mod server; // starting and stopping
mod service; // a request in, a response out
mod store; // revisions, history, watches
mod tls; // the certificates of one server
mod types; // the built-in types, and objects read by them
mod verbs; // one function each, for every kind
mod write; // the only code that changes storage

pub use connect::{ByteStream, Dialer, Dialing, InProcessDialer, LoopbackDialer, TcpDialer};
pub use http::body::Body;
pub use kinds::Component;
pub use limits::RequestLimits;
pub use observe::{ObservedRequest, ObservedWrite};
pub use server::{ApiServer, Builder, StartError};
pub use service::ApiService;
