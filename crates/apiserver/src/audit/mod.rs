//! The audit log: a line of JSON for each stage of each recorded request.
//! In: requests and a policy. Out: a file of `audit.k8s.io/v1` Events.
//! Guarantees: a request waits while the log is behind by [`LINES_MAX`] lines, so that no event of it
//! is lost; only the end of a watch or connection may be. Lines are flushed when no further one waits,
//! and before the server stops.

mod event; // what is written
mod file; // the file and its backups
mod policy; // what is recorded
mod recorder; // one request

pub(crate) use event::Record;
pub(crate) use recorder::Recorder;

use std::{collections::BTreeMap, io, path::PathBuf};

use jiff::Timestamp;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{auth::User, clock::Clock, http::request_info::RequestInfo};
use event::SentMetadata;
use file::LogFile;
use policy::{Level, Policy, PolicyDecision, Stage};

/// How many lines may wait to be written.
const LINES_MAX: usize = 10_000;

/// The file and the policy of the audit log.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// The file that lines are appended to; it is created if it does not exist.
    pub log_path: PathBuf,
    /// A `Policy` of `audit.k8s.io/v1`, in YAML or JSON.
    pub policy: String,
    /// When the file is rotated, and which older files are kept.
    pub rotation: AuditRotation,
}

/// When the file of the audit log is rotated, and which older files are kept.
///
/// A full file is renamed to `NAME-TIME.EXTENSION`. Backups are removed when the server starts and
/// when the file is rotated. The default is that of kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditRotation {
    /// The size of the file in megabytes of 1024 × 1024 bytes. 0 disables the rotation. Default: 100.
    pub size_max_megabytes: u64,
    /// How many older files are kept. 0 keeps all. Default: 100.
    pub backups_max: usize,
    /// How many days older files are kept. 0 keeps them forever. Default: 366.
    pub age_max_days: u32,
}

impl Default for AuditRotation {
    fn default() -> Self {
        Self {
            size_max_megabytes: 100,
            backups_max: 100,
            age_max_days: 366,
        }
    }
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
        clock: Clock,
        stop: CancellationToken,
    ) -> Result<(Self, JoinHandle<()>), String> {
        let policy = Policy::parse(&options.policy)
            .map_err(|why| format!("cannot read the audit policy: {why}"))?;
        let path = options.log_path.display();
        let file = LogFile::open(&options.log_path, options.rotation, clock)
            .await
            .map_err(|why| format!("cannot open the audit log {path}: {why}"))?;
        let (lines, waiting) = mpsc::channel(LINES_MAX);
        let task = tokio::spawn(async move {
            if let Err(error) = write_lines(waiting, file, stop).await {
                tracing::error!(%error, "cannot write the audit log; it ends here");
            }
        });
        Ok((Self { policy, lines }, task))
    }

    /// Begins the record of a request; `None` if it is not recorded.
    fn begin(&self, request: &RequestInfo, user: &User) -> Option<RecordStart> {
        let decision = self.policy.evaluate(request, user);
        (decision.level > Level::None).then_some(RecordStart(decision))
    }

    /// Records a request that was received.
    async fn received(&self, record: &Record) {
        self.write(record, Stage::RequestReceived, record.received)
            .await;
    }

    /// Records the start of a long-running response.
    async fn started(&self, record: &Record, now: Timestamp) {
        self.write(record, Stage::ResponseStarted, now).await;
    }

    /// Records a response that is complete.
    async fn complete(&self, record: &Record, now: Timestamp) {
        self.write(record, Stage::ResponseComplete, now).await;
    }

    /// Records a response that is complete, from where nothing can wait. If the log is full, the
    /// event is lost, and the server logs that.
    fn complete_later(&self, record: &Record, now: Timestamp) {
        if !record.has(Stage::ResponseComplete) {
            return;
        }
        let line = record.line(Stage::ResponseComplete, now);
        if self.lines.try_send(line).is_err() {
            tracing::warn!(
                audit_id = record.audit_id,
                "the end of a response is not in the audit log"
            );
        }
    }

    async fn write(&self, record: &Record, stage: Stage, now: Timestamp) {
        if record.has(stage) {
            // The task has ended after an error, which it has logged.
            let _ended = self.lines.send(record.line(stage, now)).await;
        }
    }
}

/// The audit policy decision of a request that is recorded.
struct RecordStart(PolicyDecision);

impl RecordStart {
    /// The record of a request.
    fn record(self, details: RecordDetails) -> Record {
        let RecordDetails {
            audit_id,
            request_uri,
            request,
            user,
            source_ip,
            user_agent,
            received,
        } = details;
        Record {
            decision: self.0,
            audit_id,
            request_uri,
            request,
            user,
            impersonated_user: None,
            source_ip,
            user_agent,
            received,
            sent: SentMetadata::default(),
            request_object: None,
            response_object: None,
            response_status: None,
            authorization: None,
            admission_annotations: BTreeMap::new(),
        }
    }
}

/// A request, as far as it is known before it is executed.
struct RecordDetails {
    audit_id: String,
    request_uri: String,
    request: RequestInfo,
    user: User,
    source_ip: Option<String>,
    user_agent: String,
    received: Timestamp,
}

/// Writes lines until `stop` is cancelled and none waits.
async fn write_lines(
    mut lines: mpsc::Receiver<Vec<u8>>,
    mut file: LogFile,
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
        file.write(&line).await?;
        if lines.is_empty() {
            file.flush().await?;
        }
    }
}
