//! EndpointSlice, Endpoints and EndpointSlice mirroring controllers.
//!
//! Input: services, pods, nodes; Endpoints created by users for services without a selector.
//! Output: EndpointSlices and Endpoints.
//! Guarantees: an object that has the desired state is not written; the slices of a deleted service
//! are deleted by the garbage collector.

mod mirror; // mirrors Endpoints to EndpointSlices
mod pods; // converts a pod to an endpoint
mod service_selector; // the services affected by a change
mod slices; // distributes endpoints over slices
mod subsets; // subsets of Endpoints

use std::sync::Arc;

use bellerophon::{
    Controller, InformerOptions, Lister, ObjectKey, Outcome, Predicate, ReconcileResult, Request,
    SharedInformer, Writes,
};
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};

use self::{
    pods::IpFamily,
    slices::{DesiredEndpoint, SliceChanges, SliceTemplate},
};
use crate::api_errors::{is_namespace_terminating_or_gone, is_not_found};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index;

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
const ENDPOINT_SLICE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
const ENDPOINTS_CONTROLLER: &str = "endpoint-controller";
const ENDPOINTS_MANAGED_BY_LABEL: &str = "endpoints.kubernetes.io/managed-by";

/// Services reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// Index of slices by `namespace/name` of their service.
const SERVICE_INDEX: &str = "service";

/// The controllers, under their upstream names.
pub(crate) fn controllers(ctx: &Context) -> Vec<Loop> {
    vec![
        endpoint_slice_controller(ctx),
        endpoints_controller(ctx),
        mirror::controller(ctx),
    ]
}

/// Informers that both the EndpointSlice and the Endpoints controller read.
#[derive(Clone)]
struct Informers {
    client: Client,
    services: SharedInformer<Service>,
    pods: SharedInformer<Pod>,
    nodes: SharedInformer<Node>,
}

impl Informers {
    fn new(ctx: &Context) -> Self {
        let client = ctx.client(Component::ControllerManager);
        let informers = Self {
            client,
            services: ctx.informer(),
            pods: ctx.pods(),
            nodes: ctx.informer(),
        };
        index::add_node_name_index(&informers.pods);
        informers
    }

    /// The pods selected by a service.
    fn pods_of(&self, service: &Service) -> Vec<Arc<Pod>> {
        let Some(selector) = service_selector::selector(service) else {
            return Vec::new();
        };
        let mut pods = self
            .pods
            .lister()
            .in_namespace(service.metadata.namespace.as_deref().unwrap_or_default());
        pods.retain(|pod| service_selector::matches(selector, pod));
        pods
    }

    fn zone_of(&self, nodes: &Lister<Node>, pod: &Pod) -> Option<String> {
        nodes
            .get(&ObjectKey::cluster(pods::node_name(pod)?))
            .and_then(|node| service_selector::zone(&node))
    }
}

fn endpoint_slice_controller(ctx: &Context) -> Loop {
    let informers = Informers::new(ctx);
    let slices = managed_slices(ctx, ENDPOINT_SLICE_CONTROLLER);
    let services = informers.services.lister();
    let services_by_node = informers.services.lister();
    let pods = informers.pods.lister();
    let slice_lister = slices.lister();
    Controller::of(&informers.services)
        .watches_if(
            &informers.pods,
            service_selector::pod_endpoints_changed(),
            move |pod| service_selector::services_for_pod(&services, pod),
        )
        .watches_if(
            &informers.nodes,
            service_selector::node_zone_changed(),
            move |node| service_selector::services_for_node(&services_by_node, &pods, node),
        )
        .watches(&slices, |slice| service_of(slice).into_iter().collect())
        .with_options(ctx.options("endpointslice-controller", WORKERS))
        .reconcile_with(move |request: Request<Service>| {
            let informers = informers.clone();
            let slice_lister = slice_lister.clone();
            async move {
                let Some(service) = request
                    .object
                    .as_ref()
                    .filter(|service| service_selector::selector(service).is_some())
                else {
                    return Ok(Outcome::Done);
                };
                // Mirrors syncService: services without a selector are left to the mirroring
                // controller.
                let existing = slice_lister.by_index(SERVICE_INDEX, &request.key.to_string())?;
                let changes = slices::plan(
                    &slice_template(service),
                    desired_endpoints(&informers, service),
                    &existing,
                );
                apply_changes(&informers.client, &request.key, changes, request.writes()).await
            }
        })
        .into()
}

