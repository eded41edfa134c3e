//! Root CA certificate publisher: every namespace has a ConfigMap `kube-root-ca.crt` with the CA
//! bundle of the API server.

use bellerophon::manager::Manager;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;

use super::default_object::DefaultObject;

const DESCRIPTION_ANNOTATION: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when \
    using internal endpoints such as the internal service IP or kubernetes.default.svc. No other \
    usage is guaranteed across distributions of Kubernetes clusters.";

/// Adds the controller, under its upstream name; none if the cluster has no CA bundle.
pub(crate) fn setup(mgr: &mut Manager, root_ca: &str) {
    if root_ca.is_empty() {
        return;
    }
    let mut desired = ConfigMap {
        data: Some([("ca.crt".to_owned(), root_ca.to_owned())].into()),
        ..ConfigMap::default()
    };
    desired
        .annotations_mut()
        .insert(DESCRIPTION_ANNOTATION.into(), DESCRIPTION.into());
    let root_ca = DefaultObject {
        controller: "root-ca-certificate-publisher-controller",
        name: "kube-root-ca.crt",
        desired,
        update,
    };
    root_ca.setup(mgr);
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
