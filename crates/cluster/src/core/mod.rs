//! Controllers that run at [`Level::Core`](crate::Level::Core) and above.

mod default_object; // an object that exists in every namespace
mod discovery; // resources served by the API server

mod cluster_role_aggregation; // rules of aggregated ClusterRoles
mod endpoints; // EndpointSlices and Endpoints of services
mod garbage_collector; // deletes dependents of deleted owners
mod namespace; // deletes the content of terminating namespaces
mod root_ca; // kube-root-ca.crt in every namespace
mod service_account; // ServiceAccount `default` in every namespace
mod ttl_after_finished; // deletes finished Jobs after their TTL
mod volume_attributes_class_protection; // finalizer of VolumeAttributesClasses in use
mod volume_protection; // finalizers of PersistentVolumes and claims in use

use crate::context::{Context, Loop};

/// The controllers of this level, in start order.
pub(crate) fn controllers(ctx: &Context) -> Vec<Loop> {
    let mut controllers = vec![
        service_account::controller(ctx),
        cluster_role_aggregation::controller(ctx),
        namespace::controller(ctx),
        garbage_collector::controller(ctx),
        volume_protection::pvc_controller(ctx),
        volume_protection::pv_controller(ctx),
        volume_attributes_class_protection::controller(ctx),
        ttl_after_finished::controller(ctx),
    ];
    controllers.extend(root_ca::controller(ctx));
    controllers.extend(endpoints::controllers(ctx));
    controllers
}
