//! Tables and metadata-only forms: what `kubectl get` asks for instead of the objects themselves.
//! In: objects, and the form the client accepts. Out: a `Table`, a `PartialObjectMetadata` or a
//! list of them.
//! Guarantees: a kind is one `Printer`; nothing here knows how a request came in or how the
//! answer is sent.

mod descriptions; // the server's texts about columns
mod field; // reading a body as if it were a struct
mod form; // the version asked for, the metadata of a list
mod kinds; // group and kind to printer
pub mod partial; // objects without their bodies
mod printer; // a kind as a row
mod selector; // labels and selectors in words
mod table; // rows to a Table

mod access; // role bindings, certificate requests
mod admission; // webhooks, admission policies and bindings
mod autoscaler; // HorizontalPodAutoscaler, Scale
mod batch; // jobs and cron jobs
mod cluster; // nodes, namespaces, classes, flow control, API services
mod config; // secrets, config maps, accounts, quotas, leases
mod device; // resource claims, slices, device classes
mod event; // events of both groups
mod network; // services, endpoints, ingresses, addresses
mod pod; // the many words for what a pod is doing
mod storage; // volumes, claims, classes, drivers
mod workload; // controllers of pods, and what guards or records them

pub use form::{ListMeta, MetaVersion};
pub use kinds::printer;
pub use partial::{partial, partial_list};
pub use table::{IncludeObject, Table, TableOptions, table};
