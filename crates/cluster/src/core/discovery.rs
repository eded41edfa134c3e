//! Discovery: the resources served by the API server.
//!
//! Input: a client. Output: every resource that can be listed, watched and deleted, and the
//! resource of each served `apiVersion` and `kind`.
//! Guarantees: each deletable resource occurs once, at the server's preferred version.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};
use kube::{Api, Client};

/// A resource at one version.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServedResource {
    pub(crate) api_resource: ApiResource,
    pub(crate) namespaced: bool,
}

impl ServedResource {
    /// The API of its objects in a namespace. The namespace of a cluster-scoped resource is
    /// ignored.
    pub(crate) fn api(&self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.api_resource),
            None => Api::all_with(client.clone(), &self.api_resource),
        }
    }

    /// `deployments.apps`, or `pods` in the core group.
    pub(crate) fn group_resource(&self) -> String {
        match (&*self.api_resource.plural, &*self.api_resource.group) {
            (plural, "") => plural.to_owned(),
            (plural, group) => format!("{plural}.{group}"),
        }
    }
}

/// The result of one discovery.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServedResources {
    /// Resources with the verbs list, watch and delete, sorted by group and resource.
    pub(crate) deletable: Vec<Arc<ServedResource>>,
    /// Every resource at every served version, by `apiVersion` and `kind`.
    by_kind: HashMap<(String, String), Arc<ServedResource>>,
}

impl ServedResources {
    /// Runs aggregated discovery.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) async fn discover(client: &Client) -> Result<Self, kube::Error> {
        let discovery = Discovery::new(client.clone()).run_aggregated().await?;
        let mut served = Self::default();
        for group in discovery.groups_alphabetical() {
            // An owner reference may have any served version, so all of them are indexed.
            for version in group.versions() {
                for (resource, capabilities) in group.versioned_resources(version) {
                    let kind = (resource.api_version.clone(), resource.kind.clone());
                    served
                        .by_kind
                        .insert(kind, Arc::new(served_resource(resource, &capabilities)));
                }
            }
            let mut preferred = group.resources_by_stability();
            preferred.retain(|(_, capabilities)| is_deletable(capabilities));
            preferred.sort_by(|(a, _), (b, _)| a.plural.cmp(&b.plural));
            served
                .deletable
                .extend(preferred.into_iter().map(|(resource, capabilities)| {
                    Arc::new(served_resource(resource, &capabilities))
                }));
        }
        Ok(served)
    }

    /// The kind of a resource at one version.
    pub(crate) fn kind_of(&self, group: &str, version: &str, plural: &str) -> Option<&str> {
        let mut served = self.by_kind.values().map(|served| &served.api_resource);
        served
            .find(|r| r.group == group && r.version == version && r.plural == plural)
            .map(|found| found.kind.as_str())
    }

    /// The resource of an `apiVersion` and `kind`, as written in an owner reference.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<Arc<ServedResource>> {
        self.by_kind
            .get(&(api_version.to_owned(), kind.to_owned()))
            .cloned()
    }
}

fn served_resource(api_resource: ApiResource, capabilities: &ApiCapabilities) -> ServedResource {
    ServedResource {
        api_resource,
        namespaced: capabilities.scope == Scope::Namespaced,
    }
}

/// Mirrors GetDeletableResources: the garbage collector needs all three verbs.
fn is_deletable(capabilities: &ApiCapabilities) -> bool {
    [verbs::DELETE, verbs::LIST, verbs::WATCH]
        .into_iter()
        .all(|verb| capabilities.supports_operation(verb))
}
