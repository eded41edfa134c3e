//! What the cluster of `bellerophon dev` gets of a project: CRDs, permissions, samples.
//!
//! In: the manifests that the operator prints, and YAML files. Out: applied objects, and sentences
//! about what does not fit.
//!
//! Guarantee: a failure here does not end `dev`: it names object, field and next step, and the next
//! change is tried again.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use serde_json::{Value, json};
use tokio::{net::TcpStream, process::Command};

use super::{
    project::Project,
    serving::{Serving, ServingState},
    watch::is_manifest,
    webhooks,
};
use crate::{error::CliError, kubeconfig::Account};

/// The field manager of applied objects.
const FIELD_MANAGER: &str = "bellerophon-dev";

/// Kinds that run the operator in a cluster. Here it is a local process.
const WORKLOAD_KINDS: &[&str] = &["Deployment", "DaemonSet", "Service", "ServiceMonitor"];

const CRD: &str = "CustomResourceDefinition";

/// How deep directories of manifests are read.
const DEPTH_MAX: usize = 4;

/// What the operator of a project has in the cluster.
#[derive(Debug, Default)]
pub(super) struct Installed {
    /// Its service account; `None` if it prints no manifests.
    pub(super) account: Option<Account>,
    /// Why stored objects do not fit a new schema.
    pub(super) misfit: Option<CliError>,
    /// Its webhook configurations, which it applies itself; `None` if it serves no webhooks.
    pub(super) webhooks: Option<Vec<Value>>,
}

/// What was applied of the YAML files of a project.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// The number of objects.
    pub(super) count: usize,
    /// Webhook configurations that were left out: nothing answers for their Services, and the server
    /// would refuse what they are for.
    pub(super) left_out: Vec<String>,
}

/// Applies objects of a project.
pub(super) struct Installer {
    client: Client,
}

impl Installer {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Applies the CRDs and permissions that an operator prints.
    ///
    /// # Errors
    /// The program prints no manifests, or the server refuses one.
    pub(super) async fn operator(
        &self,
        project: &Project,
        program: &Path,
    ) -> Result<Installed, CliError> {
        if !project.has_manifests() {
            return Ok(Installed::default());
        }
        let objects = printed_manifests(program).await?;
        let (configurations, objects): (Vec<Value>, Vec<Value>) =
            objects.into_iter().partition(webhooks::is_configuration);
        let mut installed = Installed {
            webhooks: webhooks::are_served(&objects).then_some(configurations),
            ..Installed::default()
        };
        for object in &objects {
            let kind = object["kind"].as_str().unwrap_or_default();
            if WORKLOAD_KINDS.contains(&kind) {
                continue;
            }
            self.apply(object).await?;
            if kind == "ServiceAccount" {
                if installed.webhooks.is_some() {
                    for object in webhooks::permissions(object) {
                        self.apply(&object).await?;
                    }
                }
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
                installed.account = format!("{namespace}/{name}").parse().ok();
            }
        }
        for crd in objects.iter().filter(|object| object["kind"] == CRD) {
            if let Err(misfit) = self.check_stored_objects(crd).await {
                installed.misfit = Some(misfit);
            }
        }
        Ok(installed)
    }

    /// Applies the objects of YAML files: CRDs, then webhook configurations of Services, then others.
    ///
    /// Until the operator answers at the address of `serving`, only the CRDs, if there are
    /// configurations: webhooks are to be called for all other objects. If it does not answer in
    /// time, all but the configurations.
    ///
    /// # Errors
    /// An object that the server refuses.
    pub(super) async fn files(
        &self,
        objects: &[Value],
        serving: Option<&Serving>,
    ) -> Result<Applied, CliError> {
        let mut objects: Vec<&Value> = objects.iter().collect();
        objects.sort_by_key(|object| (object["kind"] != CRD, !webhooks::calls_a_service(object)));
        let state = serving.map(|serving| serving.state);
        let has_webhooks = objects.iter().copied().any(webhooks::calls_a_service);
        if state == Some(ServingState::Awaited) && has_webhooks {
            objects.retain(|object| object["kind"] == CRD);
        }
        let mut applied = Applied::default();
        for object in objects {
            if webhooks::calls_a_service(object) && state != Some(ServingState::Answered) {
                applied.left_out.push(describe(object));
                continue;
            }
            match serving {
                Some(serving) => self.apply(&serving.with_url(object)).await?,
                None => self.apply(object).await?,
            }
            applied.count += 1;
        }
        Ok(applied)
    }

