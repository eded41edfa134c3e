//! An embedded Kubernetes API server: a tower service in-process, or HTTPS for kubectl and any
//! other client.

// Values without IO.
mod entropy; // the source of randomness
mod error; // `ApiError` and `Status`
mod field; // field paths and field errors
mod json_ext; // reads and defaults of JSON fields
mod limits; // how many requests are executed concurrently
mod names; // rules of names and labels
mod offload; // long work off the threads of other requests
mod version; // the Kubernetes release this server follows

// From bytes to objects, and back.
mod codec; // bodies, decoded as the type that is expected
mod decode; // request bodies in JSON and YAML
mod object; // typed metadata, opaque body, the clock
mod patch; // JSON patch, merge patch, strategic merge patch
mod protobuf; // the protobuf encoding of built-in types
mod types; // the table of built-in types; typed decoding

// Storage.
mod selector; // label and field selectors
mod store; // revisions, history, watches

// Requests.
mod audit; // the audit log
mod auth; // authentication, impersonation, RBAC
mod flow_control; // API Priority and Fairness
mod http; // paths, queries, media types, bodies
mod listen; // from connections to requests
mod tls; // the certificates of one server

// Resources.
mod crd; // custom resources: definitions and schemas
mod kinds; // the strategies of built-in kinds
mod managed_fields; // field managers and server-side apply
mod print; // tables and metadata-only forms
mod registry; // what is served now

// The path of a request.
mod admission; // mutating and validating admission
mod aggregation; // versions of groups that other servers serve
mod api; // the state that verbs, admission and controllers share
mod connect; // requests that are passed on to kubelets, pods and Services
mod controllers; // what the server does after writes
mod observe; // accepted writes, for an observer in the process
mod respond; // from replies to the bytes of responses
mod verbs; // one function per verb, for every kind
mod write; // the only code that writes storage

// Documents about the server.
mod discovery; // groups, versions and resources
mod metrics; // Prometheus metrics
mod non_resource; // health, version, metrics and other non-resource endpoints
mod openapi; // OpenAPI v2 and v3

// The server.
mod bootstrap; // the objects of a new cluster
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing; // what fuzz targets and benchmarks call
mod kubeconfig; // the kubeconfig of the server
mod server; // start and stop
mod service; // the tower service: a request in, a response out

pub use audit::AuditOptions;
pub use connect::{ByteStream, Dialer, Dialing, InProcessDialer, LoopbackDialer, TcpDialer};
pub use http::body::Body;
pub use kinds::Component;
pub use limits::RequestLimits;
pub use observe::{ObservedRequest, ObservedWrite};
pub use server::{ApiServer, Builder, StartError};
pub use service::ApiService;
