//! An embedded Kubernetes API server: a tower service in-process, or HTTPS for kubectl and any
//! other client.

// Values without IO.
mod clock; // the server's time
mod entropy; // the source of randomness
mod limits; // how many requests are executed concurrently
mod offload; // long work off the threads of other requests
mod options; // what kube-apiserver takes as flags
#[cfg(test)]
mod test_support; // objects of unit tests
mod version; // the Kubernetes release this server follows
mod webhook_client; // where webhooks are
mod webhook_response; // what webhooks answer

// Requests.
mod audit; // the audit log
mod auth; // authentication, impersonation, RBAC
mod flow_control; // API Priority and Fairness
mod http; // paths, queries, media types, bodies
mod listen; // from connections to requests
mod tls; // the certificates of one server

// Resources.
mod managed_fields; // field managers and server-side apply
mod registry; // what is served now

// The path of a request.
mod admission; // mutating and validating admission
mod admission_config; // webhooks and policies, compiled
mod aggregation; // versions of groups that other servers serve
mod api; // the state that verbs, admission and controllers share
mod connect; // requests that are passed on to kubelets, pods and Services
mod controllers; // what the server does after writes
mod conversion; // custom resources converted by webhooks
mod endpoints; // ready endpoints of Services
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
mod snapshot; // all objects, for a restart

pub use audit::{AuditOptions, AuditRotation};
pub use bellerophon_resources::kinds::Component;
pub use connect::{ByteStream, Dialer, Dialing, InProcessDialer, LoopbackDialer, TcpDialer};
pub use http::body::Body;
pub use limits::RequestLimits;
pub use observe::{ObservedRequest, ObservedWrite, StoredObject, StoredObjects};
pub use options::{
    AuthorizationMode, ServerOptions, ServiceAccountKeys, ServingCertificate, StaticToken,
};
pub use server::{ApiServer, Builder, StartError};
pub use service::ApiService;
