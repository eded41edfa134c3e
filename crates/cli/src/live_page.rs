//! The live page of a process: its server, its recorder, and the observer of accepted writes.
//!
//! Inputs: a trace, and the writes of an API server in this process. Outputs: a URL, a file.
//!
//! Guarantees: without a reader, an accepted write costs one trace record and one entry in a log that
//! shares its bytes with the storage; the page and the recorder end with the process.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::trace::{AcceptedWrite, Trace, TraceEvent, WriteAttributes};
use bellerophon_apiserver::{ApiServer, ObservedRequest, ObservedWrite};
use bellerophon_page::{LiveSource, ObjectLog, Page, StoredObject, StoredObjects};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::error::CliError;

/// The resource whose updates are not traced in the namespace of nodes: every node renews its Lease
/// every 10 s, and these would be the largest part of the trace.
const LEASES: &str = "coordination.k8s.io/leases";

/// The namespace of the Leases of nodes.
const NODE_LEASES: &str = "kube-node-lease";

/// Records the accepted writes of an API server.
pub(crate) fn observer(
    trace: Trace,
    objects: ObjectLog,
) -> impl Fn(ObservedWrite) + Send + Sync + 'static {
    move |write: ObservedWrite| {
        let is_update = write.previous_version.is_some() && !write.is_deletion;
        if is_update && write.namespace() == NODE_LEASES && &*write.resource == LEASES {
            return;
        }
        // Before the record: a reader of the record looks the version up.
        let accepted = Arc::new(AcceptedWrite {
            attributes: attributes(&write, &objects),
            key: key(write.namespace(), write.name()),
            previous_version: write.previous_version,
            resource_version: write.resource_version(),
            is_deletion: write.is_deletion,
        });
        let before = write.previous_object().cloned();
        objects.add(accepted.clone(), write.object().clone(), before);
        trace.record(|| TraceEvent::Accepted(accepted));
    }
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(
        Some(namespace).filter(|namespace| !namespace.is_empty()),
        name,
    )
}

/// The last request that wrote on a thread, and the attributes of its writes to a resource.
struct LastWrite {
    request: Option<Arc<ObservedRequest>>,
    resource: Arc<str>,
    attributes: Arc<WriteAttributes>,
}

thread_local! {
    static LAST: RefCell<Option<LastWrite>> = const { RefCell::new(None) };
}

/// The attributes of a write, shared with the last one of this thread if they are equal: most writes
/// are of few clients.
fn attributes(write: &ObservedWrite, objects: &ObjectLog) -> Arc<WriteAttributes> {
    let verb = match &write.request {
        Some(request) => request.verb,
        None if write.is_deletion => "delete",
        None if write.previous_version.is_some() => "update",
        None => "create",
    };
    LAST.with_borrow_mut(|last| {
        // Consecutive requests of a client share a description, and writes the name of a resource.
        let is_same = |last: &&mut LastWrite| {
            last.request.as_ref().map(Arc::as_ptr) == write.request.as_ref().map(Arc::as_ptr)
                && Arc::ptr_eq(&last.resource, &write.resource)
                && last.attributes.verb == verb
        };
        if let Some(last) = last.as_mut().filter(is_same) {
            return last.attributes.clone();
        }
        let request = write.request.as_deref();
        let attributes = Arc::new(WriteAttributes {
            user: request.map_or_else(|| "".into(), |request| request.user.clone()),
            manager: request.map_or_else(|| "apiserver".into(), |request| request.manager.clone()),
            verb,
            subresource: request.map_or_else(|| "".into(), |request| request.subresource.clone()),
            kind: objects.kind_of(&write.resource, write.object()),
            is_in_process: request.is_none_or(|request| request.is_in_process),
        });
        *last = Some(LastWrite {
            request: write.request.clone(),
            resource: write.resource.clone(),
            attributes: attributes.clone(),
        });
        attributes
    })
}

/// The objects of an API server, for the page.
pub(crate) fn stored_objects(server: &ApiServer) -> Arc<dyn StoredObjects> {
    Arc::new(Storage(server.stored_objects()))
}

#[derive(Debug)]
struct Storage(bellerophon_apiserver::StoredObjects);

impl StoredObjects for Storage {
    fn list(&self) -> Vec<StoredObject> {
        self.0.list().iter().map(stored_object).collect()
    }

    fn get(&self, resource: &Arc<str>, searched: &ObjectKey) -> Option<StoredObject> {
        let namespace = searched.namespace().unwrap_or_default();
        let found = self.0.get(resource, namespace, searched.name())?;
        Some(stored_object(&found))
    }
}

fn stored_object(stored: &bellerophon_apiserver::StoredObject) -> StoredObject {
    StoredObject {
        resource: stored.resource.clone(),
        key: key(stored.namespace(), stored.name()),
        resource_version: stored.resource_version(),
        object: stored.object().clone(),
    }
}

/// The tasks of a page and of a recorder.
#[derive(Debug, Default)]
pub(crate) struct LivePage {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl LivePage {
    /// Serves a page.
    pub(crate) fn serve(&mut self, page: Page) {
        self.tasks.spawn(page.serve(self.stop.clone()));
    }

    /// Records into a file. A file that cannot be created is an error now, one that cannot be
    /// written later is logged.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn record(&mut self, source: LiveSource, path: PathBuf) -> Result<(), CliError> {
        std::fs::File::create(&path).map_err(|error| {
            CliError::context(&format!("cannot record into {}", path.display()))(error)
                .with_hint("name another file with --record")
        })?;
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let recording = bellerophon_page::record(source, &path);
            if let Some(Err(error)) = stop.run_until_cancelled(recording).await {
                error!(%error, "recording ended");
            }
        });
        Ok(())
    }

    /// Ends all tasks.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
