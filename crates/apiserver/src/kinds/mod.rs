//! The kinds the server serves: one row each, and what each does differently.

pub(crate) mod access; // roles and bindings
pub(crate) mod admission; // webhooks and policies
pub(crate) mod api_service; // servers of other groups
pub(crate) mod autoscaling; // autoscalers of both versions
pub(crate) mod classes; // priorities and runtimes
pub(crate) mod component_status; // health of the control plane
mod conditions; // conditions in a status
pub(crate) mod config_map; // settings
pub(crate) mod devices; // claims on devices and what drivers offer
pub(crate) mod disruption; // budgets and evictions
pub(crate) mod endpoint_slice; // addresses behind a service
pub(crate) mod endpoints; // addresses behind a service, old form
pub(crate) mod event; // events of both groups
pub(crate) mod flow_control; // which requests wait
pub(crate) mod ingress; // ingresses and their classes
pub(crate) mod lease; // who leads
pub(crate) mod limit_range;
mod validation; // little checks that many kinds share // bounds and defaults of resources in a namespace
use crate::json_ext;
pub(crate) mod namespace; // namespaces and their finalizers
pub(crate) mod network_policy; // who may talk to whom
pub(crate) mod node; // machines
pub(crate) mod persistent_volume; // volumes of the cluster
pub(crate) mod persistent_volume_claim; // claims on them
pub(crate) mod pod; // pods and what they are made of
mod quantity; // amounts such as 500m and 1Gi
pub(crate) mod resource_quota; // what a namespace may use
pub(crate) mod row; // one served kind: names, scope, verbs, storage
pub(crate) mod secret; // secrets and their types
pub(crate) mod selectable; // the fields that selectors may name
mod selector; // label selectors inside objects
pub(crate) mod service; // services, their addresses and node ports
pub(crate) mod service_account; // identities of pods
pub(crate) mod service_range; // ranges of service addresses
pub(crate) mod signing_request; // requests for certificates
pub(crate) mod storage; // classes, drivers and attachments
mod strategy; // what one kind does differently from all others
#[cfg(test)]
pub(crate) mod test_support; // writes against one strategy, for tests
pub(crate) mod workload; // kinds that make pods from a template

pub use component_status::Component;
pub(crate) use component_status::Components;
pub(crate) use config_map::decoded;
pub(crate) use disruption::{Verdict, evict};
pub(crate) use namespace::finalize;
pub(crate) use node::taint_not_ready;
pub(crate) use pod::{binding, condition::mark_evicted, ephemeral as ephemeral_containers, resize};
pub(crate) use quantity::Quantity;
pub(crate) use row::{Row, StoredAs};
pub(crate) use selector::Selector;
pub(crate) use service::{Addresses, Reservation};
pub(crate) use signing_request::{prepare_approval, record_requester, validate_approval};
pub(crate) use strategy::{
    Creation, DeleteAnswer, Deletion, Effect, Generation, ProxyTarget, STATUS_RESETS_METADATA,
    Strategy, keep_status,
};
