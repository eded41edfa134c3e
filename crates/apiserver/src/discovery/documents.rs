//! The documents of one catalog, written once.

use std::collections::HashMap;

use bytes::Bytes;
use http::HeaderValue;
use serde::Serialize;
use sha2::{Digest, Sha512};

use super::{
    aggregated::GroupDiscoveryList,
    groups::all_groups,
    legacy::{ApiGroup, ApiGroupList, ApiResourceList},
};
use crate::registry::Catalog;

/// Bytes and their digest in upper case, which is their `ETag`.
#[derive(Clone, Debug)]
pub(crate) struct Tagged {
    pub(crate) bytes: Bytes,
    pub(crate) tag: String,
}

impl Tagged {
    pub(crate) fn new(bytes: Bytes) -> Self {
        use std::fmt::Write as _;
        let mut tag = String::with_capacity(128);
        for byte in Sha512::digest(&bytes) {
            write!(tag, "{byte:02X}").expect("writing to memory does not fail");
        }
        Self { bytes, tag }
    }

    /// The tag as the `ETag` header.
    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::try_from(format!("{:?}", self.tag))
            .expect("a tag is made of digits and letters")
    }
}

/// Every discovery document, as JSON.
#[derive(Debug)]
pub(super) struct Documents {
    /// The core group, aggregated.
    pub(super) core: Tagged,
    /// All named groups, aggregated.
    pub(super) named: Tagged,
    /// The list of named groups.
    pub(super) groups: Bytes,
    /// Each named group.
    pub(super) group: HashMap<String, Bytes>,
    /// The resources of each version, by group and version.
    pub(super) versions: HashMap<(String, String), Bytes>,
}

impl Documents {
    pub(super) fn of(catalog: &Catalog) -> Self {
        let all = all_groups(catalog);
        let (core, named): (Vec<_>, Vec<_>) = all.iter().partition(|g| g.name.is_empty());
        let versions = all.iter().flat_map(|g| {
            let own = g.versions.iter().filter(|v| v.remote.is_none());
            own.map(move |v| {
                (
                    (g.name.clone(), v.name.clone()),
                    json(&ApiResourceList::of(g, v)),
                )
            })
        });
        Self {
            core: Tagged::new(json(&GroupDiscoveryList::of(core))),
            named: Tagged::new(json(&GroupDiscoveryList::of(named.iter().copied()))),
            groups: json(&ApiGroupList::of(&all)),
            group: named
                .iter()
                .map(|g| (g.name.clone(), json(&ApiGroup::document(g))))
                .collect(),
            versions: versions.collect(),
        }
    }
}

pub(super) fn json(document: &impl Serialize) -> Bytes {
    serde_json::to_vec(document)
        .expect("a document has string keys")
        .into()
}
