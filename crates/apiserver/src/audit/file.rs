//! The file of the audit log, and its backups.
//! In: lines. Out: a file of at most the configured size, and older ones beside it.
//! Guarantees: a line is in one file, unless it alone is larger than a file may be; only files that
//! are named as backups of this log are removed.
//! Mirrors `lumberjack`, which kube-apiserver writes its audit log with.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use tokio::{
    fs::{self, File, OpenOptions},
    io::{AsyncWriteExt as _, BufWriter},
};

use super::AuditRotation;
use crate::clock::Clock;

/// The time in the name of a backup: `audit-2026-01-02T03-04-05.678.log`.
const BACKUP_TIME: &str = "%Y-%m-%dT%H-%M-%S.%3f";
const MEGABYTE: u64 = 1024 * 1024;

/// An open log file.
pub(super) struct LogFile {
    path: PathBuf,
    rotation: AuditRotation,
    clock: Clock,
    file: BufWriter<File>,
    /// Of the file, with what is not flushed yet.
    size_bytes: u64,
}

impl LogFile {
    /// Opens the file for appending, and removes backups that are too many or too old. Directories
    /// that do not exist are created.
    pub(super) async fn open(
        path: &Path,
        rotation: AuditRotation,
        clock: Clock,
    ) -> io::Result<Self> {
        if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
            let mut builder = fs::DirBuilder::new();
            #[cfg(unix)]
            builder.mode(0o700);
            builder.recursive(true).create(directory).await?;
        }
        let file = append_to(path).await?;
        let size_bytes = file.metadata().await?.len();
        let file = Self {
            path: path.to_owned(),
            rotation,
            clock,
            file: BufWriter::new(file),
            size_bytes,
        };
        file.remove_backups().await?;
        Ok(file)
    }

    /// Appends a line; a file that it does not fit into becomes a backup first.
    pub(super) async fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let max = self.rotation.size_max_megabytes.saturating_mul(MEGABYTE);
        if max > 0 && self.size_bytes > 0 && self.size_bytes.saturating_add(length) > max {
            self.rotate().await?;
        }
        self.file.write_all(line).await?;
        self.size_bytes += length;
        Ok(())
    }

    /// Hands over everything to the operating system.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.file.flush().await
    }

    async fn rotate(&mut self) -> io::Result<()> {
        self.flush().await?;
        let mut time = self.clock.timestamp();
        let mut backup = backup_path(&self.path, time);
        // Two rotations in a millisecond must not overwrite each other.
        while fs::try_exists(&backup).await? {
            time += SignedDuration::from_millis(1);
            backup = backup_path(&self.path, time);
        }
        fs::rename(&self.path, &backup).await?;
        self.file = BufWriter::new(append_to(&self.path).await?);
        self.size_bytes = 0;
        self.remove_backups().await
    }

    async fn remove_backups(&self) -> io::Result<()> {
        let AuditRotation {
            backups_max,
            age_max_days,
            ..
        } = self.rotation;
        let mut backups = self.backups().await?;
        // Newest first.
        backups.sort_unstable_by(|a, b| b.cmp(a));
        let age_max = SignedDuration::from_hours(24 * i64::from(age_max_days));
        let now = self.clock.timestamp();
        for (at, (time, path)) in backups.into_iter().enumerate() {
            let is_extra = backups_max > 0 && at >= backups_max;
            let is_old = age_max_days > 0 && now.duration_since(time) > age_max;
            if is_extra || is_old {
                fs::remove_file(path).await?;
            }
        }
        Ok(())
    }

    /// The backups of this log, with the times in their names.
    async fn backups(&self) -> io::Result<Vec<(Timestamp, PathBuf)>> {
        let directory = match self.path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            _ => Path::new("."),
        };
        let mut entries = fs::read_dir(directory).await?;
        let mut backups = Vec::new();
        while let Some(entry) = entries.next_entry().await? {
            if let Some(time) = backup_time(&self.path, &entry.file_name()) {
                backups.push((time, entry.path()));
            }
        }
        Ok(backups)
    }
}

/// Only its owner may read what requests contain.
async fn append_to(path: &Path) -> io::Result<File> {
    let mut open = OpenOptions::new();
    open.create(true).append(true);
    #[cfg(unix)]
    open.mode(0o600);
    open.open(path).await
}

