//! Changes of the files of a project.
//!
//! In: a directory. Out: for each burst of changes, whether sources or manifests changed.
//!
//! The tree is compared at intervals rather than watched: that takes no inotify watches, which
//! systems limit, and works where there are no events (network file systems, WSL). Renames, `git
//! checkout` and editors that replace files look the same as writes.
//!
//! Guarantees: a burst is reported once, after [`QUIET`] without a change and at most [`BURST_MAX`]
//! after its begin; a file whose contents did not change is not reported; a change is never lost,
//! since each comparison is with what was reported last.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tokio::{
    sync::mpsc::{self, Receiver},
    task::{AbortHandle, JoinSet, spawn_blocking},
    time::{Instant, sleep},
};

/// How often the tree is compared.
const INTERVAL: Duration = Duration::from_millis(100);
/// A burst ends when nothing changed for this long.
const QUIET: Duration = Duration::from_millis(100);
/// A burst is reported after this time at the latest.
const BURST_MAX: Duration = Duration::from_secs(2);
/// Deeper directories are not looked at.
const DEPTH_MAX: usize = 16;

/// Directories that are not part of the sources, besides those of `.gitignore` and hidden ones.
const IGNORED: &[&str] = &["target", "node_modules", "__pycache__", "venv"];
/// Files that builds write themselves.
const WRITTEN_BY_BUILDS: &[&str] = &["Cargo.lock", "go.sum"];

/// What changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Files that a build reads.
    pub(super) sources: bool,
    /// Kubernetes objects in YAML.
    pub(super) manifests: bool,
}

/// Reports changes of a project until it is dropped.
pub(super) struct Watcher {
    changes: Receiver<Changes>,
    _task: AbortOnDrop,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Watcher {
    /// Begins with the tree as it is. `tasks` owns the task.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn start(root: &Path, tasks: &mut JoinSet<()>) -> io::Result<Self> {
        let root = root.to_owned();
        let mut reported = Tree::read(&root, &Tree::default())?;
        // One is enough: while it is not received, further changes are seen by the comparison after.
        let (sender, changes) = mpsc::channel(1);
        let task = tasks.spawn(async move {
            loop {
                sleep(INTERVAL).await;
                let Some(settled) = next_tree(&root, &reported).await else {
                    continue;
                };
                let changes = settled.changes_since(&reported);
                reported = settled;
                if changes != Changes::default() && sender.send(changes).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            changes,
            _task: AbortOnDrop(task),
        })
    }

    /// The next burst of changes.
    pub(super) async fn next(&mut self) -> Changes {
        match self.changes.recv().await {
            Some(changes) => changes,
            // The task ends with this value only.
            None => std::future::pending().await,
        }
    }
}

/// The tree at the end of a burst; `None` if nothing changed.
async fn next_tree(root: &Path, reported: &Tree) -> Option<Tree> {
    let mut latest = read(root, reported).await?;
    if latest == *reported {
        return None;
    }
    let begun = Instant::now();
    while begun.elapsed() < BURST_MAX {
        sleep(QUIET).await;
        let next = read(root, &latest).await?;
        if next == latest {
            break;
        }
        latest = next;
    }
    Some(latest)
}

/// A directory that cannot be read at the moment is compared again later.
async fn read(root: &Path, previous: &Tree) -> Option<Tree> {
    let root = root.to_owned();
    let previous = previous.clone();
    let tree = spawn_blocking(move || Tree::read(&root, &previous)).await;
    tree.ok()?.ok()
}

/// The files of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tree(BTreeMap<PathBuf, Contents>);

/// What is known of a file.
#[derive(Clone, Copy, Debug)]
struct Contents {
    modified: Option<SystemTime>,
    length: u64,
    digest: u64,
}

impl PartialEq for Contents {
    // Equal contents are no change, whatever the times are.
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length && self.digest == other.digest
    }
}

impl Eq for Contents {}

impl Tree {
    /// Reads the tree. Files with the time and length of `previous` are not read again.
    fn read(root: &Path, previous: &Self) -> io::Result<Self> {
        let ignored = ignored_names(root);
        let mut tree = Self::default();
        tree.add(root, root, &ignored, previous, 0)?;
        Ok(tree)
    }

