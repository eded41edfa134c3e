//! Discovery in many documents: the list of groups, each group, and each version with its
//! resources.
//! Guarantees: names and hashes are those of kube-apiserver, because clients compare them.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::groups::{Group, Version};
use crate::registry::{Resource, Subresource};

/// Built-in kinds that Kubernetes 1.36 stores in another version than the one it serves; the hash
/// of the stored version shows it.
const STORED_IN: &[(&str, &str, &str)] = &[
    ("autoscaling", "HorizontalPodAutoscaler", "v2"),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "v1beta1",
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        "v1beta1",
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
        "v1beta1",
    ),
];

/// `/api`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApiVersions<'a> {
    kind: &'static str,
    versions: Vec<&'a str>,
    #[serde(rename = "serverAddressByClientCIDRs")]
    server_address: [ServerAddress<'a>; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerAddress<'a> {
    #[serde(rename = "clientCIDR")]
    client_cidr: &'static str,
    server_address: &'a str,
}

impl<'a> ApiVersions<'a> {
    pub(super) fn at(address: &'a str) -> Self {
        let server_address = [ServerAddress {
            client_cidr: "0.0.0.0/0",
            server_address: address,
        }];
        Self {
            kind: "APIVersions",
            versions: vec!["v1"],
            server_address,
        }
    }
}

/// `/apis`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApiGroupList {
    kind: &'static str,
    api_version: &'static str,
    groups: Vec<ApiGroup>,
}

/// `/apis/GROUP`, and an entry of `/apis`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApiGroup {
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    type_: Option<TypeMeta>,
    name: String,
    versions: Vec<GroupVersion>,
    preferred_version: GroupVersion,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    kind: &'static str,
    api_version: &'static str,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
    version: String,
}

impl ApiGroupList {
    /// All named groups. Custom ones of equal rank stand in the order of the names `VERSION.GROUP`.
    pub(super) fn of(groups: &[Group]) -> Self {
        let mut named: Vec<&Group> = groups.iter().filter(|g| !g.name.is_empty()).collect();
        named.sort_by_cached_key(|g| {
            let first = g
                .versions
                .iter()
                .map(|v| format!("{}.{}", v.name, g.name))
                .min();
            let priority = std::cmp::Reverse(g.priority);
            (!g.built_in).then_some((priority, first))
        });
        Self {
            kind: "APIGroupList",
            api_version: "v1",
            groups: named.into_iter().map(|g| ApiGroup::of(g, None)).collect(),
        }
    }
}

impl ApiGroup {
    /// The document of one group.
    pub(super) fn document(group: &Group) -> Self {
        Self::of(
            group,
            Some(TypeMeta {
                kind: "APIGroup",
                api_version: "v1",
            }),
        )
    }

    fn of(group: &Group, type_: Option<TypeMeta>) -> Self {
        let versions: Vec<GroupVersion> = group
            .versions
            .iter()
            .map(|v| GroupVersion {
                group_version: group.version_name(v),
                version: v.name.clone(),
            })
            .collect();
        let preferred_version = versions.first().cloned().expect("a group has a version");
        Self {
            type_,
            name: group.name.clone(),
            versions,
            preferred_version,
        }
    }
}

/// `/api/v1`, `/apis/GROUP/VERSION`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApiResourceList<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    group_version: String,
    resources: Vec<ApiResource<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource<'a> {
    name: String,
    singular_name: &'a str,
    namespaced: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    kind: &'a str,
    verbs: &'a [&'static str],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    short_names: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    categories: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_version_hash: Option<String>,
}

impl<'a> ApiResourceList<'a> {
    pub(super) fn of(group: &Group, version: &'a Version) -> Self {
        // The list of the core group has no `apiVersion`.
        let api_version = (!group.name.is_empty()).then_some("v1");
        let resources = version
            .resources
            .iter()
            .flat_map(|r| {
                std::iter::once(ApiResource::whole(r, group)).chain(
                    r.subresources
                        .iter()
                        .map(|p| ApiResource::subresource(r, p)),
                )
            })
            .collect();
        Self {
            kind: "APIResourceList",
            api_version,
            group_version: group.version_name(version),
            resources,
        }
    }
}

impl<'a> ApiResource<'a> {
    fn whole(resource: &'a Resource, group: &Group) -> Self {
        // A custom resource shows no hash while the version it is stored in is not served.
        let shown = resource.custom().is_none_or(|_| {
            group
                .versions
                .iter()
                .any(|v| v.name == resource.stored_version().1)
        });
        let stored = shown && resource.verbs.contains(&"watch");
        Self {
            name: resource.plural.clone(),
            singular_name: &resource.singular,
            namespaced: resource.namespaced,
            group: "",
            version: "",
            kind: &resource.kind,
            verbs: resource.verbs,
            short_names: &resource.short_names,
            categories: &resource.categories,
            storage_version_hash: stored.then(|| storage_version_hash(resource)),
        }
    }

    fn subresource(resource: &'a Resource, subresource: &'a Subresource) -> Self {
        Self {
            name: format!("{}/{}", resource.plural, subresource.name),
            singular_name: "",
            namespaced: resource.namespaced,
            group: subresource.group,
            version: subresource.version,
            kind: &subresource.kind,
            verbs: subresource.verbs,
            short_names: &[],
            categories: &[],
            storage_version_hash: None,
        }
    }
}

/// The first eight bytes of a digest of what objects are stored as.
fn storage_version_hash(resource: &Resource) -> String {
    let (group, mut version) = resource.stored_version();
    if let Some((_, _, stored)) = STORED_IN
        .iter()
        .find(|(g, k, _)| *g == group && *k == resource.kind)
    {
        version = stored;
    }
    let digest = Sha256::digest(format!("{group}/{version}/{}", resource.kind));
    BASE64_STANDARD.encode(&digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Catalog;

    #[test]
    fn hash_names_the_stored_version() {
        let catalog = Catalog::default();
        for (group, version, plural, hash) in [
            ("", "v1", "configmaps", "qFsyl6wFWjQ="),
            ("apps", "v1", "daemonsets", "dd7pWHUlMKQ="),
            (
                "autoscaling",
                "v1",
                "horizontalpodautoscalers",
                "qwQve8ut294=",
            ),
            ("events.k8s.io", "v1", "events", "r2yiGXH7wu8="),
            (
                "apiextensions.k8s.io",
                "v1",
                "customresourcedefinitions",
                "jfWCUB31mvA=",
            ),
            (
                "admissionregistration.k8s.io",
                "v1",
                "mutatingadmissionpolicybindings",
                "90V5FRZZ3Zg=",
            ),
        ] {
            let resource = catalog
                .find(group, version, plural)
                .expect("it is built in");
            assert_eq!(storage_version_hash(&resource), hash, "{plural}");
        }
    }
}
