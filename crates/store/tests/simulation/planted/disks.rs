//! Disks that break their promise.

use std::{
    io,
    sync::{Arc, Mutex},
};

use bellerophon_store::{
    Disk,
    disk::{Job, Lane},
};
use futures_util::future::BoxFuture;
use redb::StorageBackend;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A sync returns before anything is durable.
    WithoutSync,
    /// Votes are written as a vote of term 0.
    WithoutVotes,
    /// A vote is written after the entries that follow it.
    VoteAfterLog,
    /// A sync of the state does nothing.
    WithoutStateSync,
}

pub(super) fn without_sync(inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
    Buggy::wrap(inner, Bug::WithoutSync)
}

pub(super) fn without_votes(inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
    Buggy::wrap(inner, Bug::WithoutVotes)
}

pub(super) fn vote_after_log(inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
    Buggy::wrap(inner, Bug::VoteAfterLog)
}

pub(super) fn without_state_sync(inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
    Buggy::wrap(inner, Bug::WithoutStateSync)
}

struct Buggy {
    inner: Arc<dyn Disk>,
    bug: Bug,
    /// A frame with a vote that is written later.
    held_back: Mutex<Option<(String, u64, Vec<u8>)>>,
}

impl Buggy {
    fn wrap(inner: Arc<dyn Disk>, bug: Bug) -> Arc<dyn Disk> {
        Arc::new(Self {
            inner,
            bug,
            held_back: Mutex::default(),
        })
    }
}

/// Where a frame of the log has a vote, and whether it has entries.
struct Frame {
    vote_at: Option<usize>,
    has_entries: bool,
}

const HEADER_BYTES: usize = 16;
const VOTE_BYTES: usize = 17;
const LOG_ID_BYTES: usize = 24;

fn frame(bytes: &[u8]) -> Frame {
    let mut frame = Frame {
        vote_at: None,
        has_entries: false,
    };
    // After the header and the version.
    let mut at = HEADER_BYTES + 1;
    while at + 1 < bytes.len() {
        let kind = bytes[at];
        at += 1;
        match kind {
            3 => {
                frame.vote_at = Some(at);
                at += VOTE_BYTES;
            }
            4 | 6 => at += LOG_ID_BYTES,
            5 => at += 1 + usize::from(bytes[at]) * LOG_ID_BYTES,
            _ => {
                frame.has_entries = true;
                return frame;
            }
        }
    }
    frame
}

/// The frame with a vote of term 0.
fn forget_vote(bytes: &[u8], vote_at: usize) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    changed[vote_at..vote_at + VOTE_BYTES].fill(0);
    let crc = crc32fast::hash(&changed[HEADER_BYTES..bytes.len() - 1]);
    changed[12..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    changed
}

impl Disk for Buggy {
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.inner.read(name)
    }

    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.inner.read_at(name, offset, length)
    }

    fn create(&self, name: &str, reserve: u64) -> io::Result<()> {
        self.inner.create(name, reserve)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // The first frame of a segment repeats the vote; it is written as it is.
        if !name.starts_with("log-") || offset == 0 {
            return self.inner.write_at(name, offset, bytes);
        }
        match (self.bug, frame(bytes)) {
            (
                Bug::WithoutVotes,
                Frame {
                    vote_at: Some(at), ..
                },
            ) => self.inner.write_at(name, offset, &forget_vote(bytes, at)),
            (
                Bug::VoteAfterLog,
                Frame {
                    vote_at: Some(_),
                    has_entries: false,
                },
            ) => {
                let mut held_back = self.held_back.lock().unwrap();
                if let Some((name, offset, bytes)) = held_back.take() {
                    self.inner.write_at(&name, offset, &bytes)?;
                }
                *held_back = Some((name.to_owned(), offset, bytes.to_vec()));
                Ok(())
            }
            _ => self.inner.write_at(name, offset, bytes),
        }
    }

    fn set_len(&self, name: &str, length: u64) -> io::Result<()> {
        self.inner.set_len(name, length)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        if self.bug == Bug::WithoutSync && name.starts_with("log-") {
            return Ok(());
        }
        self.inner.sync(name)?;
        if let Some((name, offset, bytes)) = self.held_back.lock().unwrap().take() {
            // Written, and synced some time later.
            self.inner.write_at(&name, offset, &bytes)?;
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.inner.sync_directory()
    }

    fn open_state(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let inner = self.inner.open_state(name)?;
        if self.bug == Bug::WithoutStateSync {
            let mut content = vec![0; usize::try_from(inner.len()?).unwrap()];
            inner.read(0, &mut content)?;
            return Ok(Box::new(NeverWritten {
                inner,
                is_created: content.is_empty(),
                content: Mutex::new(content),
            }));
        }
        Ok(inner)
    }

    fn run(&self, lane: Lane, job: Job) -> BoxFuture<'static, io::Result<()>> {
        self.inner.run(lane, job)
    }
}

/// The file of redb: what is written after its creation stays in memory.
#[derive(Debug)]
struct NeverWritten {
    inner: Box<dyn StorageBackend>,
    /// Whether this is the creation, which reaches the disk.
    is_created: bool,
    content: Mutex<Vec<u8>>,
}

fn position(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

impl StorageBackend for NeverWritten {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.content.lock().unwrap();
        let range = content.get(position(offset)..position(offset) + out.len());
        out.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        if self.is_created {
            self.inner.set_len(length)?;
        }
        self.content.lock().unwrap().resize(position(length), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_created {
            self.inner.write(offset, data)?;
        }
        let mut content = self.content.lock().unwrap();
        content[position(offset)..position(offset) + data.len()].copy_from_slice(data);
        Ok(())
    }
}
