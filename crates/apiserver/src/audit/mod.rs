//! The audit log: a line of JSON for each stage of each recorded request.
//! In: requests and a policy. Out: a file of `audit.k8s.io/v1` Events.
//! Guarantees: a request waits while the log is behind by [`LINES_MAX`] lines, so that no event of it
//! is lost; only the end of a watch or connection may be. Lines are flushed when no further one waits,
//! and before the server stops.

mod event; // what is written
mod policy; // what is recorded

pub(crate) use event::Record;

use std::{io, path::PathBuf, sync::Arc};

use tokio::{
    fs::{File, OpenOptions},
    io::{AsyncWriteExt as _, BufWriter},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{auth::User, http::request_info::RequestInfo, object::Time};
use policy::{Level, Policy, Stage};

/// How many lines may wait to be written.
const LINES_MAX: usize = 10_000;

/// What the audit log is written to, and by which policy.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The file that lines are appended to; it is created if it does not exist.
    pub log_path: PathBuf,
    /// A `Policy` of `audit.k8s.io/v1`, in YAML or JSON.
    pub policy: String,
}

/// The audit log of one server.
#[derive(Debug)]
pub(crate) struct AuditLog {
    policy: Policy,
    lines: mpsc::Sender<Vec<u8>>,
}

impl AuditLog {
    /// Opens the log. The task ends when `stop` is cancelled and all lines are written.
    ///
    /// # Errors
    /// An invalid policy, or a file that cannot be opened.
    pub(crate) async fn open(
        options: &AuditOptions,
        stop: CancellationToken,
    ) -> Result<(Self, JoinHandle<()>), String> {
        let policy = Policy::parse(&options.policy)
            .map_err(|why| format!("cannot read the audit policy: {why}"))?;
        let path = options.log_path.display();
        let mut open = OpenOptions::new();
        open.create(true).append(true);
        // Only its owner may read what requests contain.
        #[cfg(unix)]
        open.mode(0o600);
        let file = open
            .open(&options.log_path)
            .await
            .map_err(|why| format!("cannot open the audit log {path}: {why}"))?;
        let (lines, waiting) = mpsc::channel(LINES_MAX);
        let task = tokio::spawn(async move {
            if let Err(error) = write_lines(waiting, BufWriter::new(file), stop).await {
                tracing::error!(%error, "cannot write the audit log; it ends here");
            }
        });
        Ok((Self { policy, lines }, task))
    }

    /// Begins the record of a request; `None` if it is not recorded.
    pub(crate) fn begin(&self, request: &RequestInfo, user: &User) -> Option<RecordStart> {
        let decision = self.policy.evaluate(request, user);
        (decision.level > Level::None).then_some(RecordStart(decision))
    }

    /// Records a request that was received.
    pub(crate) async fn received(&self, record: &Record) {
        self.write(record, Stage::RequestReceived, None, record.received)
            .await;
    }

    /// Records the start of a long-running response.
    pub(crate) async fn started(&self, record: &Record, code: u16, now: Time) {
        self.write(record, Stage::ResponseStarted, Some(code), now)
            .await;
    }

    /// Records a response that is complete.
    pub(crate) async fn complete(&self, record: &Record, code: u16, now: Time) {
        self.write(record, Stage::ResponseComplete, Some(code), now)
            .await;
    }

    /// Records a response that is complete, from where nothing can wait. If the log is full, the
    /// event is lost, and the server logs that.
    pub(crate) fn complete_later(&self, record: &Record, code: u16, now: Time) {
        if !record.has(Stage::ResponseComplete) {
            return;
        }
        let line = record.line(Stage::ResponseComplete, Some(code), now);
        if self.lines.try_send(line).is_err() {
            tracing::warn!(
                audit_id = record.audit_id,
                "the end of a response is not in the audit log"
            );
        }
    }

    async fn write(&self, record: &Record, stage: Stage, code: Option<u16>, now: Time) {
        if record.has(stage) {
            // The task has ended after an error, which it has logged.
            let _ended = self.lines.send(record.line(stage, code, now)).await;
        }
    }
}

/// What a policy says of a request that is recorded.
pub(crate) struct RecordStart(policy::Decision);

impl RecordStart {
    /// The record of a request.
    pub(crate) fn record(self, details: RecordDetails) -> Record {
        let RecordDetails {
            audit_id,
            request_uri,
            request,
            user,
            impersonator,
            source_ip,
            user_agent,
            received,
        } = details;
        Record {
            decision: self.0,
            audit_id,
            request_uri,
            request: RequestInfo::clone(&request),
            user,
            impersonator,
            source_ip,
            user_agent,
            received,
            request_object: None,
            response_object: None,
        }
    }
}

/// A request, as far as it is known before it is executed.
pub(crate) struct RecordDetails {
    pub(crate) audit_id: String,
    pub(crate) request_uri: String,
    pub(crate) request: Arc<RequestInfo>,
    pub(crate) user: User,
    pub(crate) impersonator: Option<User>,
    pub(crate) source_ip: Option<String>,
    pub(crate) user_agent: String,
    pub(crate) received: Time,
}

/// Writes lines until `stop` is cancelled and none waits.
async fn write_lines(
    mut lines: mpsc::Receiver<Vec<u8>>,
    mut file: BufWriter<File>,
    stop: CancellationToken,
) -> io::Result<()> {
    loop {
        let line = tokio::select! {
            biased;
            line = lines.recv() => line,
            () = stop.cancelled() => {
                lines.close();
                lines.recv().await
            }
        };
        let Some(line) = line else {
            return file.flush().await;
        };
        file.write_all(&line).await?;
        if lines.is_empty() {
            file.flush().await?;
        }
    }
}
