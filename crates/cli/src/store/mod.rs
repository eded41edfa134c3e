//! `bellerophon store`: the replicated key-value store, its client and its administration.
//!
//! Input: a subcommand. Output: results on stdout, as text or JSON.

mod backup; // `store backup` and `store snapshot verify`
mod connection; // endpoints and credentials
mod keys; // `store get`, `put`, `delete` and `list`
mod member; // `store member`
mod restore; // `store restore`
mod serve; // `store serve`
mod status; // `store status`
mod watch; // `store watch`

use std::io::Write;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct StoreArguments {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Run a member of a store until SIGTERM
    #[command(
        after_help = "A member with an empty data directory waits for `bellerophon store member \
                      initialize`, `member format` or `restore`. SIGTERM hands leadership over \
                      before the member stops."
    )]
    Serve(Box<serve::ServeArguments>),
    /// Print the value of a key
    Get(keys::GetArguments),
    /// Write a key
    Put(keys::PutArguments),
    /// Delete a key
    Delete(keys::DeleteArguments),
    /// Print keys with a prefix
    List(keys::ListArguments),
    /// Print changes until Ctrl-C
    Watch(watch::WatchArguments),
    /// Print the status of the members at all endpoints
    Status(status::StatusArguments),
    /// Download a snapshot of the leader and verify it
    #[command(
        after_help = "The file gets its name only after its checksum was verified and its content \
                      is on disk."
    )]
    Backup(backup::BackupArguments),
    /// Create the data directory of a new cluster from a snapshot
    #[command(
        after_help = "The member of the directory is the only voter of a new cluster. Members of \
                      the old cluster cannot join it."
    )]
    Restore(restore::RestoreArguments),
    /// Verify or delete a snapshot file
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Format, add, promote and remove members
    Member(member::MemberArguments),
}

#[derive(Debug, Subcommand)]
enum SnapshotCommand {
    /// Read a snapshot file completely and compare its checksum
    Verify(backup::VerifyArguments),
    /// Delete a snapshot file; a missing one is no error
    Delete(backup::DeleteArguments),
}

/// Runs the command.
///
/// # Errors
/// The store refuses the request or cannot be reached.
pub(crate) async fn store(arguments: StoreArguments, out: &mut impl Write) -> Result<(), CliError> {
    match arguments.command {
        StoreCommand::Serve(arguments) => serve::serve(*arguments, out).await,
        StoreCommand::Get(arguments) => keys::get(&arguments, out).await,
        StoreCommand::Put(arguments) => keys::put(arguments, out).await,
        StoreCommand::Delete(arguments) => keys::delete(&arguments, out).await,
        StoreCommand::List(arguments) => keys::list(&arguments, out).await,
        StoreCommand::Watch(arguments) => watch::watch(&arguments, out).await,
        StoreCommand::Status(arguments) => status::status(&arguments, out).await,
        StoreCommand::Backup(arguments) => backup::backup(&arguments, out).await,
        StoreCommand::Restore(arguments) => restore::restore(arguments, out).await,
        StoreCommand::Snapshot(SnapshotCommand::Verify(arguments)) => {
            backup::verify(&arguments, out)
        }
        StoreCommand::Snapshot(SnapshotCommand::Delete(arguments)) => backup::delete(&arguments),
        StoreCommand::Member(arguments) => member::member(arguments, out).await,
    }
}

/// Prints a line.
fn print_line(out: &mut impl Write, line: &str) -> Result<(), CliError> {
    writeln!(out, "{line}").map_err(CliError::context("cannot write to stdout"))
}

/// Prints a value as one line of JSON.
fn print_json(out: &mut impl Write, value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(CliError::new)?;
    print_line(out, &text)
}