/// The endpoints of a service, one per pod and IP family.
fn desired_endpoints(informers: &Informers, service: &Service) -> Vec<DesiredEndpoint> {
    let nodes = informers.nodes.lister();
    let families = IpFamily::of(service);
    let mut desired = Vec::new();
    for pod in informers.pods_of(service) {
        let ports = pods::ports(service, &pod);
        for family in &families {
            if let Some(endpoint) =
                pods::endpoint(service, &pod, informers.zone_of(&nodes, &pod), *family)
            {
                desired.push(DesiredEndpoint {
                    family: *family,
                    ports: ports.clone(),
                    endpoint,
                });
            }
        }
    }
    desired
}

fn slice_template(service: &Service) -> SliceTemplate {
    let mut meta = slice_metadata(service, ENDPOINT_SLICE_CONTROLLER);
    if let Some(labels) = &mut meta.labels {
        labels.remove(HEADLESS_LABEL);
        if pods::is_headless(service) {
            labels.insert(HEADLESS_LABEL.into(), String::new());
        }
    }
    SliceTemplate {
        meta,
        families: IpFamily::of(service),
    }
}

/// Metadata of a slice: `generateName`, labels and owner reference of its owner. Mirrors
/// newEndpointSlice and setEndpointSliceLabels.
fn slice_metadata<K: Resource<DynamicType = ()>>(owner: &K, manager: &str) -> ObjectMeta {
    let mut labels = owner.labels().clone();
    labels.insert(SERVICE_NAME_LABEL.into(), owner.name_any());
    labels.insert(MANAGED_BY_LABEL.into(), manager.into());
    let reference = OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    ObjectMeta {
        generate_name: Some(format!("{}-", owner.name_any())),
        namespace: owner.namespace(),
        labels: Some(labels),
        owner_references: Some(vec![reference]),
        ..ObjectMeta::default()
    }
}

/// Informer of the slices that a controller manages, indexed by service.
fn managed_slices(ctx: &Context, manager: &str) -> SharedInformer<EndpointSlice> {
    let slices = ctx.informer_with(InformerOptions {
        labels: Some(format!("{MANAGED_BY_LABEL}={manager}")),
        ..InformerOptions::default()
    });
    index::add_index(&slices, SERVICE_INDEX, |slice| {
        service_of(slice).iter().map(ObjectKey::to_string).collect()
    });
    slices
}

fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    Some(ObjectKey::beside(
        slice,
        slice.labels().get(SERVICE_NAME_LABEL)?,
    ))
}

