//! The identity of a data directory: cluster, member and format level.
//!
//! In: an identity, once. Out: the same identity at every start, or a refusal.
//!
//! Guarantees: a directory is formatted completely or not at all; a directory with files of unknown
//! origin is never formatted; a newer format level is refused.

use std::io::{self, ErrorKind};

use crate::{
    api::Identity,
    codec::{Reader, Writer},
    disk::{Disk, write_atomically},
    format_level::check_format_level,
    log,
    state::STATE_FILE,
};

const IDENTITY: &str = "identity";

/// Exists while a directory is formatted: its other files are removed at the next start.
const FORMATTING: &str = "formatting";

/// A snapshot that is being received.
pub(crate) const INCOMING: &str = "incoming.snapshot";

const MAGIC: &[u8; 8] = b"BLRSTORE";

/// What the directory belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Formatted {
    pub(crate) identity: Identity,
    pub(crate) format_level: u32,
}

/// Reads the identity; nothing if the directory is unformatted. Removes what an interrupted format
/// or transfer left.
pub(crate) fn open(disk: &dyn Disk) -> io::Result<Option<Formatted>> {
    let files = disk.list()?;
    let has = |name: &str| files.iter().any(|file| file == name);
    for file in files.iter().filter(|file| is_temporary(file)) {
        disk.remove(file)?;
    }
    if has(IDENTITY) {
        let formatted = decode(disk.read(IDENTITY)?)?;
        check_format_level(formatted.format_level)?;
        if has(FORMATTING) {
            disk.remove(FORMATTING)?;
            disk.sync_directory()?;
        }
        return Ok(Some(formatted));
    }
    if has(FORMATTING) {
        remove_unfinished(disk, &files)?;
        return Ok(None);
    }
    match files.iter().find(|file| !is_temporary(file)) {
        None => Ok(None),
        Some(file) => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!(
                "the data directory has no identity, but a file {file}; the disk lost data or the \
                 directory is not of a store: use an empty directory"
            ),
        )),
    }
}

fn is_temporary(name: &str) -> bool {
    name == INCOMING || name.ends_with(".tmp")
}

fn remove_unfinished(disk: &dyn Disk, files: &[String]) -> io::Result<()> {
    let of_store = |file: &&String| *file == STATE_FILE || log::is_segment(file);
    for file in files.iter().filter(of_store) {
        disk.remove(file)?;
    }
    disk.sync_directory()?;
    disk.remove(FORMATTING)?;
    disk.sync_directory()
}

/// Formats an empty directory: `create` writes log and state, the identity makes them valid.
pub(crate) fn format(
    disk: &dyn Disk,
    formatted: &Formatted,
    create: impl FnOnce(&dyn Disk) -> io::Result<()>,
) -> io::Result<()> {
    if disk.list()?.iter().any(|file| file == IDENTITY) {
        let message = "the data directory is formatted already; restart the member";
        return Err(io::Error::new(ErrorKind::AlreadyExists, message));
    }
    write_atomically(disk, FORMATTING, MAGIC)?;
    create(disk)?;
    disk.sync_directory()?;
    write_identity(disk, formatted)?;
    disk.remove(FORMATTING)?;
    disk.sync_directory()
}

/// Records a new format level, before data of that level is written.
pub(crate) fn write_identity(disk: &dyn Disk, formatted: &Formatted) -> io::Result<()> {
    write_atomically(disk, IDENTITY, &encode(formatted))
}

fn encode(formatted: &Formatted) -> Vec<u8> {
    let mut body = Writer::default();
    body.u32(formatted.format_level);
    body.text(formatted.identity.cluster_id.as_str());
    body.u64(formatted.identity.member_id);
    let mut file = Writer(MAGIC.to_vec());
    file.u32(crc32fast::hash(&body.0));
    file.0.extend_from_slice(&body.0);
    file.0
}

fn decode(file: Vec<u8>) -> io::Result<Formatted> {
    let damaged = || {
        let message = "the identity of the data directory is damaged; replace the member";
        io::Error::new(ErrorKind::InvalidData, message)
    };
    let body = file.strip_prefix(MAGIC).ok_or_else(damaged)?.to_vec();
    let mut reader = Reader::new(body.clone().into(), "identity");
    let crc = reader.u32()?;
    if crc != crc32fast::hash(&body[4..]) {
        return Err(damaged());
    }
    let format_level = reader.u32()?;
    // The rest may have another layout in a newer level.
    check_format_level(format_level)?;
    let cluster = reader.text()?;
    let identity = Identity {
        cluster_id: cluster.parse().map_err(|_| damaged())?,
        member_id: reader.u64()?,
    };
    reader.finish()?;
    Ok(Formatted {
        identity,
        format_level,
    })
}
