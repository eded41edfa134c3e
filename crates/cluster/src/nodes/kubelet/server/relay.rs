//! Relay between the streams of a client and those of a process.
//!
//! Guarantees: the status follows all output; when the client is gone, the process is dropped,
//! which kills a command of exec.

use std::convert::Infallible;
use std::future::pending;
use std::io;

use bellerophon_streaming::ByteWriter;
use bellerophon_streaming::remote_command::{Outcome, RemoteCommand, UpgradedCommand};
use tokio::io::{AsyncWriteExt, copy};
use tracing::debug;

use super::streams::{BoxedReader, Process, StreamError};

/// How a process is reached. The two differ in what is reported of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Exec,
    Attach,
}

impl Verb {
    fn outcome(self, exit: Result<i32, String>) -> Outcome {
        match (self, exit) {
            (Self::Exec, Ok(code)) => Outcome::Exited(code),
            (Self::Exec, Err(error)) => {
                Outcome::Failed(format!("error executing command in container: {error}"))
            }
            // The exit status of the main process is that of the container.
            (Self::Attach, Ok(_)) => Outcome::Exited(0),
            (Self::Attach, Err(error)) => {
                Outcome::Failed(format!("error attaching to container: {error}"))
            }
        }
    }
}

/// Waits for the streams of the client and connects them with the process, until one of both ends.
/// A process that could not be started is reported as the status.
pub(super) async fn relay(
    verb: Verb,
    upgraded: UpgradedCommand,
    process: Result<Process, StreamError>,
) {
    let mut command = match upgraded.streams().await {
        Ok(command) => command,
        Err(error) => {
            debug!(%error, ?verb, "the client has no streams");
            return;
        }
    };
    let closed = command.closed();
    let exit = async {
        let process = process.map_err(|error| error.to_string())?;
        let exit = connect(&mut command, process).await;
        exit.map_err(|error| error.to_string())
    };
    let Some(exit) = closed.run_until_cancelled(exit).await else {
        return;
    };
    command.finish(verb.outcome(exit)).await;
}

/// Copies in both directions until the process has ended and its output is read.
async fn connect(command: &mut RemoteCommand, process: Process) -> io::Result<i32> {
    let Process {
        stdin,
        stdout,
        stderr,
        resize,
        exit,
    } = process;
    let from_client = command.stdin.take();
    let stdin = async {
        if let Some(mut from) = from_client
            && let Some(mut to) = stdin
        {
            // A process may end, or close its stdin, before all is read.
            let _ = copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        }
    };
    let sizes = async {
        let Some(resize) = resize else { return };
        while let Some(size) = command.sizes.next().await {
            if let Err(error) = resize(size) {
                debug!(%error, ?size, "cannot resize a terminal");
            }
        }
    };
    let input = async {
        tokio::join!(stdin, sizes);
        pending::<Infallible>().await
    };
    let stdout = copy_output(stdout, command.stdout.take());
    let stderr = copy_output(stderr, command.stderr.take());
    let ended = async {
        let (stdout, stderr, exit) = tokio::join!(stdout, stderr, exit);
        stdout?;
        stderr?;
        exit
    };
    tokio::select! {
        exit = ended => exit,
        never = input => match never {},
    }
}

async fn copy_output(from: Option<BoxedReader>, to: Option<ByteWriter>) -> io::Result<()> {
    if let Some(mut from) = from
        && let Some(mut to) = to
    {
        copy(&mut from, &mut to).await?;
    }
    Ok(())
}