/// Creates, then updates, then deletes slices, so that no endpoint is missing in between. Mirrors
/// Reconciler.finalize.
async fn apply_changes(
    client: &Client,
    service: &ObjectKey,
    changes: SliceChanges,
    writes: &Writes,
) -> ReconcileResult {
    let api =
        Api::<EndpointSlice>::namespaced(client.clone(), service.namespace().unwrap_or_default());
    for slice in &changes.create {
        match api.create(&PostParams::default(), slice).await {
            Ok(written) => writes.wrote(&written),
            Err(error) if is_namespace_terminating_or_gone(&error) => return Ok(Outcome::Done),
            Err(error) => return Err(error.into()),
        }
    }
    for slice in &changes.update {
        match api
            .replace(&slice.name_any(), &PostParams::default(), slice)
            .await
        {
            Ok(written) => writes.wrote(&written),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for slice in &changes.delete {
        writes.delete(&api, slice).await?;
    }
    Ok(Outcome::Done)
}

fn endpoints_controller(ctx: &Context) -> Loop {
    let informers = Informers::new(ctx);
    let endpoints = ctx.informer::<Endpoints>();
    let services = informers.services.lister();
    let endpoints_lister = endpoints.lister();
    Controller::of(&informers.services)
        .watches_if(
            &informers.pods,
            service_selector::pod_endpoints_changed(),
            move |pod| service_selector::services_for_pod(&services, pod),
        )
        // As upstream: deleted Endpoints are recreated, but a modification by others is not
        // reverted until the next change of the service or its pods.
        .watches_if(&endpoints, Predicate::concerns(|_| false), |endpoints| {
            vec![ObjectKey::of(endpoints)]
        })
        .with_options(ctx.options(ENDPOINTS_CONTROLLER, WORKERS))
        .reconcile_with(move |request: Request<Service>| {
            let informers = informers.clone();
            let endpoints_lister = endpoints_lister.clone();
            async move {
                let api = Api::<Endpoints>::namespaced(
                    informers.client.clone(),
                    request.key.namespace().unwrap_or_default(),
                );
                let existing = endpoints_lister.get(&request.key);
                match (&request.object, existing) {
                    (None, Some(existing)) => delete_endpoints(&api, &existing).await,
                    (Some(service), existing) if service_selector::selector(service).is_some() => {
                        let pods = informers.pods_of(service);
                        let subsets = subsets::build(service, pods.iter().map(|pod| &**pod));
                        let desired = desired_object(service, existing.as_deref(), subsets);
                        create_or_replace(&api, desired, request.writes()).await
                    }
                    _ => Ok(Outcome::Done),
                }
            }
        })
        .into()
}

/// Deletes the Endpoints of a deleted service.
async fn delete_endpoints(api: &Api<Endpoints>, endpoints: &Endpoints) -> ReconcileResult {
    let preconditions = Preconditions {
        uid: endpoints.uid(),
        resource_version: None,
    };
    match api
        .delete(
            &endpoints.name_any(),
            &DeleteParams::default().preconditions(preconditions),
        )
        .await
    {
        Ok(_) => Ok(Outcome::Done),
        Err(error) if is_not_found(&error) => Ok(Outcome::Done),
        Err(error) => Err(error.into()),
    }
}

/// The desired Endpoints of a service; `None` if they are up to date.
fn desired_object(
    service: &Service,
    existing: Option<&Endpoints>,
    desired: subsets::Subsets,
) -> Option<Endpoints> {
    let mut endpoints = existing.cloned().unwrap_or_default();
    endpoints.metadata.name.clone_from(&service.metadata.name);
    endpoints
        .metadata
        .namespace
        .clone_from(&service.metadata.namespace);
    let mut labels = service.labels().clone();
    labels.remove(HEADLESS_LABEL);
    if pods::is_headless(service) {
        labels.insert(HEADLESS_LABEL.into(), String::new());
    }
    labels.insert(
        ENDPOINTS_MANAGED_BY_LABEL.into(),
        ENDPOINTS_CONTROLLER.into(),
    );
    endpoints.metadata.labels = Some(labels);
    endpoints.subsets = Some(desired.subsets).filter(|subsets| !subsets.is_empty());
    if desired.truncated {
        endpoints
            .annotations_mut()
            .insert(subsets::OVER_CAPACITY_ANNOTATION.into(), "truncated".into());
    } else if let Some(annotations) = &mut endpoints.metadata.annotations {
        annotations.remove(subsets::OVER_CAPACITY_ANNOTATION);
    }
    (existing != Some(&endpoints)).then_some(endpoints)
}

async fn create_or_replace(
    api: &Api<Endpoints>,
    desired: Option<Endpoints>,
    writes: &Writes,
) -> ReconcileResult {
    let Some(endpoints) = desired else {
        return Ok(Outcome::Done);
    };
    let result = match endpoints.resource_version() {
        None => api.create(&PostParams::default(), &endpoints).await,
        Some(_) => {
            api.replace(&endpoints.name_any(), &PostParams::default(), &endpoints)
                .await
        }
    };
    match result {
        Ok(written) => writes.wrote(&written),
        Err(error) if is_namespace_terminating_or_gone(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Outcome::Done)
}
