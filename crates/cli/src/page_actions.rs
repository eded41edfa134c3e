//! The actions of the page with `up --page-may-act`.
//!
//! Inputs: an action of the page. Outputs: requests of the administrator, and a message.

use bellerophon_cluster::Nodes;
use bellerophon_page::{ActError, Action, Actor};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Method, Request, header};
use kube::Client;
use serde_json::json;

use crate::watches::Watches;

/// The field manager and user agent of actions.
const FIELD_MANAGER: &str = "bellerophon-page";

/// The media type of server-side apply.
const APPLY: &str = "application/apply-patch+yaml";

/// The sample files that can be applied without further objects, with the path of each document.
const SAMPLES: [(&str, &str, &str); 3] = [
    (
        "samples/deployment.yaml",
        "/apis/apps/v1/namespaces/default/deployments/stable",
        include_str!("../samples/deployment.yaml"),
    ),
    (
        "samples/icecream.yaml",
        "/apis/controller.nicoleh.io/v1alpha1/namespaces/default/icecreams/example-icecream",
        include_str!("../samples/icecream.yaml"),
    ),
    (
        "samples/service.yaml",
        "/api/v1/namespaces/default/services/stable",
        include_str!("../samples/service.yaml"),
    ),
];

/// Executes the actions of a page.
pub(crate) struct ClusterActor {
    pub(crate) client: Client,
    /// `None` without simulated nodes.
    pub(crate) nodes: Option<Nodes>,
    pub(crate) watches: Watches,
}

impl ClusterActor {
    async fn send(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        body: Vec<u8>,
    ) -> Result<(), ActError> {
        // Only a server-side apply may be forced.
        let force = match media_type {
            APPLY => "&force=true",
            _ => "",
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}?fieldManager={FIELD_MANAGER}{force}"))
            .header(header::CONTENT_TYPE, media_type)
            .header(header::USER_AGENT, FIELD_MANAGER)
            .body(body)
            .map_err(|error| ActError(error.to_string()))?;
        let sent = self.client.request_text(request).await;
        sent.map(drop).map_err(|error| ActError(error.to_string()))
    }

    async fn execute(&self, action: Action) -> Result<String, ActError> {
        match action {
            Action::ApplySample { sample } => {
                let found = SAMPLES.iter().find(|(name, ..)| *name == sample);
                let (name, path, text) =
                    found.ok_or_else(|| ActError(format!("there is no sample {sample:?}")))?;
                let body = text.as_bytes().to_vec();
                self.send(Method::PATCH, path, APPLY, body).await?;
                Ok(format!("applied {name}"))
            }
            Action::Scale {
                namespace,
                name,
                replicas,
            } => {
                let object = object_path("/apis/apps/v1", &namespace, "deployments", &name)?;
                let body = json!({ "spec": { "replicas": replicas } }).to_string();
                let merge = "application/merge-patch+json";
                let path = format!("{object}/scale");
                self.send(Method::PATCH, &path, merge, body.into_bytes())
                    .await?;
                Ok(format!(
                    "scaled Deployment {namespace}/{name} to {replicas}"
                ))
            }
            Action::DeletePod { namespace, name } => {
                let path = object_path("/api/v1", &namespace, "pods", &name)?;
                self.send(Method::DELETE, &path, "application/json", Vec::new())
                    .await?;
                Ok(format!("deleted Pod {namespace}/{name}"))
            }
            Action::PowerOff { node } => {
                let nodes = self.nodes.as_ref();
                let nodes =
                    nodes.ok_or_else(|| ActError("the nodes are not simulated".to_owned()))?;
                let off = nodes.power_off(&node);
                off.map_err(|error| ActError(error.to_string()))?;
                Ok(format!("switched Node {node} off"))
            }
            Action::CutWatch { resource } => match self.watches.cut(&resource) {
                0 => Err(ActError(format!("no controller watches {resource}"))),
                1 => Ok(format!("cut the watch of {resource}")),
                count => Ok(format!("cut {count} watches of {resource}")),
            },
        }
    }
}

/// The path of an object. Names come from the page, so they are checked.
fn object_path(api: &str, namespace: &str, plural: &str, name: &str) -> Result<String, ActError> {
    let is_name = |text: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        !text.is_empty() && text.len() < 254 && text.chars().all(is_allowed) && text != ".."
    };
    match is_name(namespace) && is_name(name) {
        true => Ok(format!("{api}/namespaces/{namespace}/{plural}/{name}")),
        false => Err(ActError(format!("{namespace}/{name} is not a name"))),
    }
}

impl Actor for ClusterActor {
    fn samples(&self) -> Vec<String> {
        let names = SAMPLES.iter().map(|(name, ..)| (*name).to_owned());
        names.collect()
    }

    fn nodes(&self) -> Vec<String> {
        self.nodes.as_ref().map_or_else(Vec::new, Nodes::names)
    }

    fn watched(&self) -> Vec<String> {
        self.watches.resources()
    }

    fn act(&self, action: Action) -> BoxFuture<'_, Result<String, ActError>> {
        self.execute(action).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_path_segment_are_rejected() {
        for (namespace, name, passes) in [
            ("default", "web-1", true),
            ("default", "../x", false),
            ("default", "a/b", false),
            ("default", "a?b", false),
            ("", "a", false),
            ("..", "a", false),
        ] {
            let path = object_path("/api/v1", namespace, "pods", name);
            assert_eq!(path.is_ok(), passes, "{namespace}/{name}");
        }
    }
}
