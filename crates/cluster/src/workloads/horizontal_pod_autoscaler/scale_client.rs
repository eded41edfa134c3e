//! Scale client: the scale subresource of any resource.
//!
//! Guarantees: the version in the reference is ignored, as upstream does; the replicas are written
//! at the version at which they were read.

use std::time::Duration;

use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec};
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use kube::api::{DynamicObject, PostParams};
use kube::core::request::Request;
use kube::{Client, Resource};

/// How often an update is tried that conflicts, and the pause before the next (client-go:
/// retry.DefaultRetry).
const UPDATE_ATTEMPTS: usize = 5;
const UPDATE_RETRY_DELAY: Duration = Duration::from_millis(10);

/// Reads and writes scales.
pub(super) struct ScaleClient {
    pub(super) client: Client,
}

/// The scale of a target.
pub(super) struct TargetScale {
    scale: Scale,
    /// The path of the target's resource in its namespace.
    path: String,
    name: String,
}

impl TargetScale {
    pub(super) fn spec_replicas(&self) -> i32 {
        let spec = self.scale.spec.as_ref();
        spec.and_then(|spec| spec.replicas).unwrap_or_default()
    }

    /// Empty if the target has none.
    pub(super) fn selector(&self) -> &str {
        let status = self.scale.status.as_ref();
        let selector = status.and_then(|status| status.selector.as_deref());
        selector.unwrap_or_default()
    }
}

impl ScaleClient {
    /// Reads the scale of a target. Mirrors RESTMappings and scaleForResourceMappings.
    ///
    /// # Errors
    /// The message for the condition.
    pub(super) async fn get(
        &self,
        namespace: &str,
        target: &CrossVersionObjectReference,
    ) -> Result<TargetScale, String> {
        let api_version = target.api_version.as_deref().unwrap_or_default();
        let group = match api_version.split('/').collect::<Vec<_>>().as_slice() {
            [_] => "",
            [group, _] => *group,
            _ => return Err(format!("unexpected GroupVersion string: {api_version}")),
        };
        let kind = &target.kind;
        let no_match = || format!("no matches for kind {kind:?} in group {group:?}");
        let resource = match kube::discovery::group(&self.client, group).await {
            Ok(served) => served.recommended_kind(kind).ok_or_else(no_match)?.0,
            Err(kube::Error::Discovery(_)) => return Err(no_match()),
            Err(error) => return Err(message(&error, "get")),
        };
        let path = DynamicObject::url_path(&resource, Some(namespace));
        let scale = self.read(&path, &target.name).await?;
        Ok(TargetScale {
            scale,
            path,
            name: target.name.clone(),
        })
    }

    async fn read(&self, path: &str, name: &str) -> Result<Scale, String> {
        let request = Request::new(path).get_subresource("scale", name);
        let request = request.map_err(|error| error.to_string())?;
        let scale = self.client.request::<Scale>(request).await;
        scale.map_err(|error| message(&error, "get"))
    }

    /// Writes the replicas of a target. If the target has changed, it is read again.
    ///
    /// # Errors
    /// The message for the condition.
    pub(super) async fn update(
        &self,
        target: &mut TargetScale,
        replicas: i32,
    ) -> Result<(), String> {
        let mut attempts = 0;
        loop {
            let spec = target.scale.spec.get_or_insert_with(ScaleSpec::default);
            spec.replicas = Some(replicas);
            let body = serde_json::to_vec(&target.scale).map_err(|error| error.to_string())?;
            let request = Request::new(&target.path).replace_subresource(
                "scale",
                &target.name,
                &PostParams::default(),
                body,
            );
            let request = request.map_err(|error| error.to_string())?;
            let error = match self.client.request::<Scale>(request).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            attempts += 1;
            let is_conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
            if !is_conflict || attempts == UPDATE_ATTEMPTS {
                return Err(message(&error, "put"));
            }
            tokio::time::sleep(UPDATE_RETRY_DELAY).await;
            target.scale = self.read(&target.path, &target.name).await?;
        }
    }
}

/// The message of an error, as client-go has it for a response with this status. The context is
/// the verb and resource of the request.
pub(super) fn message(error: &kube::Error, context: &str) -> String {
    let kube::Error::Api(status) = error else {
        return error.to_string();
    };
    // Mirrors NewGenericServerResponse: a response that is no Status has no message.
    match status.code {
        _ if status.details.is_some() => status.message.clone(),
        404 => format!("the server could not find the requested resource ({context})"),
        503 => format!("the server is currently unable to handle the request ({context})"),
        _ => status.message.clone(),
    }
}
