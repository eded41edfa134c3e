//! `bellerophon store backup` and `store snapshot verify`.
//!
//! Guarantees: the file has its final name only if its content was verified and is on disk. The
//! result file is written in every case, with the error if there is one.

use std::{
    fs::{self, File},
    io::{BufReader, Write},
    path::{Path, PathBuf},
};

use bellerophon_store::{SnapshotHeader, verify_snapshot};
use bellerophon_store_client::Client;
use clap::Args;
use serde::Serialize;

use super::{
    connection::{Connection, cannot_read},
    print_json, print_line,
};
use crate::{error::CliError, flags::OutputFormat, progress};

#[derive(Debug, Args)]
pub(super) struct BackupArguments {
    /// The file to write; an existing one is replaced
    #[arg(long, value_name = "FILE")]
    output: PathBuf,

    /// Also write the result as JSON to this file, such as /dev/termination-log
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,

    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArguments {
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The checksum that the snapshot must have
    #[arg(long, value_name = "SHA-256")]
    checksum: Option<String>,

    /// The format of stdout
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArguments {
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// A verified snapshot file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Snapshot {
    file: String,
    bytes: u64,
    checksum: String,
    revision: u64,
    index: u64,
    keys: u64,
    cluster_id: String,
    format_level: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
}

#[derive(Serialize)]
struct Failure<'a> {
    error: &'a str,
}

pub(super) async fn backup(
    arguments: &BackupArguments,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let backup = download(&client, &arguments.output).await;
    if let Some(path) = &arguments.result {
        write_result(path, &backup)?;
    }
    print_json(out, &backup?)
}

/// The result for a program that reads the file after this one ended.
fn write_result(path: &Path, backup: &Result<Snapshot, CliError>) -> Result<(), CliError> {
    let text = match backup {
        Ok(snapshot) => serde_json::to_string(snapshot),
        Err(CliError::Failed(error) | CliError::Usage(error)) => {
            serde_json::to_string(&Failure { error })
        }
    };
    let text = text.map_err(CliError::new)?;
    let step = format!("cannot write {}", path.display());
    fs::write(path, text).map_err(CliError::context(&step))
}

async fn download(client: &Client, path: &Path) -> Result<Snapshot, CliError> {
    let partial = partial_path(path);
    let result = download_to(client, &partial, path).await;
    if result.is_err() {
        // The error of the download is what the user needs; a partial file has no other use.
        let _ = fs::remove_file(&partial);
    }
    result
}

async fn download_to(client: &Client, partial: &Path, path: &Path) -> Result<Snapshot, CliError> {
    let step = format!("cannot write {}", partial.display());
    let write_error = || CliError::context::<std::io::Error>(&step);
    // The leader has every acknowledged write; without a leader, the error names what to do.
    let leader = client.leader().await.map_err(CliError::new)?;
    let source = leader.as_ref().unwrap_or(client);
    let file = private_file(partial).map_err(write_error())?;
    let mut writer = tokio::fs::File::from_std(file);
    progress::report("receiving a snapshot");
    let download = source
        .snapshot(&mut writer)
        .await
        .map_err(CliError::context("cannot download a snapshot"))?;
    writer.sync_all().await.map_err(write_error())?;
    drop(writer);
    progress::report("verifying its checksum");
    let header = verified(partial)?;
    fs::rename(partial, path).map_err(write_error())?;
    sync_directory(path).map_err(write_error())?;
    Ok(Snapshot {
        endpoint: Some(download.endpoint.to_string()),
        ..Snapshot::new(path, download.bytes, header)
    })
}

impl Snapshot {
    fn new(path: &Path, bytes: u64, header: SnapshotHeader) -> Self {
        Self {
            file: path.display().to_string(),
            bytes,
            checksum: header.checksum,
            revision: header.revision,
            index: header.index,
            keys: header.keys,
            cluster_id: header.cluster_id.to_string(),
            format_level: header.format_level,
            endpoint: None,
        }
    }
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

/// Values may be secret: only the owner reads the file.
fn private_file(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads a whole snapshot file.
pub(super) fn verified(path: &Path) -> Result<SnapshotHeader, CliError> {
    let file = File::open(path).map_err(cannot_read(path))?;
    let step = format!("snapshot {}", path.display());
    verify_snapshot(BufReader::new(file)).map_err(CliError::context(&step))
}

pub(super) fn verify(arguments: &VerifyArguments, out: &mut impl Write) -> Result<(), CliError> {
    let path = &arguments.file;
    let header = verified(path)?;
    if let Some(expected) = &arguments.checksum
        && *expected != header.checksum
    {
        return Err(CliError::Failed(format!(
            "snapshot {} has checksum {}, not {expected}",
            path.display(),
            header.checksum
        ))
        .with_hint("it is complete, but another one"));
    }
    let bytes = fs::metadata(path).map_err(cannot_read(path))?.len();
    let snapshot = Snapshot::new(path, bytes, header);
    match arguments.output {
        OutputFormat::Json => print_json(out, &snapshot),
        OutputFormat::Text => print_line(
            out,
            &format!(
                "{}: {} keys at revision {} of cluster {}, {bytes} bytes, SHA-256 {}",
                snapshot.file,
                snapshot.keys,
                snapshot.revision,
                snapshot.cluster_id,
                snapshot.checksum
            ),
        ),
    }
}

/// Deletes a snapshot file, and what an interrupted backup left of it. A missing file is no error.
pub(super) fn delete(arguments: &DeleteArguments) -> Result<(), CliError> {
    for path in [partial_path(&arguments.file), arguments.file.clone()] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let step = format!("cannot delete {}", path.display());
                return Err(CliError::context(&step)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
