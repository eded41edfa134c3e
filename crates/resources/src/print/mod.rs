//! Tables and metadata-only forms, which `kubectl get` requests instead of the objects.
//! In: objects, and the requested form. Out: a `Table`, a `PartialObjectMetadata` or a list of
//! them.
//! Guarantees: a kind is one `Printer`; nothing here depends on the request or the transport.

mod descriptions; // descriptions of columns
mod field; // reading a body as if it were a struct
mod form; // the requested version, the metadata of a list
mod kinds; // group and kind to printer
pub mod partial; // objects without their bodies
mod printer; // a kind as a row
mod selector; // labels and selectors as text
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
mod pod; // pods
mod storage; // volumes, claims, classes, drivers
mod workload; // workloads, budgets and revisions

pub use form::{ListMeta, MetaVersion};
pub use kinds::printer;
pub use partial::{partial, partial_list};
pub use table::{IncludeObject, Table, TableOptions, table};