    /// Whether an operator has registered all its webhooks with an address, and listens on it.
    pub(super) async fn are_registered(
        &self,
        configurations: &[Value],
        address: SocketAddr,
    ) -> bool {
        for configuration in configurations {
            match self.get(configuration).await {
                Some(stored) if webhooks::is_registered(&stored, address) => {}
                _ => return false,
            }
        }
        TcpStream::connect(address).await.is_ok()
    }

    /// Whether a webhook configuration names an address.
    pub(super) async fn is_called(&self, address: SocketAddr) -> bool {
        for kind in webhooks::CONFIGURATION_KINDS {
            let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
            let api =
                Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::from_gvk(&gvk));
            // A list that fails shows no registration, which is only explained.
            let list = api.list(&ListParams::default()).await;
            let stored = list.map(|list| list.items).unwrap_or_default();
            let mut stored = stored.iter().map(|object| &object.data);
            if stored.any(|data| webhooks::is_registered(data, address)) {
                return true;
            }
        }
        false
    }

    async fn get(&self, object: &Value) -> Option<Value> {
        let (api, object) = self.api_of(object).await.ok()?;
        let stored = api.get(object.metadata.name.as_deref()?).await.ok()?;
        Some(stored.data)
    }

    /// Deletes an object that the operator does not declare any more.
    ///
    /// # Errors
    /// The server refuses.
    pub(super) async fn delete(&self, object: &Value) -> Result<(), CliError> {
        let step = format!("cannot delete {}", describe(object));
        let (api, object) = self.api_of(object).await?;
        let name = object.metadata.name.unwrap_or_default();
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(CliError::context(&step)(message_of(error))),
            Ok(_) => Ok(()),
        }
    }

    async fn apply(&self, object: &Value) -> Result<(), CliError> {
        let name = describe(object);
        let step = format!("cannot apply {name}");
        let (api, object) = self.api_of(object).await?;
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let object_name = object.metadata.name.clone().unwrap_or_default();
        let patch = Patch::Apply(&object);
        let applied = api.patch(&object_name, &params, &patch);
        applied.await.map(drop).map_err(|error| {
            let message = message_of(error);
            let hint = match name.starts_with(CRD) {
                true => "change it back, or delete the CRD and its objects with kubectl",
                false if is_unanswered(&message) => {
                    "the operator serves this webhook: look at its output"
                }
                false => "change the file; it is applied again when it is saved",
            };
            CliError::context(&step)(message).with_hint(hint)
        })
    }

    /// Explains which objects no longer fit a schema: stored ones are kept by the server, but cannot
    /// be created again.
    async fn check_stored_objects(&self, crd: &Value) -> Result<(), CliError> {
        let spec = &crd["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let versions = spec["versions"].as_array().cloned().unwrap_or_default();
        let Some(version) = versions.iter().find(|version| version["storage"] == true) else {
            return Ok(());
        };
        let gvk = GroupVersionKind::gvk(
            &text(&spec["group"]),
            &text(&version["name"]),
            &text(&spec["names"]["kind"]),
        );
        let resource = ApiResource::from_gvk_with_plural(&gvk, &text(&spec["names"]["plural"]));
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let Ok(stored) = all.list(&ListParams::default()).await else {
            // The version is not served, which the operator reports itself.
            return Ok(());
        };
        let params = PostParams {
            dry_run: true,
            field_manager: Some(FIELD_MANAGER.to_owned()),
        };
        for object in stored.items {
            let api: Api<DynamicObject> = match &object.metadata.namespace {
                Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
                None => all.clone(),
            };
            let name = object.metadata.name.clone().unwrap_or_default();
            let mut copy = DynamicObject::new(&format!("{name}-schema-check"), &resource);
            copy.data = object.data.clone();
            if let Some(data) = copy.data.as_object_mut() {
                data.remove("status");
            }
            if let Err(kube::Error::Api(status)) = api.create(&params, &copy).await
                && status.code == 422
                // A webhook may refuse a copy for another reason than the schema.
                && !status.message.starts_with("admission webhook")
            {
                let why = status
                    .message
                    .replace(&format!("{name}-schema-check"), &name);
                return Err(CliError::Failed(format!(
                    "the new schema of {} does not accept {name}: {why}",
                    gvk.kind
                ))
                .with_hint(
                    "give the field a default, make it optional, or change the object; the operator \
                     runs with the new schema",
                ));
            }
        }
        Ok(())
    }

    async fn api_of(
        &self,
        object: &Value,
    ) -> Result<(Api<DynamicObject>, DynamicObject), CliError> {
        let step = format!("cannot apply {}", describe(object));
        let mut object: DynamicObject =
            serde_json::from_value(object.clone()).map_err(CliError::context(&step))?;
        let types = object.types.clone().unwrap_or_default();
        let gvk = GroupVersionKind::try_from(&types).map_err(CliError::context(&step))?;
        let (resource, capabilities) =
            discovery::pinned_kind(&self.client, &gvk)
                .await
                .map_err(|error| {
                    CliError::context(&step)(error)
                        .with_hint("its CRD comes from the operator's types or from a YAML file")
                })?;
        let api = match capabilities.scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => {
                let metadata = &mut object.metadata;
                let namespace = metadata
                    .namespace
                    .get_or_insert_with(|| "default".to_owned());
                Api::namespaced_with(self.client.clone(), namespace, &resource)
            }
        };
        Ok((api, object))
    }
}

