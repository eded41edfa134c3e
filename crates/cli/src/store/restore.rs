//! `bellerophon store restore`: a new cluster from a snapshot, offline.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use bellerophon_store::{
    RestoreOptions,
    api::{ClusterId, Identity, MemberId, RestoreResult, Revision},
    restore_directory,
};
use clap::Args;

use super::{backup, connection::cannot_read, member::cluster_id, print_json, print_line};
use crate::{error::CliError, flags::OutputFormat, progress};

#[derive(Debug, Args)]
pub(super) struct RestoreArguments {
    /// The data directory to create; an existing one must be empty
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// The snapshot of `bellerophon store backup`
    #[arg(long, value_name = "FILE")]
    file: PathBuf,

    /// The id of the new cluster, such as a UUID; not that of the snapshot
    #[arg(long, value_name = "ID", value_parser = cluster_id)]
    cluster_id: ClusterId,

    /// The id of the member
    #[arg(long, value_name = "ID", default_value = "1")]
    member_id: MemberId,

    /// The address of its peer listener, as other members reach it
    #[arg(long, value_name = "HOST:PORT")]
    address: String,

    /// The checksum that the snapshot must have
    #[arg(long, value_name = "SHA-256")]
    checksum: Option<String>,

    /// The restored store begins after this revision: the newest one that a client may have seen
    #[arg(long, value_name = "REVISION", default_value = "0")]
    min_revision: Revision,

    /// The format of stdout
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

pub(super) async fn restore(
    arguments: RestoreArguments,
    out: &mut impl Write,
) -> Result<(), CliError> {
    // Before anything is written: a damaged file must not leave a directory behind.
    backup::verified(&arguments.file)?;
    let result = run(&arguments).await?;
    match arguments.output {
        OutputFormat::Json => print_json(out, &result),
        OutputFormat::Text => print_line(
            out,
            &format!(
                "{} has {} keys of revision {} and continues at revision {}",
                arguments.data.display(),
                result.keys,
                result.snapshot_revision,
                result.revision
            ),
        ),
    }
}

async fn run(arguments: &RestoreArguments) -> Result<RestoreResult, CliError> {
    let path: &Path = &arguments.file;
    let file = tokio::fs::File::open(path)
        .await
        .map_err(cannot_read(path))?;
    let identity = Identity {
        cluster_id: arguments.cluster_id.clone(),
        member_id: arguments.member_id,
    };
    let options = RestoreOptions {
        checksum: arguments.checksum.clone(),
        min_revision: arguments.min_revision,
    };
    let step = format!(
        "cannot restore {} to {}",
        path.display(),
        arguments.data.display()
    );
    progress::report(&format!("writing {}", arguments.data.display()));
    restore_directory(
        &arguments.data,
        identity,
        arguments.address.clone(),
        options,
        file,
    )
    .await
    .map_err(CliError::context(&step))
}
