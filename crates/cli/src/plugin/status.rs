//! `kubectl bellerophon status`: the operators of a cluster and their objects.
//!
//! Input: a client. Output: a row per operator and kind, then a line per object that is not ready.
//!
//! Works with every cluster: it reads Deployments, DaemonSets, Leases and custom resources.

use bellerophon_operator::Operator;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;

use crate::{error::CliError, operators};

/// Objects that are not ready and are printed; of each further one, only the number.
const NOT_READY_MAX: usize = 20;

/// Objects of a kind that are read.
const OBJECTS_MAX: u32 = 500;

/// The table, and the objects that are not ready.
///
/// # Errors
/// The server cannot be reached or does not allow a request.
pub(super) async fn status(client: &Client) -> Result<Vec<String>, CliError> {
    let installed = Installed::read(client).await?;
    let mut rows = vec![row([
        "OPERATOR", "PODS", "LEADER", "KIND", "OBJECTS", "READY",
    ])];
    let mut not_ready = Vec::new();
    for operator in operators::all() {
        let pods = installed.pods(&operator);
        let leader = installed.leader(&operator);
        let crds = (operator.crds)();
        if crds.is_empty() {
            rows.push(row([operator.name, &pods, &leader, "", "", ""]));
        }
        for crd in crds {
            let kind = crd.spec.names.kind.clone();
            let (count, ready) = match objects(client, &crd).await? {
                None => ("not installed".to_owned(), String::new()),
                Some(objects) => {
                    let readiness: Vec<Readiness> = objects.iter().map(readiness).collect();
                    let ready = readiness.iter().filter(|one| **one != Readiness::Unknown);
                    let with_condition = ready.count();
                    let ready = readiness.iter().filter(|one| **one == Readiness::Ready);
                    let ready = match with_condition {
                        0 => "-".to_owned(),
                        _ => ready.count().to_string(),
                    };
                    for (object, readiness) in objects.iter().zip(&readiness) {
                        if let Readiness::NotReady(message) = readiness {
                            not_ready.push(format!("{kind} {}: {message}", name(object)));
                        }
                    }
                    (objects.len().to_string(), ready)
                }
            };
            rows.push(row([operator.name, &pods, &leader, &kind, &count, &ready]));
        }
    }
    if !not_ready.is_empty() {
        rows.push(String::new());
        rows.push("Not ready:".to_owned());
        let omitted = not_ready.len().saturating_sub(NOT_READY_MAX);
        rows.extend(not_ready.into_iter().take(NOT_READY_MAX));
        if omitted > 0 {
            rows.push(format!("and {omitted} more"));
        }
    }
    Ok(rows)
}

fn row(cells: [&str; 6]) -> String {
    let [operator, pods, leader, kind, objects, ready] = cells;
    let row = format!("{operator:<13} {pods:<6} {leader:<36} {kind:<18} {objects:<14} {ready}");
    row.trim_end().to_owned()
}

fn name(object: &DynamicObject) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    match &object.metadata.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The workloads and Leases of operators, in all namespaces.
struct Installed {
    workloads: Vec<DynamicObject>,
    leases: Vec<DynamicObject>,
}

impl Installed {
    async fn read(client: &Client) -> Result<Self, CliError> {
        let ours = ListParams::default().labels("app.kubernetes.io/part-of=bellerophon");
        let mut workloads = Vec::new();
        for kind in ["Deployment", "DaemonSet"] {
            let resource = GroupVersionKind::gvk("apps", "v1", kind);
            workloads.extend(list(client, &resource, &ours).await?);
        }
        let resource = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
        let leases = list(client, &resource, &ListParams::default()).await?;
        Ok(Self { workloads, leases })
    }

    /// Its workload. It has the name of the operator.
    fn workload(&self, operator: &Operator) -> Option<&DynamicObject> {
        let is_its =
            |workload: &&DynamicObject| workload.metadata.name.as_deref() == Some(operator.name);
        self.workloads.iter().find(is_its)
    }

    /// Ready and desired pods; `-` if the operator does not run in pods.
    fn pods(&self, operator: &Operator) -> String {
        let Some(workload) = self.workload(operator) else {
            return "-".to_owned();
        };
        let status = &workload.data["status"];
        let count = |names: [&str; 2]| {
            let mut counts = names.iter().filter_map(|name| status[*name].as_u64());
            counts.next().unwrap_or(0)
        };
        let ready = count(["readyReplicas", "numberReady"]);
        let desired = count(["replicas", "desiredNumberScheduled"]);
        format!("{ready}/{desired}")
    }

    /// The holder of the Lease of its Deployment.
    fn leader(&self, operator: &Operator) -> String {
        let namespace = self
            .workload(operator)
            .and_then(|workload| workload.metadata.namespace.clone());
        let is_its = |lease: &&DynamicObject| {
            lease.metadata.name.as_deref() == Some(operator.name)
                && lease.metadata.namespace == namespace
        };
        let lease = self.leases.iter().find(is_its);
        let holder = lease.and_then(|lease| lease.data["spec"]["holderIdentity"].as_str());
        holder
            .filter(|holder| !holder.is_empty())
            .unwrap_or("-")
            .to_owned()
    }
}

async fn list(
    client: &Client,
    resource: &GroupVersionKind,
    parameters: &ListParams,
) -> Result<Vec<DynamicObject>, CliError> {
    let api = Api::all_with(client.clone(), &ApiResource::from_gvk(resource));
    let listed = api.list(parameters).await;
    let step = format!("cannot list {}s", resource.kind);
    Ok(listed.map_err(CliError::context(&step))?.items)
}

/// The objects of a definition; `None` if it is not served.
async fn objects(
    client: &Client,
    crd: &CustomResourceDefinition,
) -> Result<Option<Vec<DynamicObject>>, CliError> {
    let Some(version) = crd.spec.versions.iter().find(|version| version.storage) else {
        return Ok(None);
    };
    let names = &crd.spec.names;
    let kind = GroupVersionKind::gvk(&crd.spec.group, &version.name, &names.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, &names.plural);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match api.list(&ListParams::default().limit(OBJECTS_MAX)).await {
        Ok(list) => Ok(Some(list.items)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => {
            let step = format!("cannot list {}.{}", names.plural, crd.spec.group);
            Err(CliError::context(&step)(error))
        }
    }
}

/// The condition `Ready` of an object.
#[derive(Debug, PartialEq, Eq)]
enum Readiness {
    Ready,
    NotReady(String),
    /// The object has no such condition.
    Unknown,
}

fn readiness(object: &DynamicObject) -> Readiness {
    let conditions = object.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let Some(ready) = conditions.find(|condition| condition["type"] == "Ready") else {
        return Readiness::Unknown;
    };
    let text = |member: &Value| member.as_str().unwrap_or_default().to_owned();
    match ready["status"] == "True" {
        true => Readiness::Ready,
        false => Readiness::NotReady(format!(
            "{}: {}",
            text(&ready["reason"]),
            text(&ready["message"])
        )),
    }
}