    fn add(
        &mut self,
        root: &Path,
        directory: &Path,
        ignored: &[String],
        previous: &Self,
        depth: usize,
    ) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with('.') || ignored.iter().any(|ignored| ignored == name) {
                continue;
            }
            let path = entry.path();
            // A file that is being replaced may be gone by now.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                if depth < DEPTH_MAX {
                    // Removed in the meantime.
                    let _read = self.add(root, &path, ignored, previous, depth + 1);
                }
            } else if is_source(&path) || is_manifest(root, &path) {
                let modified = metadata.modified().ok();
                let known = previous
                    .0
                    .get(&path)
                    .filter(|known| known.length == metadata.len() && known.modified == modified);
                let digest = match known {
                    Some(known) => known.digest,
                    None => fs::read(&path)
                        .map(|bytes| digest(&bytes))
                        .unwrap_or_default(),
                };
                let contents = Contents {
                    modified,
                    length: metadata.len(),
                    digest,
                };
                self.0.insert(path, contents);
            }
        }
        Ok(())
    }

    fn changes_since(&self, previous: &Self) -> Changes {
        let differs = |path: &&PathBuf| self.0.get(*path) != previous.0.get(*path);
        let changed = self.0.keys().chain(previous.0.keys()).filter(differs);
        let mut changes = Changes::default();
        for path in changed {
            match is_source(path) {
                true => changes.sources = true,
                false => changes.manifests = true,
            }
        }
        changes
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn is_source(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let extension = path.extension().and_then(OsStr::to_str);
    !WRITTEN_BY_BUILDS.contains(&name)
        && matches!(extension, Some("rs" | "toml" | "go" | "mod" | "py"))
}

/// A YAML file in the project's directory, or below `samples` or `config`.
pub(super) fn is_manifest(root: &Path, path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    let Ok(relative) = path.strip_prefix(root) else {
        return false;
    };
    let mut components = relative.components();
    let first = components
        .next()
        .and_then(|first| first.as_os_str().to_str());
    let is_at_root = components.next().is_none();
    matches!(extension, Some("yaml" | "yml"))
        && (is_at_root || matches!(first, Some("samples" | "config")))
}

/// The names in `.gitignore` that are no patterns, and those that are never sources.
fn ignored_names(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    let names = text.lines().map(|line| line.trim().trim_matches('/'));
    let is_name = |name: &&str| !name.is_empty() && !name.contains(['#', '*', '!', '?', '[', '/']);
    let names = names.filter(is_name).chain(IGNORED.iter().copied());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("created");
        fs::write(path, text).expect("written");
    }

    fn changes(root: &Path, act: impl FnOnce(&Path)) -> Changes {
        let before = Tree::read(root, &Tree::default()).expect("readable");
        act(root);
        let after = Tree::read(root, &before).expect("readable");
        after.changes_since(&before)
    }

    #[test]
    fn sources_and_manifests_are_distinguished_and_other_files_ignored() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        for path in ["src/main.rs", "sample.yaml", ".gitignore"] {
            write(root, path, "a\n/build/\n");
        }
        let sources = Changes {
            sources: true,
            manifests: false,
        };
        let manifests = Changes {
            sources: false,
            manifests: true,
        };
        let check = |path: &str, expected: Changes| {
            let seen = changes(root, |root| write(root, path, "changed"));
            assert_eq!(seen, expected, "{path}");
        };
        check("src/main.rs", sources);
        check("src/new/mod.rs", sources);
        check("Cargo.toml", sources);
        check("sample.yaml", manifests);
        check("samples/a.yaml", manifests);
        check("config/crd/bases/a.yaml", manifests);
        for path in [
            "target/x.rs",
            ".git/x.rs",
            "build/x.rs",
            "Cargo.lock",
            "notes.txt",
            "a/b.yaml",
        ] {
            check(path, Changes::default());
        }
        let renamed = changes(root, |root| {
            fs::rename(root.join("src/main.rs"), root.join("src/other.rs")).expect("renamed");
        });
        assert_eq!(renamed, sources);
    }

    #[test]
    fn file_that_is_written_again_with_its_contents_is_no_change() {
        let directory = tempfile::tempdir().expect("a directory");
        write(directory.path(), "src/main.rs", "same");
        // As editors do: another file takes its place.
        let seen = changes(directory.path(), |root| {
            write(root, "src/.main.rs.swp", "same");
            fs::rename(root.join("src/.main.rs.swp"), root.join("src/main.rs")).expect("renamed");
        });
        assert_eq!(seen, Changes::default());
    }

    #[tokio::test(start_paused = true)]
    async fn burst_of_changes_is_reported_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        write(root, "src/main.rs", "0");
        let mut tasks = JoinSet::new();
        let mut watcher = Watcher::start(root, &mut tasks).expect("readable");
        for text in ["1", "2", "3"] {
            write(root, "src/main.rs", text);
            sleep(Duration::from_millis(50)).await;
        }
        let first = watcher.next().await;
        assert!(first.sources && !first.manifests);
        let second = tokio::time::timeout(Duration::from_secs(10), watcher.next()).await;
        assert!(second.is_err(), "the burst is reported once: {second:?}");
    }
}
