//! Kinds: what a server serves, found by discovery.
//!
//! In: a client. Out: every kind that can be listed, watched and deleted, and how each kind and version is reached.
//! Holds: one entry for each resource, at the version the server prefers.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};
use kube::{Api, Client};

/// One kind at one version.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
}

impl Kind {
    /// The API of its objects in a namespace; cluster-scoped kinds have none.
    pub(crate) fn api(&self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        }
    }

    /// `deployments.apps`, or `pods` without a group.
    pub(crate) fn group_resource(&self) -> String {
        match (&*self.resource.plural, &*self.resource.group) {
            (plural, "") => plural.to_owned(),
            (plural, group) => format!("{plural}.{group}"),
        }
    }
}

/// What a server serves at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds {
    /// Each resource once that can be listed, watched and deleted, in the order of group and resource.
    pub(crate) deletable: Vec<Arc<Kind>>,
    /// Every kind at every served version, by `apiVersion` and `kind`.
    served: HashMap<(String, String), Arc<Kind>>,
}

impl Kinds {
    /// Asks the server.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn discover(client: &Client) -> Result<Self, kube::Error> {
        let discovery = Discovery::new(client.clone()).run_aggregated().await?;
        let mut kinds = Self::default();
        for group in discovery.groups_alphabetical() {
            for version in group.versions() {
                for (resource, capabilities) in group.versioned_resources(version) {
                    let at = (resource.api_version.clone(), resource.kind.clone());
                    kinds
                        .served
                        .insert(at, Arc::new(kind(resource, &capabilities)));
                }
            }
            let mut preferred = group.resources_by_stability();
            preferred.retain(|(_, capabilities)| can_be_collected(capabilities));
            preferred.sort_by(|(a, _), (b, _)| a.plural.cmp(&b.plural));
            kinds.deletable.extend(
                preferred
                    .into_iter()
                    .map(|(resource, capabilities)| Arc::new(kind(resource, &capabilities))),
            );
        }
        Ok(kinds)
    }

    /// The kind that an owner reference means.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        self.served
            .get(&(api_version.to_owned(), kind.to_owned()))
            .cloned()
    }
}

fn kind(resource: ApiResource, capabilities: &ApiCapabilities) -> Kind {
    Kind {
        resource,
        namespaced: capabilities.scope == Scope::Namespaced,
    }
}

fn can_be_collected(capabilities: &ApiCapabilities) -> bool {
    [verbs::DELETE, verbs::LIST, verbs::WATCH]
        .into_iter()
        .all(|verb| capabilities.supports_operation(verb))
}
