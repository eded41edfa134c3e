//! Groups and versions in the order in which clients prefer them.
//! In: a catalog. Out: groups, each with its versions, each with its resources.
//! Guarantees: built-in groups are in the order of their rows, followed by custom ones by name.

use std::sync::Arc;

use super::stability;
use crate::registry::{Catalog, RemoteVersion, Resource};

/// The priorities of custom resources among the versions that other servers serve.
const CUSTOM_GROUP_PRIORITY: i64 = 1000;
const CUSTOM_VERSION_PRIORITY: i64 = 100;

/// A group; the core group has no name and is the first.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// The preferred one first; never empty.
    pub(crate) versions: Vec<Version>,
    /// Whether any of its versions is built in.
    pub(crate) built_in: bool,
    /// Custom groups with a higher one come first.
    pub(super) priority: i64,
}

/// One version of a group.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) resources: Vec<Arc<Resource>>,
    /// Set if another server serves it; there are no resources then.
    pub(super) remote: Option<Arc<RemoteVersion>>,
}

impl Version {
    fn priority(&self) -> i64 {
        let remote = self.remote.as_ref();
        remote.map_or(CUSTOM_VERSION_PRIORITY, |remote| remote.version_priority)
    }

    /// Where a group's version is served, without the slash in front: `api/v1`, `apis/apps/v1`.
    pub(crate) fn root(&self, group: &str) -> String {
        if group.is_empty() {
            format!("api/{}", self.name)
        } else {
            format!("apis/{group}/{}", self.name)
        }
    }
}

impl Group {
    /// `v1`, `apps/v1`.
    pub(super) fn version_name(&self, version: &Version) -> String {
        if self.name.is_empty() {
            version.name.clone()
        } else {
            format!("{}/{}", self.name, version.name)
        }
    }
}

/// The groups of a catalog.
pub(crate) fn groups(catalog: &Catalog) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let (built_in, custom): (Vec<_>, Vec<_>) =
        catalog.resources().cloned().partition(|r| !r.is_custom());
    for resource in built_in {
        add(&mut groups, resource, true);
    }
    let own: Vec<usize> = groups.iter().map(|g| g.versions.len()).collect();
    for resource in custom {
        add(&mut groups, resource, false);
    }
    for (i, group) in groups.iter_mut().enumerate() {
        let custom = own.get(i).copied().unwrap_or_default();
        group.versions[custom..].sort_by(|a, b| stability::compare(&a.name, &b.name));
    }
    groups
}

/// The groups of a catalog, with the versions that other servers serve.
pub(super) fn all_groups(catalog: &Catalog) -> Vec<Group> {
    let mut groups = groups(catalog);
    for remote in catalog.remotes() {
        let served = Version {
            name: remote.version.clone(),
            resources: Vec::new(),
            remote: Some(remote.clone()),
        };
        match groups.iter_mut().find(|group| group.name == remote.group) {
            Some(group) => {
                group.versions.retain(|version| version.name != served.name);
                group.versions.push(served);
                group.priority = group.priority.max(remote.group_priority);
                group.versions.sort_by(|a, b| {
                    let by_priority = b.priority().cmp(&a.priority());
                    by_priority.then_with(|| stability::compare(&a.name, &b.name))
                });
            }
            None => groups.push(Group {
                name: remote.group.clone(),
                versions: vec![served],
                built_in: false,
                priority: remote.group_priority,
            }),
        }
    }
    if catalog.remotes().next().is_some() {
        let rank = |group: &Group| {
            let priority = std::cmp::Reverse(group.priority);
            (!group.built_in).then(|| (priority, group.name.clone()))
        };
        groups.sort_by_cached_key(rank);
    }
    groups
}

fn add(groups: &mut Vec<Group>, resource: Arc<Resource>, built_in: bool) {
    let at = groups
        .iter()
        .position(|g| g.name == resource.group)
        .unwrap_or_else(|| {
            groups.push(Group {
                name: resource.group.clone(),
                versions: Vec::new(),
                built_in,
                priority: CUSTOM_GROUP_PRIORITY,
            });
            groups.len() - 1
        });
    let versions = &mut groups[at].versions;
    match versions.iter_mut().find(|v| v.name == resource.version) {
        Some(version) => version.resources.push(resource),
        None => versions.push(Version {
            name: resource.version.clone(),
            resources: vec![resource],
            remote: None,
        }),
    }
}
