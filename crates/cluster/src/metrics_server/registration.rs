//! Registration of the metrics server: Service, EndpointSlice and APIService.
//!
//! Guarantees: the objects are those of metrics-server's manifests, except that the Service has no
//! selector, because no pod serves it, and that the APIService verifies the certificate.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bellerophon::ObjectKey;
use bellerophon::client::ReconcileClient;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::api::{GROUP, VERSION};
use crate::api_errors::status_message;

pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const SERVICE: &str = "metrics-server";

/// The address of the server. It belongs to no node and no pod, and exists in this process only.
pub(super) const ADDRESS: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 64, 0, 1)), PORT);
const PORT: u16 = 10250;

/// Where the API server publishes the authority of its front proxy.
const AUTHENTICATION: &str = "extension-apiserver-authentication";
const FRONT_PROXY_AUTHORITY: &str = "requestheader-client-ca-file";

/// Registers the metrics server.
pub(super) struct Registrar {
    /// Reads the authority of the front proxy.
    pub(super) reader: ReconcileClient,
    /// Writes the objects.
    pub(super) writer: ReconcileClient,
}

impl Registrar {
    /// The certificate of the authority that signs the client certificate of the front proxy, in
    /// PEM.
    pub(super) async fn front_proxy_authority(&self) -> Result<String, String> {
        let key = ObjectKey::namespaced(NAMESPACE, AUTHENTICATION);
        let config_map = self.reader.get::<ConfigMap>(&key).await;
        let config_map = config_map.map_err(|error| status_message(&error))?;
        let data = config_map.and_then(|config_map| config_map.data.clone());
        let authority = data.and_then(|mut data| data.remove(FRONT_PROXY_AUTHORITY));
        authority.ok_or_else(|| {
            format!("the ConfigMap {NAMESPACE}/{AUTHENTICATION} has no {FRONT_PROXY_AUTHORITY}")
        })
    }

    /// Applies the objects. The APIService is the last, so that its server can be reached.
    pub(super) async fn register(&self, ca_bundle: &str) -> Result<(), String> {
        for object in objects(ca_bundle) {
            let object: DynamicObject =
                serde_json::from_value(object).map_err(|error| error.to_string())?;
            let applied = self.writer.apply(&object).await;
            applied.map_err(|error| status_message(&error))?;
        }
        Ok(())
    }
}

fn objects(ca_bundle: &str) -> [Value; 3] {
    let port_name = "https";
    let labels = json!({"k8s-app": SERVICE});
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": SERVICE, "labels": labels},
        "spec": {"ports": [{
            "name": port_name, "port": 443, "protocol": "TCP", "targetPort": PORT,
            "appProtocol": "https",
        }]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": NAMESPACE, "name": SERVICE,
            "labels": {"kubernetes.io/service-name": SERVICE},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ADDRESS.ip()], "conditions": {"ready": true}}],
        "ports": [{"name": port_name, "port": PORT, "protocol": "TCP"}],
    });
    let api_service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("{VERSION}.{GROUP}"), "labels": labels},
        "spec": {
            "group": GROUP, "version": VERSION,
            "service": {"namespace": NAMESPACE, "name": SERVICE, "port": 443},
            "caBundle": BASE64_STANDARD.encode(ca_bundle),
            "groupPriorityMinimum": 100, "versionPriority": 100,
        },
    });
    [service, slice, api_service]
}
