//! The built-in kinds: one row each, with its strategy.

pub mod access; // roles and bindings
pub mod admission; // webhooks and policies
pub mod api_service; // aggregated API servers
pub mod autoscaling; // autoscalers of both versions
pub mod classes; // PriorityClass and RuntimeClass
pub mod component_status; // health of the control plane
mod conditions; // conditions in a status
pub mod config_map; // ConfigMaps
pub mod devices; // kinds of resource.k8s.io
pub mod disruption; // budgets and evictions
pub mod endpoint_slice; // addresses behind a service
pub mod endpoints; // addresses behind a service, deprecated form
pub mod event; // events of both groups
pub mod flow_control; // FlowSchemas and PriorityLevelConfigurations
pub mod ingress; // ingresses and their classes
pub mod lease; // Leases
pub mod limit_range; // bounds and defaults of resources in a namespace
pub mod namespace; // namespaces and their finalizers
pub mod network_policy; // NetworkPolicies
pub mod node; // Nodes
pub mod persistent_volume; // volumes of the cluster
pub mod persistent_volume_claim; // claims on them
pub mod pod; // pods and pod templates
pub mod resource_quota; // ResourceQuotas
pub mod row; // one served kind: names, scope, verbs, storage
pub mod secret; // secrets and their types
pub mod selectable; // the fields that selectors may name
mod selector; // label selectors inside objects
pub mod service; // services, their addresses and node ports
pub mod service_account; // identities of pods
pub mod service_range; // ranges of service addresses
pub mod signing_request; // CertificateSigningRequests
pub mod storage; // classes, drivers and attachments
mod strategy; // the strategy of a kind
#[cfg(test)]
pub(crate) mod test_support; // writes against one strategy, for tests
mod validation; // rules that many kinds share
pub mod workload; // kinds with a pod template

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
