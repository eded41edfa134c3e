//! Root certificates: every namespace has a config map by which pods trust the server.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;

use super::each_namespace::{Standard, keep};
use crate::context::{Context, Loop};

const DESCRIBED: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
    internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// The loop, under its upstream name; none for a server without a certificate.
pub(crate) fn controller(ctx: &Context) -> Option<Loop> {
    if ctx.root_ca.is_empty() {
        return None;
    }
    let mut fresh = ConfigMap {
        data: Some([("ca.crt".to_owned(), ctx.root_ca.clone())].into()),
        ..ConfigMap::default()
    };
    fresh
        .annotations_mut()
        .insert(DESCRIBED.into(), DESCRIPTION.into());
    Some(keep(
        ctx,
        Standard {
            controller: "root-ca-certificate-publisher-controller",
            name: "kube-root-ca.crt",
            fresh,
            repair,
        },
    ))
}

fn repair(map: &mut ConfigMap, fresh: &ConfigMap) {
    map.data.clone_from(&fresh.data);
    if map
        .annotations()
        .get(DESCRIBED)
        .is_none_or(String::is_empty)
    {
        map.annotations_mut()
            .insert(DESCRIBED.into(), DESCRIPTION.into());
    }
}
