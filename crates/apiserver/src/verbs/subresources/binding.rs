//! POST of a Binding: sets the node of a pod, once.
//! Mirrors `BindingREST.Create` in `pkg/registry/core/pod/storage`.

use std::sync::Arc;

use bellerophon_apimachinery::{error::ApiError, json_ext::JsonExt};
use bellerophon_codec::{body::Expected, object::Object};
use bellerophon_resources::kinds::binding;

use super::read_as;
use crate::{
    admission::Operation,
    api::Api,
    auth::{Lookup, Source},
    http::query::WriteOptions,
    registry::Resource,
    verbs::{Call, Content, Reply, create::settle_namespace},
    write::{self, Change, uid_conflict},
};

/// Binds the pod that the path names.
///
/// # Errors
/// A body that cannot be read or names another pod, and a pod that cannot be bound.
pub(super) async fn create(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let (mut binding, dry_run) = read(call)?;
    if binding.meta.name != call.target.name {
        return Err(ApiError::BadRequest(
            "name in URL does not match name in Binding object".into(),
        ));
    }
    admit(api, call, dry_run, &mut binding).await?;
    bind(api, &call.target.resource, binding, dry_run).await
}

/// Binds the pod that the body names.
///
/// # Errors
/// A body that cannot be read, and a pod that cannot be bound.
pub(in crate::verbs) async fn create_by_body(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let (mut binding, dry_run) = read(call)?;
    admit(api, call, dry_run, &mut binding).await?;
    let pods: Arc<Resource> = api
        .registry
        .catalog()
        .find("", "v1", "pods")
        .expect("pods are built in");
    bind(api, &pods, binding, dry_run).await
}

fn read(call: &Call) -> Result<(Object, bool), ApiError> {
    let options = WriteOptions::read(&call.query, "CreateOptions", false)?;
    let expected = Expected::of("", "v1", "Binding").expect("the table of types has bindings");
    let mut binding = read_as(call, &expected, &options)?;
    settle_namespace(call, &mut binding)?;
    Ok((binding, options.dry_run))
}

async fn admit(
    api: &Api,
    call: &Call,
    dry_run: bool,
    binding: &mut Object,
) -> Result<(), ApiError> {
    let attributes = call.attributes();
    write::admit(api, &attributes, Operation::Create, dry_run, binding, None).await
}

async fn bind(
    api: &Api,
    pods: &Resource,
    mut binding: Object,
    dry_run: bool,
) -> Result<Reply, ApiError> {
    let target = binding.body.field("target");
    let node = if target.text("kind") == "Node" {
        api.get(Source::Node, "", target.text("name"))
    } else {
        None
    };
    binding.meta.labels.extend(
        node.map(|node| binding::topology_labels(&node.meta.labels))
            .unwrap_or_default(),
    );
    binding::validate(&binding)?;
    let key = bellerophon_storage::ObjectKey::new(&binding.meta.namespace, &binding.meta.name);
    let now = api.clock.now();
    write::update(
        api,
        pods,
        &key,
        Change::server_side(),
        dry_run,
        None,
        |pod| {
            let mut pod = pod.cloned().ok_or_else(|| ApiError::NotFound {
                resource: pods.group_resource(),
                name: key.name().into(),
            })?;
            binding::bind(&mut pod, &binding, now)?;
            // The metadata of a Binding may name the uid and resourceVersion of the pod.
            if !binding.meta.uid.is_empty() && binding.meta.uid != pod.meta.uid {
                return Err(uid_conflict(pods, &binding.meta, &pod.meta.uid));
            }
            if !binding.meta.resource_version.is_empty() {
                pod.meta
                    .resource_version
                    .clone_from(&binding.meta.resource_version);
            }
            Ok(pod)
        },
    )
    .await?;
    Ok(Reply::created(Content::Document(binding::answer())))
}
