//! The kinds the server serves: one row each, and what each does differently.

mod access; // roles and bindings
mod admission; // webhooks and policies
mod api_service; // servers of other groups
mod autoscaling; // autoscalers of both versions
mod checks; // little checks that many kinds share
mod classes; // priorities and runtimes
mod component_status; // health of the control plane
mod conditions; // conditions in a status
mod config_map; // settings
mod devices; // claims on devices and what drivers offer
mod disruption; // budgets and evictions
mod endpoint_slice; // addresses behind a service
mod endpoints; // addresses behind a service, old form
mod event; // events of both groups
mod flow_control; // which requests wait
mod ingress; // ingresses and their classes
mod lease; // who leads
mod limit_range; // bounds and defaults of resources in a namespace
mod look; // reading JSON with what is absent as empty
mod namespace; // namespaces and their finalizers
mod network_policy; // who may talk to whom
mod node; // machines
mod persistent_volume; // volumes of the cluster
mod persistent_volume_claim; // claims on them
mod pod; // pods and what they are made of
mod quantity; // amounts such as 500m and 1Gi
mod resource_quota; // what a namespace may use
mod row; // one served kind: names, scope, verbs, storage
mod secret; // secrets and their types
mod selectable; // the fields that selectors may name
mod selector; // label selectors inside objects
mod service; // services, their addresses and node ports
mod service_account; // identities of pods
mod service_range; // ranges of service addresses
mod signing_request; // requests for certificates
mod storage; // classes, drivers and attachments
mod strategy; // what one kind does differently from all others
mod table; // the rows
#[cfg(test)]
pub(crate) mod trial; // writes against one strategy, for tests
mod workload; // kinds that make pods from a template

pub use component_status::Component;
pub(crate) use component_status::Components;
pub(crate) use config_map::decoded;
pub(crate) use disruption::{Verdict, evict};
pub(crate) use look::{Fill, Look, same};
pub(crate) use namespace::finalize;
pub(crate) use node::taint_not_ready;
pub(crate) use pod::{binding, condition::mark_evicted, ephemeral as ephemeral_containers, resize};
pub(crate) use quantity::Quantity;
pub(crate) use row::{Row, StoredAs};
pub(crate) use selector::Selector;
pub(crate) use service::{Addresses, Reservation};
pub(crate) use signing_request::{prepare_approval, record_requester, validate_approval};
pub(crate) use strategy::{DeleteAnswer, Deletion, Effect, Generation, Strategy, keep_status};
pub(crate) use table::ROWS;
