//! Discovery in one document: every group with its versions, resources and subresources
//! (`apidiscovery.k8s.io/v2`).

use serde::Serialize;
use serde_json::{Value, json};

use super::groups::{Group, Version};
use crate::registry::{Resource, Subresource};

/// The list of groups.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupDiscoveryList<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Metadata<'a>,
    items: Vec<GroupDiscovery<'a>>,
}

#[derive(Debug, Default, Serialize)]
struct Metadata<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
}

#[derive(Debug, Serialize)]
struct GroupDiscovery<'a> {
    metadata: Metadata<'a>,
    versions: Vec<VersionEntry<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum VersionEntry<'a> {
    Own(VersionDiscovery<'a>),
    /// As another server answered it.
    Remote(Value),
}

#[derive(Debug, Serialize)]
struct VersionDiscovery<'a> {
    version: &'a str,
    resources: Vec<ResourceDiscovery<'a>>,
    /// Whether the document is up to date; that of this server always is.
    freshness: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery<'a> {
    resource: &'a str,
    response_kind: ResponseKind<'a>,
    scope: &'static str,
    singular_resource: &'a str,
    verbs: &'a [&'static str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    short_names: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    categories: &'a [String],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<SubresourceDiscovery<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SubresourceDiscovery<'a> {
    subresource: &'a str,
    response_kind: ResponseKind<'a>,
    verbs: &'a [&'static str],
}

#[derive(Clone, Copy, Debug, Serialize)]
struct ResponseKind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

impl<'a> GroupDiscoveryList<'a> {
    pub(super) fn of(groups: impl IntoIterator<Item = &'a Group>) -> Self {
        let items = groups
            .into_iter()
            .map(|g| GroupDiscovery {
                metadata: Metadata { name: &g.name },
                versions: g.versions.iter().map(version).collect(),
            })
            .collect();
        Self {
            kind: "APIGroupDiscoveryList",
            api_version: "apidiscovery.k8s.io/v2",
            metadata: Metadata::default(),
            items,
        }
    }
}

fn version(version: &Version) -> VersionEntry<'_> {
    if let Some(remote) = &version.remote {
        let mut discovery = remote.discovery.clone().unwrap_or_else(|| json!({}));
        let is_current = remote.available && remote.discovery.is_some();
        discovery["version"] = version.name.as_str().into();
        discovery["freshness"] = if is_current { "Current" } else { "Stale" }.into();
        return VersionEntry::Remote(discovery);
    }
    let resources = version.resources.iter().map(|r| resource(r)).collect();
    VersionEntry::Own(VersionDiscovery {
        version: &version.name,
        resources,
        freshness: "Current",
    })
}

fn resource(resource: &Resource) -> ResourceDiscovery<'_> {
    ResourceDiscovery {
        resource: &resource.plural,
        response_kind: own_kind(resource, &resource.kind),
        scope: if resource.namespaced {
            "Namespaced"
        } else {
            "Cluster"
        },
        singular_resource: &resource.singular,
        verbs: resource.verbs,
        short_names: &resource.short_names,
        categories: &resource.categories,
        subresources: resource
            .subresources
            .iter()
            .map(|p| subresource(resource, p))
            .collect(),
    }
}

fn subresource<'a>(
    resource: &'a Resource,
    subresource: &'a Subresource,
) -> SubresourceDiscovery<'a> {
    let response_kind = if subresource.group.is_empty() && subresource.version.is_empty() {
        own_kind(resource, &subresource.kind)
    } else {
        ResponseKind {
            group: subresource.group,
            version: subresource.version,
            kind: &subresource.kind,
        }
    };
    SubresourceDiscovery {
        subresource: subresource.name,
        response_kind,
        verbs: subresource.verbs,
    }
}

/// A kind of the resource's own version: custom resources spell the version out, built-in ones
/// leave it empty.
fn own_kind<'a>(resource: &'a Resource, kind: &'a str) -> ResponseKind<'a> {
    if resource.is_custom() {
        ResponseKind {
            group: &resource.group,
            version: &resource.version,
            kind,
        }
    } else {
        ResponseKind {
            group: "",
            version: "",
            kind,
        }
    }
}
