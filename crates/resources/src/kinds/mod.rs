//! The kinds the server serves: one row each, and what each does differently.

pub mod access; // roles and bindings
pub mod admission; // webhooks and policies
pub mod api_service; // servers of other groups
pub mod autoscaling; // autoscalers of both versions
pub mod classes; // priorities and runtimes
pub mod component_status; // health of the control plane
mod conditions; // conditions in a status
pub mod config_map; // settings
pub mod devices; // claims on devices and what drivers offer
pub mod disruption; // budgets and evictions
pub mod endpoint_slice; // addresses behind a service
pub mod endpoints; // addresses behind a service, old form
pub mod event; // events of both groups
pub mod flow_control; // which requests wait
pub mod ingress; // ingresses and their classes
pub mod lease; // who leads
pub mod limit_range; // bounds and defaults of resources in a namespace
pub mod namespace; // namespaces and their finalizers
pub mod network_policy; // who may talk to whom
pub mod node; // machines
pub mod persistent_volume; // volumes of the cluster
pub mod persistent_volume_claim; // claims on them
pub mod pod; // pods and what they are made of
pub mod resource_quota; // what a namespace may use
pub mod row; // one served kind: names, scope, verbs, storage
pub mod secret; // secrets and their types
pub mod selectable; // the fields that selectors may name
mod selector; // label selectors inside objects
pub mod service; // services, their addresses and node ports
pub mod service_account; // identities of pods
pub mod service_range; // ranges of service addresses
pub mod signing_request; // requests for certificates
pub mod storage; // classes, drivers and attachments
mod strategy; // what one kind does differently from all others
#[cfg(test)]
pub(crate) mod test_support; // writes against one strategy, for tests
mod validation; // rules that many kinds share
pub mod workload; // kinds that make pods from a template

pub use component_status::Component;
pub use component_status::Components;
pub use config_map::decoded;
pub use disruption::{Verdict, evict};
pub use namespace::finalize;
pub use node::taint_not_ready;
pub use pod::{
    binding, condition::mark_evicted, ephemeral as ephemeral_containers, resize,
    resources::qos_class,
};
pub use row::{Row, StoredAs};
pub use selector::Selector;
pub use service::{Addresses, Reservation};
pub use signing_request::{prepare_approval, record_requester, validate_approval};
pub use strategy::{
    Creation, DeleteAnswer, Deletion, Effect, Generation, ProxyTarget, Review,
    STATUS_RESETS_METADATA, Strategy, keep_status,
};
