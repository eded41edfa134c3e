//! The exit status of a command, as the protocols report it.

use futures_util::FutureExt;
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tracing::debug;

use crate::ByteWriter;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code; 0 is success. Attach reports 0 for any code.
    Exited(i32),
    /// It could not be run, or its streams failed. Kubelet begins the message with `error executing
    /// command in container: ` or `error attaching to container: `.
    Failed(String),
}

/// What a version of the protocol sends on its error stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusFormat {
    /// The message of a failure; nothing for success.
    Message,
    /// A `Status` object in JSON, since v4.
    Object,
}

/// The error stream of a command.
pub(super) struct StatusWriter {
    pub(super) format: StatusFormat,
    /// None if the protocol cannot report a status.
    pub(super) stream: Option<ByteWriter>,
}

impl StatusWriter {
    /// Reports the outcome and ends the error stream.
    pub(super) async fn write(mut self, outcome: &Outcome) {
        let Some(mut stream) = self.stream.take() else {
            return;
        };
        let bytes = self.format.encode(outcome);
        if let Err(error) = stream.write_all(&bytes).await {
            debug!(%error, "cannot report the status of a command");
        }
    }
}

/// Clients take an error stream without a status for success, so one that is dropped reports a
/// failure.
impl Drop for StatusWriter {
    fn drop(&mut self) {
        if let Some(mut stream) = self.stream.take() {
            let abandoned = Outcome::Failed("the command ended without a status".to_owned());
            // Nothing was written before, so there is space for all of it.
            let write = stream.write(&self.format.encode(&abandoned)).now_or_never();
            debug!(?write, "a command ended without a status");
        }
    }
}

impl StatusFormat {
    fn encode(self, outcome: &Outcome) -> Vec<u8> {
        let status = Status::new(outcome);
        match self {
            Self::Object => {
                serde_json::to_vec(&status).expect("a status has only strings and numbers")
            }
            Self::Message => status.message.unwrap_or_default().into_bytes(),
        }
    }
}

/// The `Status` of meta/v1, with the fields that are used here, in its order.
#[derive(Serialize)]
struct Status {
    metadata: Metadata,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

/// The metadata of a status, which has none.
#[derive(Serialize)]
struct Metadata {}

#[derive(Serialize)]
struct Details {
    causes: [Cause; 1],
}

#[derive(Serialize)]
struct Cause {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    message: String,
}

impl Status {
    fn new(outcome: &Outcome) -> Self {
        let success = Self {
            metadata: Metadata {},
            status: "Success",
            message: None,
            reason: None,
            details: None,
            code: None,
        };
        let (message, reason, cause, code) = match outcome {
            Outcome::Exited(0) => return success,
            Outcome::Exited(code) => {
                let message =
                    format!("command terminated with non-zero exit code: exit status {code}");
                let cause = Cause {
                    reason: Some("ExitCode"),
                    message: code.to_string(),
                };
                (message, "NonZeroExitCode", cause, None)
            }
            Outcome::Failed(error) => {
                let message = format!("Internal error occurred: {error}");
                let cause = Cause {
                    reason: None,
                    message: error.clone(),
                };
                (message, "InternalError", cause, Some(500))
            }
        };
        Self {
            status: "Failure",
            message: Some(message),
            reason: Some(reason),
            details: Some(Details { causes: [cause] }),
            code,
            ..success
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(outcome: &Outcome, expected: &str) {
        let json = serde_json::to_string(&Status::new(outcome)).expect("a status is JSON");
        assert_eq!(json, expected);
    }

    #[test]
    fn status_objects_are_those_of_kubelet() {
        check(&Outcome::Exited(0), r#"{"metadata":{},"status":"Success"}"#);
        check(
            &Outcome::Exited(7),
            r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#,
        );
        check(
            &Outcome::Failed("error executing command in container: no shell".to_owned()),
            r#"{"metadata":{},"status":"Failure","message":"Internal error occurred: error executing command in container: no shell","reason":"InternalError","details":{"causes":[{"message":"error executing command in container: no shell"}]},"code":500}"#,
        );
    }
}
