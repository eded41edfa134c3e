//! OpenAPI: what requests and objects look like, in documents that tools read.
//! In: the catalog, the table of types, the schemas of custom resources. Out: `/openapi/v3`, a document per group and version, `/openapi/v2`.
//! Holds: documents are made once per group and version and again only when its resources change; they say nothing the server does not do.

mod answer; // from a request to a document
mod custom; // schemas of custom resources
mod document; // one group and version
mod operations; // what can be done at a path
mod schemas; // schemas of built-in types
mod swagger; // the older form

pub(crate) use answer::{group_version, index, swagger_page};

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use crate::{
    discovery::{self, Tagged},
    registry::{Catalog, Resource},
};

/// The documents of the catalog that was last asked about.
#[derive(Debug, Default)]
pub(crate) struct OpenApi {
    last: Mutex<Option<(Arc<Catalog>, Arc<Documents>)>>,
}

/// Documents by the path of their group and version: `api/v1`, `apis/apps/v1`.
type Documents = BTreeMap<String, Document>;

/// A document and what it was made from.
#[derive(Clone, Debug)]
struct Document {
    resources: Vec<Arc<Resource>>,
    text: Tagged,
}

impl OpenApi {
    fn documents(&self, catalog: &Arc<Catalog>) -> Arc<Documents> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let old = match &*last {
            Some((known, documents)) if Arc::ptr_eq(known, catalog) => return documents.clone(),
            Some((_, documents)) => documents.clone(),
            None => Arc::default(),
        };
        let documents = Arc::new(renewed(catalog, &old));
        *last = Some((catalog.clone(), documents.clone()));
        documents
    }
}

/// The documents of a catalog; those whose resources are still the same are kept.
fn renewed(catalog: &Catalog, old: &Documents) -> Documents {
    let groups = discovery::groups(catalog);
    let versions = groups.iter().flat_map(|group| group.versions.iter().map(move |version| (group, version)));
    versions
        .map(|(group, version)| {
            let path = match group.name.as_str() {
                "" => format!("api/{}", version.name),
                name => format!("apis/{name}/{}", version.name),
            };
            let same = |known: &&Document| {
                known.resources.len() == version.resources.len()
                    && known.resources.iter().zip(&version.resources).all(|(a, b)| Arc::ptr_eq(a, b))
            };
            let document = old.get(&path).filter(same).cloned().unwrap_or_else(|| Document {
                resources: version.resources.clone(),
                text: Tagged::new(Bytes::from(document::write(&path, &group.name, version))),
            });
            (path, document)
        })
        .collect()
}
