//! Endpoints: where the pods of a service are.
//!
//! In: services, pods, nodes; endpoints that people write for services without pods. Out: EndpointSlices and Endpoints.
//! Holds: what is as it should be is not written; slices go with what they belong to, by the garbage collector.

mod mirror; // slices of endpoints that people wrote
mod pods; // a pod as an endpoint
mod select; // which pods belong to which services
mod slices; // endpoints spread over slices
mod subsets; // endpoints in the older form

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
    pods::Family,
    slices::{Changes, Common, Form},
};
use super::answer::{is_not_found, namespace_goes};
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const HEADLESS: &str = "service.kubernetes.io/headless";
const SLICER: &str = "endpointslice-controller.k8s.io";
const OLDER: &str = "endpoint-controller";
const OLDER_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";

/// How many services are looked at once, as upstream.
const WORKERS: usize = 5;

/// Slices by `namespace/name` of their service.
const BY_SERVICE: &str = "service";

/// The loops, under their upstream names.
pub(crate) fn controllers(ctx: &Context) -> Vec<Loop> {
    vec![slicer(ctx), older(ctx), mirror::controller(ctx)]
}

/// What both forms of endpoints are made from.
#[derive(Clone)]
struct Sources {
    client: Client,
    services: SharedInformer<Service>,
    pods: SharedInformer<Pod>,
    nodes: SharedInformer<Node>,
}

impl Sources {
    fn new(ctx: &Context) -> Self {
        let client = ctx.client(Component::ControllerManager);
        let sources = Self {
            client,
            services: ctx.informer(),
            pods: ctx.pods(),
            nodes: ctx.informer(),
        };
        index::by_node(&sources.pods);
        sources
    }

    /// The pods of a service.
    fn pods_of(&self, service: &Service) -> Vec<Arc<Pod>> {
        let Some(selector) = select::selector(service) else {
            return Vec::new();
        };
        let mut pods = self
            .pods
            .lister()
            .in_namespace(service.metadata.namespace.as_deref().unwrap_or_default());
        pods.retain(|pod| select::selects(selector, pod));
        pods
    }

    fn zone_of(&self, nodes: &Lister<Node>, pod: &Pod) -> Option<String> {
        nodes
            .get(&ObjectKey::cluster(pods::node_name(pod)?))
            .and_then(|node| select::zone(&node))
    }
}

fn slicer(ctx: &Context) -> Loop {
    let sources = Sources::new(ctx);
    let slices = slices_of(ctx, SLICER);
    let services = sources.services.lister();
    let services_too = sources.services.lister();
    let pods = sources.pods.lister();
    let own = slices.lister();
    Controller::of(&sources.services)
        .watches_if(&sources.pods, select::of_pods(), move |pod| {
            select::services_of(&services, pod)
        })
        .watches_if(&sources.nodes, select::of_nodes(), move |node| {
            select::services_on(&services_too, &pods, node)
        })
        .watches(&slices, |slice| service_of(slice).into_iter().collect())
        .with_options(ctx.options("endpointslice-controller", WORKERS))
        .reconcile_with(move |request: Request<Service>| {
            let sources = sources.clone();
            let own = own.clone();
            async move {
                let Some(service) = request
                    .object
                    .as_ref()
                    .filter(|service| select::selector(service).is_some())
                else {
                    return Ok(Outcome::Done);
                };
                let existing = own.by_index(BY_SERVICE, &request.key.to_string())?;
                let changes = slices::plan(&form(service), wanted(&sources, service), &existing);
                write(&sources.client, &request.key, changes, request.writes()).await
            }
        })
        .into()
}

/// The endpoints of a service, each with what it has in common with others.
fn wanted(
    sources: &Sources,
    service: &Service,
) -> Vec<(Common, k8s_openapi::api::discovery::v1::Endpoint)> {
    let nodes = sources.nodes.lister();
    let families = Family::of(service);
    let mut wanted = Vec::new();
    for pod in sources.pods_of(service) {
        let ports = pods::ports(service, &pod);
        for family in &families {
            if let Some(endpoint) =
                pods::endpoint(service, &pod, sources.zone_of(&nodes, &pod), *family)
            {
                wanted.push((
                    Common {
                        family: *family,
                        ports: ports.clone(),
                    },
                    endpoint,
                ));
            }
        }
    }
    wanted
}

fn form(service: &Service) -> Form {
    let mut meta = new_slice(service, SLICER);
    if let Some(labels) = &mut meta.labels {
        labels.remove(HEADLESS);
        if pods::is_headless(service) {
            labels.insert(HEADLESS.into(), String::new());
        }
    }
    Form {
        meta,
        families: Family::of(service),
    }
}

