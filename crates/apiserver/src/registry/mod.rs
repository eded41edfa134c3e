//! The catalog of served resources: the built-in rows and the defined custom resources.
//! In: the table of kinds, and definitions as they are written and deleted. Out: the resource of a
//! path.
//! Guarantees: a lookup sees one consistent catalog; a new definition is served before the response
//! to its write is sent.

mod custom; // a version of a custom resource
mod decode; // bodies, decoded as a resource
mod definition_strategy; // CustomResourceDefinition as a kind
mod remote; // versions that other servers serve
mod resource; // one served resource
pub(crate) mod table; // the rows

pub(crate) use custom::{CONVERTED, ConversionWebhook, Custom};
pub(crate) use decode::Decoded;
pub(crate) use definition_strategy::DEFINITION;
pub(crate) use remote::{RemoteSwagger, RemoteVersion};
pub(crate) use resource::{Resource, Source, Subresource};
pub(crate) use table::ROWS;

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

static BUILT_IN: LazyLock<Vec<Arc<Resource>>> = LazyLock::new(|| {
    ROWS.iter()
        .map(|row| Arc::new(Resource::built_in(row)))
        .collect()
});

/// Whether objects of a built-in kind cannot own others.
pub(crate) fn is_banned_owner(api_version: &str, kind: &str) -> bool {
    BUILT_IN.iter().any(|resource| {
        resource.strategy.is_banned_owner
            && resource.kind == kind
            && resource.api_version() == api_version
    })
}

/// Everything served at one moment.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    /// Custom resources by group, version and plural name.
    custom: BTreeMap<(String, String, String), Arc<Resource>>,
    /// The versions of other servers, by group and version.
    remote: Arc<BTreeMap<(String, String), Arc<RemoteVersion>>>,
}

impl Catalog {
    /// The server of a version of a group, if it is not this one.
    pub(crate) fn remote(&self, group: &str, version: &str) -> Option<&Arc<RemoteVersion>> {
        if self.remote.is_empty() {
            return None;
        }
        self.remote.get(&(group.to_owned(), version.to_owned()))
    }

    /// Everything that other servers serve.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = &Arc<RemoteVersion>> {
        self.remote.values()
    }

    /// The same catalog with these versions of other servers, instead of those it had.
    fn with_remotes(&self, remotes: Vec<RemoteVersion>) -> Self {
        let remotes = remotes.into_iter().map(|remote| {
            let key = (remote.group.clone(), remote.version.clone());
            (key, Arc::new(remote))
        });
        let catalog = Self {
            custom: self.custom.clone(),
            remote: Arc::new(remotes.collect()),
        };
        debug_assert!(catalog.is_consistent());
        catalog
    }

    /// The resource of a path.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let built_in = BUILT_IN
            .iter()
            .find(|r| r.plural == plural && r.group == group && r.version == version);
        built_in
            .or_else(|| {
                self.custom
                    .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
            })
            .cloned()
    }

    /// The resource of a kind.
    pub(crate) fn find_kind(
        &self,
        group: &str,
        version: &str,
        kind: &str,
    ) -> Option<Arc<Resource>> {
        self.resources()
            .find(|r| r.group == group && r.version == version && r.kind == kind)
            .cloned()
    }

    /// Every resource: built-in rows in their order, then custom ones.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        BUILT_IN.iter().chain(self.custom.values())
    }

    /// Whether a group is built in.
    pub(crate) fn has_built_in_group(&self, group: &str) -> bool {
        BUILT_IN.iter().any(|r| r.group == group)
    }

    /// Whether a version of a group has any resource.
    pub(crate) fn has_version(&self, group: &str, version: &str) -> bool {
        self.resources()
            .any(|r| r.group == group && r.version == version)
    }

    /// The same catalog with these resources for a group and plural name, instead of those it had.
    pub(crate) fn with_custom(&self, group: &str, plural: &str, resources: Vec<Resource>) -> Self {
        let mut custom = self.custom.clone();
        custom.retain(|(g, _, p), _| g != group || p != plural);
        custom.extend(resources.into_iter().map(|r| {
            (
                (r.group.clone(), r.version.clone(), r.plural.clone()),
                Arc::new(r),
            )
        }));
        let catalog = Self {
            custom,
            remote: self.remote.clone(),
        };
        debug_assert!(catalog.is_consistent());
        catalog
    }

    /// Whether every resource is under its own names, and none is both built in and custom.
    fn is_consistent(&self) -> bool {
        self.custom
            .iter()
            .all(|((group, version, plural), resource)| {
                resource.group == *group
                    && resource.version == *version
                    && resource.plural == *plural
                    && resource.is_custom()
            })
            && self.remote.iter().all(|((group, version), remote)| {
                remote.group == *group && remote.version == *version
            })
    }
}

/// The catalog, replaced as a whole when definitions change.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    catalog: RwLock<Arc<Catalog>>,
}

impl Registry {
    /// The current catalog.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.catalog
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Serves these versions of other servers from now on. If nothing changes, the catalog is kept,
    /// and with it all of its documents.
    pub(crate) fn update_remotes(&self, change: impl FnOnce(&Catalog) -> Vec<RemoteVersion>) {
        let mut slot = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        let remotes = change(&slot);
        let is_same = slot.remotes().map(Arc::as_ref).eq(remotes.iter());
        if !is_same {
            *slot = Arc::new(slot.with_remotes(remotes));
        }
    }

    /// Serves something else from now on.
    pub(crate) fn update(&self, change: impl FnOnce(&Catalog) -> Catalog) {
        let mut slot = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        *slot = Arc::new(change(&slot));
    }
}

/// How a version ranks among versions of its group: `v2` before `v1` before `v1beta2` before
/// `v1alpha1`, anything else last, by name.
pub(crate) fn stability(version: &str) -> impl Ord + use<> {
    let parsed = version.strip_prefix('v').and_then(|rest| {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let major: u64 = rest[..digits].parse().ok()?;
        let (level, minor) = match &rest[digits..] {
            "" => (2, 0),
            tail if tail.starts_with("beta") => (1, tail[4..].parse().ok()?),
            tail if tail.starts_with("alpha") => (0, tail[5..].parse::<u64>().ok()?),
            _ => return None,
        };
        Some((level, major, minor))
    });
    (parsed, std::cmp::Reverse(version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_are_first() {
        let mut versions = [
            "v1alpha1", "foo10", "v1", "v1beta1", "v10", "v2beta1", "foo1", "v2",
        ];
        versions.sort_by_key(|v| std::cmp::Reverse(stability(v)));
        assert_eq!(
            versions,
            [
                "v10", "v2", "v1", "v2beta1", "v1beta1", "v1alpha1", "foo1", "foo10"
            ]
        );
    }
}
