//! OpenAPI documents of the served paths and schemas.
//! In: the catalog, the table of types, the schemas of custom resources. Out: `/openapi/v3`, a
//! document per group and version, `/openapi/v2`.
//! Guarantees: documents are built on the first request; those of built-in kinds once per process,
//! the others again only when their definitions change, so memory is bounded by what is served.

mod answer; // serves requests
mod custom; // schemas of custom resources
mod descriptions; // of types and fields
mod document; // the documents of version 3
mod endpoints; // non-resource paths
mod entries; // paths and schemas, each written
mod form; // what differs between the versions
mod gnostic; // version 2 in protobuf
mod operation; // an operation of a path
mod parameters; // parameters of paths and queries
mod paths; // the paths of a resource
mod schemas; // schemas of built-in types
mod swagger; // the document of version 2
mod written; // a document as it is sent

pub(crate) use answer::{group_version, index, swagger_document};

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use endpoints::Endpoint;
use entries::Encoding;
use swagger::Swagger;
use written::Written;

use crate::{
    discovery,
    registry::{Catalog, Resource},
};

/// The documents of the most recently requested catalog.
#[derive(Debug)]
pub(crate) struct OpenApi {
    last: Mutex<Option<(Arc<Catalog>, Arc<Documents>)>>,
    json: Swagger,
    protobuf: Swagger,
}

impl Default for OpenApi {
    fn default() -> Self {
        Self {
            last: Mutex::default(),
            json: Swagger::new(Encoding::Json),
            protobuf: Swagger::new(Encoding::Protobuf),
        }
    }
}

/// Documents by their path: `api/v1`, `apis/apps/v1`, `version`.
type Documents = BTreeMap<String, Document>;

/// A document and what it was made from.
#[derive(Clone, Debug)]
struct Document {
    resources: Vec<Arc<Resource>>,
    written: Arc<Written>,
}

/// The documents of a server without custom resources.
static BUILT_IN: LazyLock<Arc<Documents>> = LazyLock::new(|| {
    let catalog = Catalog::default();
    let mut documents = renewed(&catalog, &Documents::new());
    let groups = discovery::groups(&catalog)
        .into_iter()
        .filter(|group| !group.name.is_empty());
    for endpoint in Endpoint::fixed()
        .into_iter()
        .chain(groups.map(|group| Endpoint::of_group(&group.name)))
    {
        let written = Arc::new(Written::new(document::of_endpoint(&endpoint).into()));
        documents.insert(
            endpoint.document().to_owned(),
            Document {
                resources: Vec::new(),
                written,
            },
        );
    }
    Arc::new(documents)
});

impl OpenApi {
    fn documents(&self, catalog: &Arc<Catalog>) -> Arc<Documents> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let old = match &*last {
            Some((known, documents)) if Arc::ptr_eq(known, catalog) => return documents.clone(),
            Some((_, documents)) => documents.clone(),
            None => BUILT_IN.clone(),
        };
        let documents = Arc::new(renewed(catalog, &old));
        *last = Some((catalog.clone(), documents.clone()));
        documents
    }
}

/// The documents of a catalog; those whose resources are still the same are kept.
fn renewed(catalog: &Catalog, old: &Documents) -> Documents {
    let groups = discovery::groups(catalog);
    let versions = groups
        .iter()
        .flat_map(|group| group.versions.iter().map(move |version| (group, version)));
    let of_versions = versions.map(|(group, version)| {
        let root = version.root(&group.name);
        let same = |known: &&Document| {
            known.resources.len() == version.resources.len()
                && known
                    .resources
                    .iter()
                    .zip(&version.resources)
                    .all(|(a, b)| Arc::ptr_eq(a, b))
        };
        let document = old
            .get(&root)
            .filter(same)
            .cloned()
            .unwrap_or_else(|| Document {
                resources: version.resources.clone(),
                written: Arc::new(Written::new(
                    document::of_version(&root, &group.name, version).into(),
                )),
            });
        (root, document)
    });
    let of_endpoints = old
        .iter()
        .filter(|(_, document)| document.resources.is_empty())
        .map(|(path, document)| (path.clone(), document.clone()));
    of_endpoints.chain(of_versions).collect()
}