/// Metadata of a new slice of an object: named after it, owned by it, labelled like it.
fn new_slice<K: Resource<DynamicType = ()>>(owner: &K, manager: &str) -> ObjectMeta {
    let mut labels = owner.labels().clone();
    labels.insert(SERVICE_NAME.into(), owner.name_any());
    labels.insert(MANAGED_BY.into(), manager.into());
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

/// The slices that a loop manages, to be found by service.
fn slices_of(ctx: &Context, manager: &str) -> SharedInformer<EndpointSlice> {
    let slices = ctx.informer_with(InformerOptions {
        labels: Some(format!("{MANAGED_BY}={manager}")),
        ..InformerOptions::default()
    });
    index::add(&slices, BY_SERVICE, |slice| {
        service_of(slice).iter().map(ObjectKey::to_string).collect()
    });
    slices
}

fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    Some(ObjectKey::beside(slice, slice.labels().get(SERVICE_NAME)?))
}

/// Makes the changes: new slices first, so that no endpoint is missing in between.
async fn write(
    client: &Client,
    service: &ObjectKey,
    changes: Changes,
    writes: &Writes,
) -> ReconcileResult {
    let api =
        Api::<EndpointSlice>::namespaced(client.clone(), service.namespace().unwrap_or_default());
    for slice in &changes.create {
        match api.create(&PostParams::default(), slice).await {
            Ok(answer) => writes.wrote(&answer),
            Err(error) if namespace_goes(&error) => return Ok(Outcome::Done),
            Err(error) => return Err(error.into()),
        }
    }
    for slice in &changes.update {
        match api
            .replace(&slice.name_any(), &PostParams::default(), slice)
            .await
        {
            Ok(answer) => writes.wrote(&answer),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for slice in &changes.delete {
        writes.delete(&api, slice).await?;
    }
    Ok(Outcome::Done)
}

fn older(ctx: &Context) -> Loop {
    let sources = Sources::new(ctx);
    let endpoints = ctx.informer::<Endpoints>();
    let services = sources.services.lister();
    let known = endpoints.lister();
    Controller::of(&sources.services)
        .watches_if(&sources.pods, select::of_pods(), move |pod| {
            select::services_of(&services, pod)
        })
        // What people change in an object of ours is not undone at once, as upstream; what they delete comes back.
        .watches_if(&endpoints, Predicate::concerns(|_| false), |endpoints| {
            vec![ObjectKey::of(endpoints)]
        })
        .with_options(ctx.options(OLDER, WORKERS))
        .reconcile_with(move |request: Request<Service>| {
            let sources = sources.clone();
            let known = known.clone();
            async move {
                let api = Api::<Endpoints>::namespaced(
                    sources.client.clone(),
                    request.key.namespace().unwrap_or_default(),
                );
                let existing = known.get(&request.key);
                match (&request.object, existing) {
                    (None, Some(existing)) => forget(&api, &existing).await,
                    (Some(service), existing) if select::selector(service).is_some() => {
                        let pods = sources.pods_of(service);
                        let made = subsets::of(service, pods.iter().map(|pod| &**pod));
                        keep(
                            &api,
                            planned(service, existing.as_deref(), made),
                            request.writes(),
                        )
                        .await
                    }
                    _ => Ok(Outcome::Done),
                }
            }
        })
        .into()
}

/// Deletes the endpoints of a service that is gone.
async fn forget(api: &Api<Endpoints>, endpoints: &Endpoints) -> ReconcileResult {
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

/// The endpoints of a service as they should be; `None` if they are.
fn planned(
    service: &Service,
    existing: Option<&Endpoints>,
    made: subsets::Subsets,
) -> Option<Endpoints> {
    let mut endpoints = existing.cloned().unwrap_or_default();
    endpoints.metadata.name.clone_from(&service.metadata.name);
    endpoints
        .metadata
        .namespace
        .clone_from(&service.metadata.namespace);
    let mut labels = service.labels().clone();
    labels.remove(HEADLESS);
    if pods::is_headless(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(OLDER_MANAGED_BY.into(), OLDER.into());
    endpoints.metadata.labels = Some(labels);
    endpoints.subsets = Some(made.subsets).filter(|subsets| !subsets.is_empty());
    if made.truncated {
        endpoints
            .annotations_mut()
            .insert(subsets::OVER_CAPACITY.into(), "truncated".into());
    } else if let Some(annotations) = &mut endpoints.metadata.annotations {
        annotations.remove(subsets::OVER_CAPACITY);
    }
    (existing != Some(&endpoints)).then_some(endpoints)
}

async fn keep(
    api: &Api<Endpoints>,
    planned: Option<Endpoints>,
    writes: &Writes,
) -> ReconcileResult {
    let Some(endpoints) = planned else {
        return Ok(Outcome::Done);
    };
    let written = match endpoints.resource_version() {
        None => api.create(&PostParams::default(), &endpoints).await,
        Some(_) => {
            api.replace(&endpoints.name_any(), &PostParams::default(), &endpoints)
                .await
        }
    };
    match written {
        Ok(answer) => writes.wrote(&answer),
        Err(error) if namespace_goes(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Outcome::Done)
}
