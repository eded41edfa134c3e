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

use bellerophon::client::{Precondition, ReconcileClient, WriteOptions};
use bellerophon::index::Index;
use bellerophon::informer::{InformerOptions, SharedInformer};
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{Endpoints, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};

use self::{
    pods::IpFamily,
    slices::{DesiredEndpoint, SliceChanges, SliceTemplate},
};
use crate::api_errors::{is_namespace_terminating_or_gone, is_not_found};
use crate::index;

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
const ENDPOINT_SLICE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
const ENDPOINTS_CONTROLLER: &str = "endpoint-controller";
const ENDPOINTS_MANAGED_BY_LABEL: &str = "endpoints.kubernetes.io/managed-by";

/// Services reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// Adds the controllers, under their upstream names.
pub(crate) fn setup(mgr: &mut Manager) {
    setup_endpoint_slices(mgr);
    setup_endpoints(mgr);
    mirror::setup(mgr);
}

/// Caches that both the EndpointSlice and the Endpoints controller read.
#[derive(Clone)]
struct Listers {
    pods: Lister<Pod>,
    nodes: Lister<Node>,
}

impl Listers {
    fn new(mgr: &mut Manager) -> Self {
        Self {
            pods: index::pods(mgr).lister(),
            nodes: mgr.lister(),
        }
    }

    /// The pods selected by a service.
    fn pods_of(&self, service: &Service) -> Vec<Arc<Pod>> {
        let Some(selector) = service_selector::selector(service) else {
            return Vec::new();
        };
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let mut pods = self.pods.in_namespace(namespace);
        pods.retain(|pod| service_selector::matches(selector, pod));
        pods
    }

    fn zone_of(&self, pod: &Pod) -> Option<String> {
        let node = self.nodes.get(&ObjectKey::cluster(pods::node_name(pod)?))?;
        service_selector::zone(&node)
    }
}

struct EndpointSlices {
    listers: Listers,
    slices: Index<EndpointSlice>,
}

fn setup_endpoint_slices(mgr: &mut Manager) {
    let slices = managed_slices(mgr, ENDPOINT_SLICE_CONTROLLER);
    let endpoint_slices = EndpointSlices {
        listers: Listers::new(mgr),
        slices: by_service(&slices),
    };
    let services = mgr.lister::<Service>();
    let services_by_node = services.clone();
    let pods_by_node = index::by_node_name(&index::pods(mgr));
    mgr.controller::<Service>()
        .watches::<Pod>(move |pod| service_selector::services_for_pod(&services, pod))
        .predicate(service_selector::pod_endpoints_changed())
        .watches::<Node>(move |node| {
            service_selector::services_for_node(&services_by_node, &pods_by_node, node)
        })
        .predicate(service_selector::node_zone_changed())
        .watches::<EndpointSlice>(|slice| service_of(slice).into_iter().collect())
        .informer(&slices)
        .name("endpointslice-controller")
        .concurrency(WORKERS)
        .reconcile(endpoint_slices);
}

impl Reconciler<Service> for EndpointSlices {
    async fn reconcile(&self, req: Request<Service>) -> Result<Action, Error> {
        let has_selector = |service: &&Service| service_selector::selector(service).is_some();
        // As upstream, the slices of a service whose selector was removed stay: users may manage
        // them.
        let Some(service) = req.object().filter(has_selector) else {
            return Ok(Action::await_change());
        };
        let existing = self.slices.get(&req.key().to_string());
        let desired = desired_endpoints(&self.listers, service);
        let changes = slices::plan(&slice_template(service), desired, &existing);
        apply_changes(req.client(), changes).await
    }
}

