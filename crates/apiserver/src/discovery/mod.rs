//! Discovery: the groups, versions and resources that the server serves.
//! In: the catalog. Out: the documents of `/api`, `/apis` and the paths below them, plain or
//! aggregated.
//! Guarantees: documents are made once per catalog, so a new custom resource shows in the first
//! answer after it is served.

mod aggregated; // everything in one document
mod answer; // serves requests
mod documents; // the documents of one catalog
mod groups; // groups and versions in their order
mod legacy; // one document per group and version
mod stability; // which version is preferred

pub(crate) use answer::{DiscoveryRequest, answer};
pub(crate) use documents::Tagged;
pub(crate) use groups::{Version, groups};

use std::sync::{Arc, Mutex, PoisonError};

use documents::Documents;

use crate::registry::Catalog;

/// The documents of the most recently requested catalog.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    last: Mutex<Option<(Arc<Catalog>, Arc<Documents>)>>,
}

impl Discovery {
    fn documents(&self, catalog: &Arc<Catalog>) -> Arc<Documents> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, documents)) if Arc::ptr_eq(known, catalog) => documents.clone(),
            _ => {
                let documents = Arc::new(Documents::of(catalog));
                *last = Some((catalog.clone(), documents.clone()));
                documents
            }
        }
    }
}
