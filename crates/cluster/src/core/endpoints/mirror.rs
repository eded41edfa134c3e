//! Mirror: slices of the endpoints that people write for a service without a selector.
//!
//! In: Endpoints and their services. Out: EndpointSlices.
//! Holds: endpoints that a loop made, that belong to no service, or that say so, are not mirrored.

use std::net::IpAddr;

use bellerophon::{Controller, ObjectKey, Outcome, Request};
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort};
use kube::ResourceExt;

use super::pods::Family;
use super::slices::{Common, Form, plan};
use super::{BY_SERVICE, new_slice, service_of, slices_of, write};
use crate::component::Component;
use crate::context::{Context, Loop};

const MIRROR: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// Annotations that are about the mirrored object itself.
const OWN_ANNOTATIONS: [&str; 2] = [
    "endpoints.kubernetes.io/last-change-trigger-time",
    "kubectl.kubernetes.io/last-applied-configuration",
];

/// How many addresses of a subset are mirrored, as upstream.
const ADDRESSES_MAX: usize = 1000;

/// The loop, under its upstream name.
pub(super) fn controller(ctx: &Context) -> Loop {
    let endpoints = ctx.informer::<Endpoints>();
    let services = ctx.informer::<Service>();
    let slices = slices_of(ctx, MIRROR);
    let client = ctx.client(Component::ControllerManager);
    let known = services.lister();
    let own = slices.lister();
    Controller::of(&endpoints)
        .watches(&services, |service| vec![ObjectKey::of(service)])
        .watches(&slices, |slice| service_of(slice).into_iter().collect())
        .with_options(ctx.options("endpointslicemirroring-controller", 5))
        .reconcile_with(move |request: Request<Endpoints>| {
            let client = client.clone();
            let known = known.clone();
            let own = own.clone();
            async move {
                let existing = own.by_index(BY_SERVICE, &request.key.to_string())?;
                let service = known.get(&request.key);
                let mirrored = request
                    .object
                    .as_ref()
                    .filter(|endpoints| is_mirrored(endpoints, service.as_deref()));
                let Some(endpoints) = mirrored else {
                    for slice in existing {
                        let api = kube::Api::namespaced(
                            client.clone(),
                            request.key.namespace().unwrap_or_default(),
                        );
                        request.writes().delete(&api, &*slice).await?;
                    }
                    return Ok(Outcome::Done);
                };
                write(
                    &client,
                    &request.key,
                    plan(&form(endpoints), wanted(endpoints), &existing),
                    request.writes(),
                )
                .await
            }
        })
        .into()
}

fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let selected = |service: &Service| {
        service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())
            .is_some_and(|s| !s.is_empty())
    };
    let skipped = endpoints
        .labels()
        .get(SKIP)
        .is_some_and(|value| value == "true")
        || endpoints.annotations().contains_key(LEADER);
    !skipped && service.is_some_and(|service| !selected(service))
}

fn form(endpoints: &Endpoints) -> Form {
    let mut meta = new_slice(endpoints, MIRROR);
    let mut annotations = endpoints.annotations().clone();
    annotations.retain(|key, _| !OWN_ANNOTATIONS.contains(&key.as_str()));
    meta.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    Form {
        meta,
        families: Vec::new(),
    }
}

fn wanted(endpoints: &Endpoints) -> Vec<(Common, Endpoint)> {
    let mut wanted = Vec::new();
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
        for (address, ready) in ready.chain(not_ready).take(ADDRESSES_MAX) {
            if let Ok(ip) = address.ip.parse() {
                wanted.push((
                    Common {
                        family: Family::of_address(ip),
                        ports: ports.clone(),
                    },
                    endpoint(address, ip, ready),
                ));
            }
        }
    }
    wanted
}

fn endpoint(address: &EndpointAddress, ip: IpAddr, ready: bool) -> Endpoint {
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
