//! The machine of an agent: its boot ID, and its reboot.
//!
//! Guarantee: an error distinguishes a reboot that does not happen from one that may still happen.
//! Only in the first case does the grant end.

use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;
use tokio::{process::Command as Process, time::timeout};

/// The file with the boot ID of the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The timeout of a reboot command. After it, the reboot may still happen.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a reboot failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MachineError {
    /// The machine does not reboot.
    #[error("the machine does not reboot: {0}")]
    Refused(String),
    /// The machine may or may not reboot.
    #[error("the machine may or may not reboot: {0}")]
    Unclear(String),
}

/// A machine that can be rebooted.
pub trait Machine: Send + Sync + 'static {
    /// The current boot ID; `None` while it does not run.
    ///
    /// # Errors
    /// It cannot be read.
    fn boot_id(&self) -> Result<Option<String>, MachineError>;

    /// Reboots it. Repeated calls within one boot have no further effect.
    fn reboot(&self) -> BoxFuture<'_, Result<(), MachineError>>;
}

/// The boot ID of the kernel that this process runs on.
///
/// # Errors
/// It cannot be read.
pub(crate) fn kernel_boot_id() -> Result<Option<String>, MachineError> {
    let text = std::fs::read_to_string(BOOT_ID)
        .map_err(|error| MachineError::Refused(format!("cannot read {BOOT_ID}: {error}")))?;
    crate::annotations::parse_boot_id(&text)
        .map(Some)
        .ok_or_else(|| MachineError::Refused(format!("{BOOT_ID} has no boot ID")))
}

/// Reboots by a command, such as `systemctl reboot`. Its exit code is not 0 only if the machine
/// does not reboot.
#[derive(Clone, Debug)]
pub struct Command(Vec<String>);

impl Command {
    /// Parses a program and its arguments, separated by white space; `None` if there is no program.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        (!words.is_empty()).then_some(Self(words))
    }
}

impl Machine for Command {
    fn boot_id(&self) -> Result<Option<String>, MachineError> {
        kernel_boot_id()
    }

    fn reboot(&self) -> BoxFuture<'_, Result<(), MachineError>> {
        Box::pin(async move {
            let [program, arguments @ ..] = &*self.0 else {
                return Err(MachineError::Refused("the command is empty".into()));
            };
            let mut process = Process::new(program);
            // Killed with the future, so that no command outlives its timeout and reboots the
            // machine under a later grant.
            let child = process.args(arguments).kill_on_drop(true).spawn();
            let mut child = child.map_err(|error| {
                MachineError::Refused(format!("cannot start {program}: {error}"))
            })?;
            match timeout(COMMAND_TIMEOUT, child.wait()).await {
                Ok(Ok(status)) if status.success() => Ok(()),
                Ok(Ok(status)) => Err(MachineError::Refused(format!("{program}: {status}"))),
                Ok(Err(error)) => Err(MachineError::Unclear(format!("{program}: {error}"))),
                Err(_) => Err(MachineError::Unclear(format!(
                    "{program} takes more than {COMMAND_TIMEOUT:?}"
                ))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn exit_code_of_the_command_is_the_result() {
        let run = async |line: &str| Command::parse(line).expect("a command").reboot().await;
        assert_eq!(run("true").await, Ok(()));
        assert!(matches!(run("false").await, Err(MachineError::Refused(_))));
        assert!(matches!(
            run("/nowhere/reboot now").await,
            Err(MachineError::Refused(_))
        ));
        assert!(Command::parse("  ").is_none());
    }
}
