//! EndpointSlice mirroring: EndpointSlices of the Endpoints that users create for services without
//! a selector.
//!
//! Input: Endpoints and their services. Output: EndpointSlices.
//! Rules: Endpoints of a service with a selector, without a service, used for leader election, or
//! labelled `skip-mirror` are not mirrored.

use std::net::IpAddr;

use bellerophon::index::Index;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::ResourceExt;

use super::pods::IpFamily;
use super::slices::{DesiredEndpoint, SliceTemplate, plan};
use super::{apply_changes, by_service, managed_slices, service_of, slice_metadata};

const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP_MIRROR_LABEL: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER_ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";

/// Annotations of Endpoints that are not copied to the slices.
const UNMIRRORED_ANNOTATIONS: [&str; 2] = [
    "endpoints.kubernetes.io/last-change-trigger-time",
    "kubectl.kubernetes.io/last-applied-configuration",
];

/// Maximum number of mirrored addresses per subset, as upstream.
const MAX_ENDPOINTS_PER_SUBSET: usize = 1000;

struct Mirroring {
    services: Lister<Service>,
    slices: Index<EndpointSlice>,
}

/// Adds the controller, under its upstream name.
pub(super) fn setup(mgr: &mut Manager) {
    let slices = managed_slices(mgr, MIRRORING_CONTROLLER);
    let mirroring = Mirroring {
        services: mgr.lister(),
        slices: by_service(&slices),
    };
    mgr.controller::<Endpoints>()
        .watches::<Service>(|service| vec![ObjectKey::from_object(service)])
        .watches::<EndpointSlice>(|slice| service_of(slice).into_iter().collect())
        .informer(&slices)
        .name("endpointslicemirroring-controller")
        .concurrency(5)
        .reconcile(mirroring);
}

impl Reconciler<Endpoints> for Mirroring {
    async fn reconcile(&self, req: Request<Endpoints>) -> Result<Action, Error> {
        let existing = self.slices.get(&req.key().to_string());
        let service = self.services.get(req.key());
        let mirrored = req
            .object()
            .filter(|endpoints| should_mirror(endpoints, service.as_deref()));
        let Some(endpoints) = mirrored else {
            // A slice that no longer mirrors anything would keep routing to the addresses of a
            // removed Endpoints object.
            for slice in existing {
                req.client().delete(&*slice).await?;
            }
            return Ok(Action::await_change());
        };
        let template = slice_template(endpoints);
        let changes = plan(&template, desired_endpoints(endpoints), &existing);
        apply_changes(req.client(), changes).await
    }
}

/// Mirrors shouldMirror and the checks of syncEndpoints.
fn should_mirror(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let has_selector = |service: &Service| {
        service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())
            .is_some_and(|s| !s.is_empty())
    };
    let skipped = endpoints
        .labels()
        .get(SKIP_MIRROR_LABEL)
        .is_some_and(|value| value == "true")
        || endpoints.annotations().contains_key(LEADER_ANNOTATION);
    !skipped && service.is_some_and(|service| !has_selector(service))
}

fn slice_template(endpoints: &Endpoints) -> SliceTemplate {
    let mut meta = slice_metadata(endpoints, MIRRORING_CONTROLLER);
    let mut annotations = endpoints.annotations().clone();
    annotations.retain(|key, _| !UNMIRRORED_ANNOTATIONS.contains(&key.as_str()));
    meta.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    SliceTemplate {
        meta,
        families: Vec::new(),
    }
}

fn desired_endpoints(endpoints: &Endpoints) -> Vec<DesiredEndpoint> {
    let mut desired = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports: Vec<_> = subset
            .ports
            .iter()
            .flatten()
            .map(|port| EndpointPort {
                app_protocol: port.app_protocol.clone(),
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(port.port),
                protocol: port.protocol.clone(),
            })
            .collect();
        let ready = subset
            .addresses
            .iter()
            .flatten()
            .map(|address| (address, true));
        let not_ready = subset
            .not_ready_addresses
            .iter()
            .flatten()
            .map(|address| (address, false));
        for (address, ready) in ready.chain(not_ready).take(MAX_ENDPOINTS_PER_SUBSET) {
            if let Ok(ip) = address.ip.parse() {
                desired.push(DesiredEndpoint {
                    family: IpFamily::of_address(ip),
                    ports: ports.clone(),
                    endpoint: address_to_endpoint(address, ip, ready),
                });
            }
        }
    }
    desired
}

/// Mirrors addressToEndpoint.
fn address_to_endpoint(address: &EndpointAddress, ip: IpAddr, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}
