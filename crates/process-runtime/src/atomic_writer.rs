//! Atomic updates of configMap, secret, projected and downwardAPI volumes.
//!
//! Visible files are links through `..data` to a directory with a time stamp. An update writes a
//! new directory and renames a link, so a reader that keeps `..data` resolved never sees files of
//! two versions. Mirrors the kubelet's `AtomicWriter`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;

const DATA_DIR: &str = "..data";
const NEW_DATA_DIR: &str = "..data_tmp";
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4096;
const DIR_MODE: u32 = 0o755;

/// The content of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProjection {
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
}

/// The files of a volume by their relative paths.
pub type Payload = BTreeMap<PathBuf, FileProjection>;

/// Writes the files of a volume. One writer at a time may use a directory.
#[derive(Clone, Debug)]
pub struct AtomicWriter {
    target: PathBuf,
}

/// What [`AtomicWriter::write`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The volume already had the payload.
    Unchanged,
    /// The volume has a new version.
    Updated,
}

impl AtomicWriter {
    /// A writer to an existing directory.
    pub fn new(target: impl Into<PathBuf>) -> Self {
        Self {
            target: target.into(),
        }
    }

    /// Makes the files of the volume those of the payload. `now` names the version.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if a path is empty, absolute or too long, or begins with `..`; nothing is
    /// written then.
    pub fn write(&self, payload: &Payload, now: Timestamp) -> io::Result<Written> {
        for path in payload.keys() {
            validate(path)?;
        }
        let data_dir = self.target.join(DATA_DIR);
        let old_version = match fs::read_link(&data_dir) {
            Ok(link) => Some(self.target.join(link)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let old_files = match &old_version {
            Some(dir) => files(dir)?,
            None => BTreeSet::new(),
        };
        if let Some(old_version) = &old_version
            && is_equal(payload, old_version, &old_files)?
        {
            self.create_links(payload)?;
            return Ok(Written::Unchanged);
        }
        let new_version = self.create_version(old_version.as_deref(), now)?;
        let published =
            write_files(payload, &new_version).and_then(|()| self.publish(&new_version, &data_dir));
        if let Err(error) = published {
            // The first error is the one to report.
            let _ = fs::remove_dir_all(&new_version);
            return Err(error);
        }
        self.create_links(payload)?;
        self.remove_links(payload, &old_files)?;
        match old_version.map(fs::remove_dir_all) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(Written::Updated),
        }
    }

    fn create_version(&self, old: Option<&Path>, now: Timestamp) -> io::Result<PathBuf> {
        let time = now.strftime("..%Y_%m_%d_%H_%M_%S");
        // A name is not used again, because a slow reader may still have the old version.
        let old_number = old.and_then(|old| old.extension()?.to_str()?.parse::<u32>().ok());
        let first = old_number.map_or(0, |number| number.wrapping_add(1));
        for number in first.. {
            let dir = self.target.join(format!("{time}.{number:010}"));
            match fs::create_dir(&dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => {
                    result?;
                    fs::set_permissions(&dir, Permissions::from_mode(DIR_MODE))?;
                    return Ok(dir);
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes `..data` refer to the new version.
    fn publish(&self, version: &Path, data_dir: &Path) -> io::Result<()> {
        let new_data_dir = self.target.join(NEW_DATA_DIR);
        // An earlier writer may have been killed before its rename.
        match fs::remove_file(&new_data_dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(version.file_name().unwrap_or_default(), &new_data_dir)?;
        fs::rename(new_data_dir, data_dir)
    }

    fn create_links(&self, payload: &Payload) -> io::Result<()> {
        for name in top_level(payload.keys()) {
            let link = self.target.join(&name);
            if fs::symlink_metadata(&link).is_err() {
                symlink(Path::new(DATA_DIR).join(&name), link)?;
            }
        }
        Ok(())
    }

    fn remove_links(&self, payload: &Payload, old_files: &BTreeSet<PathBuf>) -> io::Result<()> {
        let current = top_level(payload.keys());
        for name in top_level(old_files).difference(&current) {
            match fs::remove_file(self.target.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Mirrors `validatePath`.
fn validate(path: &Path) -> io::Result<()> {
    let is_long = path.as_os_str().len() > PATH_MAX;
    let is_reserved = path
        .iter()
        .next()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
    let is_normal = |component: Component<'_>| {
        let Component::Normal(name) = component else {
            return component == Component::CurDir;
        };
        name.len() <= NAME_MAX
    };
    let has_name = path
        .components()
        .any(|component| matches!(component, Component::Normal(_)));
    if is_long || is_reserved || !has_name || !path.components().all(is_normal) {
        let path = path.display();
        let message = format!(
            "invalid path {path}: must be relative, must not contain or start with '..', \
             and have at most {NAME_MAX} bytes per name and {PATH_MAX} bytes"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// The first names of the paths.
fn top_level<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> BTreeSet<PathBuf> {
    paths
        .into_iter()
        .filter_map(|path| path.iter().find(|name| *name != "."))
        .map(PathBuf::from)
        .collect()
}

/// All files below a directory, relative to it. A version that vanished has none.
fn files(root: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let entries = match fs::read_dir(root.join(&dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    Ok(found)
}

fn is_equal(payload: &Payload, version: &Path, files: &BTreeSet<PathBuf>) -> io::Result<bool> {
    // Components are compared, so `./a` and `a` are the same path.
    let paths: BTreeSet<PathBuf> = payload
        .keys()
        .map(|path| path.components().collect())
        .collect();
    if paths != *files {
        return Ok(false);
    }
    for (path, file) in payload {
        let path = version.join(path);
        let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
        if mode != file.mode || fs::read(&path)? != file.data {
            return Ok(false);
        }
    }
    Ok(true)
}

fn write_files(payload: &Payload, version: &Path) -> io::Result<()> {
    for (path, file) in payload {
        let path = version.join(path);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(&path, &file.data)?;
        // Independent of the umask.
        fs::set_permissions(&path, Permissions::from_mode(file.mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |(path, data): &(&str, &str)| {
            let projection = FileProjection {
                data: data.as_bytes().to_vec(),
                mode: 0o640,
            };
            (PathBuf::from(path), projection)
        };
        files.iter().map(file).collect()
    }

    /// The names in the volume, without the version.
    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with("..1970"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_added_changed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let writer = AtomicWriter::new(dir.path());
        let now = Timestamp::UNIX_EPOCH;
        let write = |files: &[(&str, &str)]| writer.write(&payload(files), now).unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();

        assert_eq!(write(&[("a", "1"), ("x/y/b", "2")]), Written::Updated);
        assert_eq!(names(dir.path()), ["..data", "a", "x"]);
        assert_eq!(read("a"), "1");
        assert_eq!(read("x/y/b"), "2");
        let mode = fs::metadata(dir.path().join("a"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o640);

        assert_eq!(write(&[("a", "3"), ("x/z", "4")]), Written::Updated);
        assert_eq!(read("a"), "3");
        assert_eq!(read("x/z"), "4");
        assert!(!dir.path().join("x/y").exists());

        assert_eq!(write(&[("c", "5")]), Written::Updated);
        assert_eq!(names(dir.path()), ["..data", "c"]);
        let versions = fs::read_dir(dir.path()).unwrap().count() - 2;
        assert_eq!(versions, 1, "old versions are removed");
    }

    #[test]
    fn equal_payload_writes_nothing_and_repairs_links() {
        let dir = tempfile::tempdir().unwrap();
        let writer = AtomicWriter::new(dir.path());
        let files = payload(&[("a", "1"), ("b/c", "2")]);
        let now = Timestamp::UNIX_EPOCH;
        writer.write(&files, now).unwrap();
        let version = fs::read_link(dir.path().join(DATA_DIR)).unwrap();
        fs::remove_file(dir.path().join("a")).unwrap();
        assert_eq!(writer.write(&files, now).unwrap(), Written::Unchanged);
        assert_eq!(fs::read_link(dir.path().join(DATA_DIR)).unwrap(), version);
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "1");
    }

    #[test]
    fn leftovers_of_a_killed_writer_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        symlink("..nowhere", dir.path().join(NEW_DATA_DIR)).unwrap();
        symlink("..vanished", dir.path().join(DATA_DIR)).unwrap();
        let writer = AtomicWriter::new(dir.path());
        let result = writer.write(&payload(&[("a", "1")]), Timestamp::UNIX_EPOCH);
        assert_eq!(result.unwrap(), Written::Updated);
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "1");
    }

    #[test]
    fn invalid_paths_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let writer = AtomicWriter::new(dir.path());
        let long_name = "n".repeat(256);
        let long_path = "p/".repeat(2049);
        let invalid = ["", "/a", "..", "..a", "a/../b", ".", &long_name, &long_path];
        for path in invalid {
            let error = writer
                .write(&payload(&[(path, "1")]), Timestamp::UNIX_EPOCH)
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        for path in ["a..b", ".hidden", "a/..b", "a/b."] {
            let written = writer.write(&payload(&[(path, "1")]), Timestamp::UNIX_EPOCH);
            assert_eq!(written.unwrap(), Written::Updated, "{path}");
        }
    }
}
