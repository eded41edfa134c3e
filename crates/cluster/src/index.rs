//! Shared informers and indexes of several controllers: pods, children by owner, pods by node.
//!
//! Guarantees: equal requests share one informer and one index.

use bellerophon::index::{Index, controller_uid};
use bellerophon::informer::{InformerOptions, SharedInformer, Transform};
use bellerophon::kinds::Kind;
use bellerophon::manager::Manager;
use k8s_openapi::api::core::v1::Pod;

use crate::trim::trim_pod;

/// The informer of all pods, without the fields that no controller reads.
pub(crate) fn pods(mgr: &mut Manager) -> SharedInformer<Pod> {
    mgr.informer(InformerOptions {
        transform: Some(Transform::new(trim_pod)),
        ..InformerOptions::default()
    })
}

/// Objects by the uid of their controller.
pub(crate) fn by_controller_uid<K: Kind>(informer: &SharedInformer<K>) -> Index<K> {
    informer.index("controller-uid", controller_uid::<K>)
}

/// Pods by `spec.nodeName`. Pods without a node are under the empty string.
pub(crate) fn by_node_name(pods: &SharedInformer<Pod>) -> Index<Pod> {
    pods.index("node-name", node_name)
}

fn node_name(pod: &Pod) -> Vec<String> {
    let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    vec![name.unwrap_or_default()]
}
