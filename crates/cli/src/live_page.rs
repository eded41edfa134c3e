//! The live page of a process: its server, its recorder, and the observer of accepted writes.
//!
//! Inputs: a trace, and the writes of an API server in this process. Outputs: a URL, a file.
//!
//! Guarantees: without a reader, an accepted write costs one trace record and one entry in a log that
//! shares its bytes with the storage; the page and the recorder end with the process.

use std::path::PathBuf;
use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::trace::{AcceptedWrite, Trace, TraceEvent};
use bellerophon_apiserver::ObservedWrite;
use bellerophon_page::{LiveSource, ObjectLog, Page};
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
    let own: Arc<str> = "".into();
    move |write: ObservedWrite| {
        let is_update = write.previous_version.is_some() && !write.is_deletion;
        if is_update && write.namespace() == NODE_LEASES && &*write.resource == LEASES {
            return;
        }
        let kind = objects.kind_of(&write.resource, write.object());
        let namespace = Some(write.namespace()).filter(|namespace| !namespace.is_empty());
        let key = ObjectKey::new(namespace, write.name());
        let request = write.request.as_deref();
        let accepted = AcceptedWrite {
            user: request.map_or_else(|| own.clone(), |request| request.user.clone()),
            manager: request.map_or_else(|| "apiserver".into(), |request| request.manager.clone()),
            verb: match (request, write.is_deletion, is_update) {
                (Some(request), ..) => request.verb,
                (None, true, _) => "delete",
                (None, false, true) => "update",
                (None, false, false) => "create",
            },
            subresource: request.map_or_else(|| own.clone(), |request| request.subresource.clone()),
            kind,
            key,
            previous_version: write.previous_version,
            resource_version: write.resource_version(),
            is_deletion: write.is_deletion,
            is_in_process: request.is_none_or(|request| request.is_in_process),
        };
        // Before the record: a reader of the record looks the version up.
        let accepted = Arc::new(accepted);
        objects.add(accepted.clone(), write.object().clone());
        trace.record(|| TraceEvent::Accepted(accepted));
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
