//! Machine: what an agent asks of the machine it runs on.
//!
//! Holds: an error says whether a reboot may still come of the call. A slot is given back only if it certainly does not.

use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;
use tokio::{process::Command as Process, time::timeout};

/// Where the kernel tells the id of its boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How long a command may take before nobody knows what becomes of it.
const COMMAND_TIME: Duration = Duration::from_secs(60);

/// Why a machine does not reboot.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MachineError {
    /// It certainly does not.
    #[error("the machine does not reboot: {0}")]
    Refused(String),
    /// Nobody knows.
    #[error("it is not known whether the machine reboots: {0}")]
    Unclear(String),
}

/// A machine that can be rebooted.
pub trait Machine: Send + Sync + 'static {
    /// The id of its boot; `None` while it does not run.
    ///
    /// # Errors
    /// It cannot be read.
    fn boot_id(&self) -> Result<Option<String>, MachineError>;

    /// Reboots it. Asking twice within one boot is asking once.
    fn reboot(&self) -> BoxFuture<'_, Result<(), MachineError>>;
}

/// The boot id of the kernel this process runs on.
///
/// # Errors
/// It cannot be read.
pub(crate) fn kernel_boot_id() -> Result<Option<String>, MachineError> {
    let text = std::fs::read_to_string(BOOT_ID)
        .map_err(|error| MachineError::Refused(format!("cannot read {BOOT_ID}: {error}")))?;
    crate::notes::boot_id(&text)
        .map(Some)
        .ok_or_else(|| MachineError::Refused(format!("{BOOT_ID} does not hold a boot id")))
}

/// Reboots by a command, such as `systemctl reboot`. It fails only if no reboot will come of it.
#[derive(Clone, Debug)]
pub struct Command(Vec<String>);

impl Command {
    /// Reads a program and its arguments, parted by spaces; `None` if there is no program.
    pub fn read(line: &str) -> Option<Self> {
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
                return Err(MachineError::Refused("there is no command".into()));
            };
            let mut process = Process::new(program);
            let running = process.args(arguments).kill_on_drop(true).spawn();
            let mut running = running.map_err(|error| {
                MachineError::Refused(format!("cannot start {program}: {error}"))
            })?;
            match timeout(COMMAND_TIME, running.wait()).await {
                Ok(Ok(status)) if status.success() => Ok(()),
                Ok(Ok(status)) => Err(MachineError::Refused(format!("{program}: {status}"))),
                Ok(Err(error)) => Err(MachineError::Unclear(format!("{program}: {error}"))),
                Err(_) => Err(MachineError::Unclear(format!(
                    "{program} takes more than {COMMAND_TIME:?}"
                ))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn command_says_whether_a_reboot_comes() {
        let run = async |line: &str| Command::read(line).expect("a command").reboot().await;
        assert_eq!(run("true").await, Ok(()));
        assert!(matches!(run("false").await, Err(MachineError::Refused(_))));
        assert!(matches!(
            run("/nowhere/reboot now").await,
            Err(MachineError::Refused(_))
        ));
        assert!(Command::read("  ").is_none());
    }
}
