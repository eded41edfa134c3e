//! REST mapper: from `apiVersion` and `kind` to the resource, for kinds known at run time.
//! In: the types of an object. Out: its resource, from a cache or from discovery.
//! Guarantees: a kind is discovered once; at most [`RESOURCES_MAX`] are kept.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use kube::core::{ApiResource, GroupVersionKind, TypeMeta};

/// Resources that are kept. When full, the cache is cleared and kinds are discovered again.
const RESOURCES_MAX: usize = 1000;

/// Finds resources by discovery. Clones share what was found.
#[derive(Clone)]
pub(crate) struct RestMapper {
    client: kube::Client,
    found: Arc<Mutex<BTreeMap<(String, String), ApiResource>>>,
}

impl RestMapper {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self {
            client,
            found: Arc::default(),
        }
    }

    /// Adds a resource that is known without discovery.
    pub(crate) fn add(&self, resource: &ApiResource) {
        let id = (resource.api_version.clone(), resource.kind.clone());
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() >= RESOURCES_MAX {
            found.clear();
        }
        found.insert(id, resource.clone());
    }

    /// The resource of a kind.
    pub(super) async fn resource(&self, types: &TypeMeta) -> Result<ApiResource, kube::Error> {
        let id = (types.api_version.clone(), types.kind.clone());
        // In a block, so that the guard is not held across the await below.
        let known = {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.get(&id).cloned()
        };
        if let Some(resource) = known {
            return Ok(resource);
        }
        let kind = GroupVersionKind::try_from(types);
        let kind = kind.map_err(|error| kube::Error::Service(Box::new(error)))?;
        let (resource, _) = kube::discovery::pinned_kind(&self.client, &kind).await?;
        self.add(&resource);
        Ok(resource)
    }
}

impl fmt::Debug for RestMapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RestMapper")
    }
}
