//! Root CA certificate publisher: every namespace has a ConfigMap `kube-root-ca.crt` with the CA
//! bundle of the API server.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;

use super::default_object::{DefaultObject, default_object_controller};
use crate::context::{Context, Loop};

const DESCRIPTION_ANNOTATION: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when \
    using internal endpoints such as the internal service IP or kubernetes.default.svc. No other \
    usage is guaranteed across distributions of Kubernetes clusters.";

/// The controller, under its upstream name; `None` if the cluster has no CA bundle.
pub(crate) fn controller(ctx: &Context) -> Option<Loop> {
    if ctx.root_ca.is_empty() {
        return None;
    }
    let mut desired = ConfigMap {
        data: Some([("ca.crt".to_owned(), ctx.root_ca.clone())].into()),
        ..ConfigMap::default()
    };
    desired
        .annotations_mut()
        .insert(DESCRIPTION_ANNOTATION.into(), DESCRIPTION.into());
    Some(default_object_controller(
        ctx,
        DefaultObject {
            controller: "root-ca-certificate-publisher-controller",
            name: "kube-root-ca.crt",
            desired,
            update,
        },
    ))
}

/// Restores the data, and the description if it is empty. Upstream: Publisher.syncNamespace.
fn update(config_map: &mut ConfigMap, desired: &ConfigMap) {
    config_map.data.clone_from(&desired.data);
    if config_map
        .annotations()
        .get(DESCRIPTION_ANNOTATION)
        .is_none_or(String::is_empty)
    {
        config_map
            .annotations_mut()
            .insert(DESCRIPTION_ANNOTATION.into(), DESCRIPTION.into());
    }
}