/// The name of a log without its extension, and the extension with its dot.
fn stem_and_extension(path: &Path) -> (String, String) {
    let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = match path.extension() {
        Some(extension) => format!(".{}", extension.to_string_lossy()),
        None => String::new(),
    };
    (text(path.file_stem()), extension)
}

fn backup_path(path: &Path, time: Timestamp) -> PathBuf {
    let (stem, extension) = stem_and_extension(path);
    let time = time.to_zoned(TimeZone::UTC).strftime(BACKUP_TIME);
    path.with_file_name(format!("{stem}-{time}{extension}"))
}

/// The time in the name of a backup; `None` if it is the name of something else.
fn backup_time(path: &Path, name: &OsStr) -> Option<Timestamp> {
    let (stem, extension) = stem_and_extension(path);
    let time = name
        .to_str()?
        .strip_prefix(&format!("{stem}-"))?
        .strip_suffix(&extension)?;
    let time = DateTime::strptime(BACKUP_TIME, time).ok()?;
    time.to_zoned(TimeZone::UTC)
        .ok()
        .map(|time| time.timestamp())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: &str = "2026-01-02T03:04:05.678Z";

    fn clock() -> Clock {
        Clock::starting_at(START.parse().expect("a time"))
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("a directory");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into()
            })
            .collect();
        names.sort_unstable();
        names
    }

    fn rotation(backups_max: usize, age_max_days: u32) -> AuditRotation {
        AuditRotation {
            size_max_megabytes: 1,
            backups_max,
            age_max_days,
        }
    }

    async fn write(file: &mut LogFile, bytes: u64) {
        let line = vec![b'x'; usize::try_from(bytes).expect("it fits")];
        file.write(&line).await.expect("a written line");
        file.flush().await.expect("a flushed file");
    }

    #[tokio::test(start_paused = true)]
    async fn full_file_becomes_a_backup_named_by_its_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log/audit.log");
        let mut file = LogFile::open(&path, rotation(0, 0), clock())
            .await
            .expect("a log");
        write(&mut file, MEGABYTE).await;
        assert_eq!(names(&directory.path().join("log")), ["audit.log"]);
        write(&mut file, 1).await;
        write(&mut file, MEGABYTE).await;
        assert_eq!(
            names(&directory.path().join("log")),
            [
                "audit-2026-01-02T03-04-05.678.log",
                "audit-2026-01-02T03-04-05.679.log",
                "audit.log"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn size_of_an_existing_file_counts() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.log");
        std::fs::write(&path, vec![b'x'; 1000]).expect("a file");
        let mut file = LogFile::open(&path, rotation(0, 0), clock())
            .await
            .expect("a log");
        write(&mut file, MEGABYTE - 1000).await;
        assert_eq!(names(directory.path()).len(), 1);
        write(&mut file, 1).await;
        assert_eq!(names(directory.path()).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn file_of_any_size_is_kept_without_a_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.log");
        let unlimited = AuditRotation {
            size_max_megabytes: 0,
            ..rotation(1, 0)
        };
        let mut file = LogFile::open(&path, unlimited, clock())
            .await
            .expect("a log");
        for _ in 0..3 {
            write(&mut file, MEGABYTE).await;
        }
        assert_eq!(names(directory.path()), ["audit.log"]);
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_backups_are_removed_beyond_the_number() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.log");
        std::fs::write(directory.path().join("audit-notes.log"), "kept").expect("a file");
        let mut file = LogFile::open(&path, rotation(2, 0), clock())
            .await
            .expect("a log");
        for _ in 0..5 {
            tokio::time::advance(Duration::from_secs(1)).await;
            write(&mut file, MEGABYTE).await;
        }
        assert_eq!(
            names(directory.path()),
            [
                "audit-2026-01-02T03-04-09.678.log",
                "audit-2026-01-02T03-04-10.678.log",
                "audit-notes.log",
                "audit.log"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn backups_are_removed_when_they_are_too_old() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.log");
        for name in [
            "audit-2025-12-31T03-04-05.000.log",
            "audit-2026-01-01T03-04-05.000.log",
        ] {
            std::fs::write(directory.path().join(name), "").expect("a file");
        }
        let file = LogFile::open(&path, rotation(0, 2), clock()).await;
        drop(file.expect("a log"));
        assert_eq!(
            names(directory.path()),
            ["audit-2026-01-01T03-04-05.000.log", "audit.log"]
        );
    }
}