/// The objects in the YAML files of a project.
///
/// # Errors
/// A file that cannot be read, or is not YAML.
pub(super) fn read_files(project: &Project) -> Result<Vec<Value>, CliError> {
    let mut objects = Vec::new();
    for path in manifest_files(project.root()) {
        let step = format!("cannot read {}", path.display());
        let text = fs::read_to_string(&path).map_err(CliError::context(&step))?;
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).map_err(CliError::context(&step))?;
        // Other YAML files than manifests have no kind.
        let documents = documents
            .into_iter()
            .filter(|document| document["kind"].is_string() && document["apiVersion"].is_string());
        objects.extend(documents);
    }
    Ok(objects)
}

/// `CustomResourceDefinition heroes.example.com`.
pub(super) fn describe(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!(
        "{} {}",
        text(&object["kind"]),
        text(&object["metadata"]["name"])
    )
}

/// The message of the server without its Status.
fn message_of(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    }
}

/// Whether the server refused an object since no operator answered its webhook.
pub(super) fn is_unanswered(message: &str) -> bool {
    message.contains("failed calling webhook") || message.contains("conversion webhook for")
}

/// The items of the List that `PROGRAM manifests` prints.
async fn printed_manifests(program: &Path) -> Result<Vec<Value>, CliError> {
    let step = format!("cannot read the manifests of {}", program.display());
    let output = Command::new(program)
        .arg("manifests")
        .output()
        .await
        .map_err(CliError::context(&step))?;
    let parsed: Result<Value, _> = serde_json::from_slice(&output.stdout);
    let items = match parsed {
        Ok(mut list) if output.status.success() => list["items"].take(),
        _ => json!(null),
    };
    match items {
        Value::Array(items) => Ok(items),
        _ => Err(CliError::Failed(step).with_hint(
            "its main function must be that of `bellerophon new`: bellerophon_operator::main",
        )),
    }
}

/// The YAML files of a project, sorted.
fn manifest_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for directory in [root.to_owned(), root.join("samples"), root.join("config")] {
        let depth = if directory == root { 0 } else { DEPTH_MAX };
        // Most projects do not have them.
        let _listed = list_files(root, &directory, depth, &mut files);
    }
    files.sort();
    files
}

fn list_files(
    root: &Path,
    directory: &Path,
    depth: usize,
    files: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_kustomization = path.file_stem().is_some_and(|name| name == "kustomization");
        if path.is_dir() && depth > 0 {
            list_files(root, &path, depth - 1, files)?;
        } else if is_manifest(root, &path) && !is_kustomization {
            files.push(path);
        }
    }
    Ok(())
}
