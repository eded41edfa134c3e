//! All objects of a server as bytes, to start another one with them.
//! In: the store of a server that takes no more requests. Out: the newest revision and every object,
//! one JSON document a line; and from these, the store of another server.
//! Guarantees: uids, creation times and generations stay. Every object gets a new revision, newer
//! than any before: an update with an old version is a conflict, a watch from one is expired.

use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::Effect;
use bellerophon_storage::{Range, Revision, Scope};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{api::Api, controllers, write};

/// The group whose objects are first: they define other resources.
const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    revision: Revision,
}

/// The newest revision and all objects, definitions of custom resources first.
pub(crate) fn write(api: &Api) -> Vec<u8> {
    let revision = api.store.revision();
    let mut text = serde_json::to_vec(&Head { revision }).expect("a number is JSON");
    let mut collections: Vec<_> = api.store.sizes();
    collections.sort_by_key(|(name, ..)| &**name != DEFINITIONS);
    for (name, ..) in collections {
        let listing = api
            .store
            .list(&name, &Range::all_of(Scope::default()), None);
        let listing = listing.expect("the newest state is always kept");
        for stored in listing.objects {
            text.push(b'\n');
            text.extend_from_slice(stored.encoded.bytes());
        }
    }
    text
}

/// A decoded snapshot.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// The newest revision of the snapshot; 0 for an empty one.
    pub(crate) revision: Revision,
    objects: Vec<Object>,
}

impl Snapshot {
    /// Decodes the output of [`write`].
    ///
    /// # Errors
    /// A line that is no object.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let Some(head) = lines.next().filter(|line| !line.is_empty()) else {
            return Ok(Self::default());
        };
        let head: Head = serde_json::from_slice(head)?;
        let objects = lines.map(|line| {
            let map: Map<String, Value> = serde_json::from_slice(line)?;
            Object::from_map(map)
        });
        Ok(Self {
            revision: head.revision,
            objects: objects.collect::<Result<_, _>>()?,
        })
    }

    /// Stores the objects, and serves the custom resources that they define.
    ///
    /// # Errors
    /// An object of a kind that this server does not have, or one that exists.
    pub(crate) async fn restore(self, api: &Api) -> Result<(), String> {
        for object in self.objects {
            let (group, version) = object
                .api_version
                .split_once('/')
                .unwrap_or(("", &object.api_version));
            let name = || format!("{} {}", object.kind, object.meta.name);
            let catalog = api.registry.catalog();
            let resource = catalog
                .find_kind(group, version, &object.kind)
                .ok_or_else(|| format!("no kind of {}", name()))?;
            if resource.strategy.effect == Effect::Addresses {
                api.adopt_addresses(&object);
            }
            write::store_as_is(api, &resource, &object)
                .await
                .map_err(|_| format!("{} exists", name()))?;
            if resource.strategy.effect == Effect::Definition {
                controllers::definitions::written(api, &object.meta.name).await;
            }
        }
        Ok(())
    }
}
