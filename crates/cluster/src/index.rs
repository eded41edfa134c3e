//! Indexes: how loops find what belongs together without looking at everything.
//!
//! In: shared informers. Out: named indexes, each added once however many loops ask.

use bellerophon::SharedInformer;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;

/// Objects by the uid of their controller.
pub(crate) const BY_CONTROLLER: &str = "controller-uid";

/// Pods by the name of their node; those without one are under the empty name.
pub(crate) const BY_NODE: &str = "node-name";

/// Lets objects be found by [`BY_CONTROLLER`].
pub(crate) fn by_controller<K: Resource + Send + Sync + 'static>(informer: &SharedInformer<K>) {
    add(informer, BY_CONTROLLER, |object| {
        let owners = object.meta().owner_references.iter().flatten();
        owners
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone())
            .collect()
    });
}

/// Lets pods be found by [`BY_NODE`].
pub(crate) fn by_node(pods: &SharedInformer<Pod>) {
    add(pods, BY_NODE, |pod| {
        vec![
            pod.spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default(),
        ]
    });
}

/// Adds an index unless another loop did. Equal names mean equal functions.
pub(crate) fn add<K: Resource + Send + Sync + 'static>(
    informer: &SharedInformer<K>,
    name: &'static str,
    function: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
) {
    if informer.add_index(name, function).is_err() {
        tracing::trace!(index = name, ?informer, "another loop has added it");
    }
}