/// The endpoints of a service, one per pod and IP family.
fn desired_endpoints(listers: &Listers, service: &Service) -> Vec<DesiredEndpoint> {
    let families = IpFamily::of(service);
    let mut desired = Vec::new();
    for pod in listers.pods_of(service) {
        let ports = pods::ports(service, &pod);
        for family in &families {
            if let Some(endpoint) = pods::endpoint(service, &pod, listers.zone_of(&pod), *family) {
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
    // Mirrors setEndpointSliceLabels: labels of the service are copied, but cannot override those
    // by which the controllers find their slices.
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

/// Informer of the slices that a controller manages.
fn managed_slices(mgr: &mut Manager, manager: &str) -> SharedInformer<EndpointSlice> {
    mgr.informer(InformerOptions::labels(format!(
        "{MANAGED_BY_LABEL}={manager}"
    )))
}

/// Slices by `namespace/name` of their service.
fn by_service(slices: &SharedInformer<EndpointSlice>) -> Index<EndpointSlice> {
    slices.index("service", |slice| {
        service_of(slice).iter().map(ObjectKey::to_string).collect()
    })
}

fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    Some(ObjectKey::in_namespace_of(
        slice,
        slice.labels().get(SERVICE_NAME_LABEL)?,
    ))
}

/// Creates, then updates, then deletes slices, so that no endpoint is missing in between. Mirrors
/// Reconciler.finalize.
async fn apply_changes(client: &ReconcileClient, changes: SliceChanges) -> Result<Action, Error> {
    for slice in &changes.create {
        match client.create(slice).await {
            Ok(_) => {}
            Err(error) if is_namespace_terminating_or_gone(&error) => {
                return Ok(Action::await_change());
            }
            Err(error) => return Err(error.into()),
        }
    }
    for slice in &changes.update {
        match client.update(slice).await {
            Err(error) if !is_not_found(&error) => return Err(error.into()),
            _ => {}
        }
    }
    for slice in &changes.delete {
        client.delete(slice).await?;
    }
    Ok(Action::await_change())
}

struct EndpointsReconciler {
    listers: Listers,
    endpoints: Lister<Endpoints>,
}

fn setup_endpoints(mgr: &mut Manager) {
    let reconciler = EndpointsReconciler {
        listers: Listers::new(mgr),
        endpoints: mgr.lister(),
    };
    let services = mgr.lister::<Service>();
    mgr.controller::<Service>()
        .watches::<Pod>(move |pod| service_selector::services_for_pod(&services, pod))
        .predicate(service_selector::pod_endpoints_changed())
        // As upstream: deleted Endpoints are recreated, but a modification by others is not
        // reverted until the next change of the service or its pods.
        .watches::<Endpoints>(|endpoints| vec![ObjectKey::from_object(endpoints)])
        .predicate(Predicate::deletions())
        .name(ENDPOINTS_CONTROLLER)
        .concurrency(WORKERS)
        .reconcile(reconciler);
}

impl Reconciler<Service> for EndpointsReconciler {
    async fn reconcile(&self, req: Request<Service>) -> Result<Action, Error> {
        let existing = self.endpoints.get(req.key());
        match (req.object(), existing) {
            (None, Some(existing)) => {
                // The Endpoints of a deleted service, in any version.
                let any_version = WriteOptions {
                    precondition: Some(Precondition::Uid),
                    ..WriteOptions::default()
                };
                req.client()
                    .with_options(any_version)
                    .delete(&*existing)
                    .await?;
                Ok(Action::await_change())
            }
            (Some(service), existing) if service_selector::selector(service).is_some() => {
                let pods = self.listers.pods_of(service);
                let subsets = subsets::build(service, pods.iter().map(|pod| &**pod));
                let desired = desired_object(service, existing.as_deref(), subsets);
                create_or_replace(req.client(), desired).await
            }
            _ => Ok(Action::await_change()),
        }
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
    client: &ReconcileClient,
    desired: Option<Endpoints>,
) -> Result<Action, Error> {
    let Some(endpoints) = desired else {
        return Ok(Action::await_change());
    };
    // The resource version of the cached object makes an update on a stale cache fail with 409.
    let written = match endpoints.resource_version() {
        None => client.create(&endpoints).await,
        Some(_) => client.update(&endpoints).await,
    };
    match written {
        Err(error) if !is_namespace_terminating_or_gone(&error) => Err(error.into()),
        _ => Ok(Action::await_change()),
    }
}
