//! Controllers that run at [`Level::Core`](crate::Level::Core) and above.

mod default_object; // an object that exists in every namespace
mod discovery; // resources served by the API server

mod cluster_role_aggregation; // rules of aggregated ClusterRoles
mod endpoints; // EndpointSlices and Endpoints of services
mod garbage_collector; // deletes dependents of deleted owners
mod namespace; // deletes the content of terminating namespaces
mod policy_status; // type checking of ValidatingAdmissionPolicies
mod resource_quota; // usage of ResourceQuotas
mod root_ca; // kube-root-ca.crt in every namespace
mod service_account; // ServiceAccount `default` in every namespace
mod ttl_after_finished; // deletes finished Jobs after their TTL
mod volume_attributes_class_protection; // finalizer of VolumeAttributesClasses in use
mod volume_protection; // finalizers of PersistentVolumes and claims in use

use bellerophon::manager::Manager;
use tokio::sync::watch;

/// Adds the controllers of this level. The receiver is true once the garbage collector observes
/// every resource.
pub(crate) fn setup(mgr: &mut Manager, root_ca: &str) -> watch::Receiver<bool> {
    service_account::setup(mgr);
    cluster_role_aggregation::setup(mgr);
    namespace::setup(mgr);
    let collector_ready = garbage_collector::setup(mgr);
    volume_protection::setup_pvc(mgr);
    volume_protection::setup_pv(mgr);
    volume_attributes_class_protection::setup(mgr);
    ttl_after_finished::setup(mgr);
    resource_quota::setup(mgr);
    policy_status::setup(mgr);
    root_ca::setup(mgr, root_ca);
    endpoints::setup(mgr);
    collector_ready
}
