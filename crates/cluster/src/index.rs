//! Indexes of the shared informers: objects by controller uid, pods by node name.
//!
//! Guarantees: an index is added to an informer once, however many controllers request it.

use bellerophon::SharedInformer;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;

/// Index of objects by the uid of their controller.
pub(crate) const CONTROLLER_UID_INDEX: &str = "controller-uid";

/// Index of pods by `spec.nodeName`. Pods without a node are indexed under the empty string.
pub(crate) const NODE_NAME_INDEX: &str = "node-name";

/// Adds [`CONTROLLER_UID_INDEX`].
pub(crate) fn add_controller_uid_index<K: Resource + Send + Sync + 'static>(
    informer: &SharedInformer<K>,
) {
    add_index(informer, CONTROLLER_UID_INDEX, |object| {
        let owners = object.meta().owner_references.iter().flatten();
        owners
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone())
            .collect()
    });
}

/// Adds [`NODE_NAME_INDEX`].
pub(crate) fn add_node_name_index(pods: &SharedInformer<Pod>) {
    add_index(pods, NODE_NAME_INDEX, |pod| {
        vec![
            pod.spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default(),
        ]
    });
}

/// Adds an index unless another controller has added it. Equal names mean equal index functions.
pub(crate) fn add_index<K: Resource + Send + Sync + 'static>(
    informer: &SharedInformer<K>,
    name: &'static str,
    function: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
) {
    if informer.add_index(name, function).is_err() {
        tracing::trace!(index = name, ?informer, "the index exists already");
    }
}
