//! Mounts of a sandbox and of its containers.
//!
//! A container sees the file system of the node, with its volumes at their mount paths. Where a
//! mount path does not exist, its nearest existing parent is replaced by a tmpfs with the entries
//! of the original bound into it, so nothing is created on the node.
//!
//! Guarantees: a `subPath` never leaves its volume; mounts are not visible on the node.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};

use super::devices;
use crate::config::Mount;
use crate::protocol::ProcessSpec;

/// The limit of symbolic links in a path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Where the new root is mounted before it becomes the root, and where the old one is after it.
const NEW_ROOT: &str = "/dev/.root";
const OLD_ROOT: &str = "/.old-root";

/// Mounts what all containers of a sandbox share.
pub(super) fn set_up_sandbox() -> io::Result<()> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags)?;
    mount_proc()?;
    devices::mount_devices()
}

/// Mounts `/proc` of the PID namespace.
fn mount_proc() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

/// Mounts a tmpfs for a volume, which every user can write. Mirrors the emptyDir of the kubelet with
/// medium `Memory`.
pub(super) fn mount_volume_tmpfs(target: &Path, size_bytes: Option<u64>) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let size = size_bytes.map(|size| format!(",size={size}"));
    let options = format!("mode=0777{}", size.unwrap_or_default());
    let options = CString::new(options).expect("numbers have no zero byte");
    Ok(mount("tmpfs", target, "tmpfs", flags, options.as_c_str())?)
}

/// Mounts `/proc` and the volumes of a container in a new mount namespace.
pub(super) fn set_up_container(spec: &ProcessSpec) -> Result<(), String> {
    let mounts = &spec.mounts;
    mount_proc().map_err(|error| format!("mount /proc: {error}"))?;
    let mut root = Root::default();
    // Sources are opened before a mount can hide them.
    let mut sources = Vec::new();
    for mount in mounts {
        sources.push((mount, open_source(mount).map_err(|e| describe(mount, &e))?));
    }
    // A volume may be mounted inside of another one.
    sources.sort_by_key(|(mount, _)| mount.target.components().count());
    for (mount, source) in sources {
        root.mount(mount, &source)
            .map_err(|e| describe(mount, &e))?;
    }
    let volumes = root
        .finish()
        .map_err(|error| format!("unmount the old root: {error}"))?;
    if spec.read_only_root {
        make_root_read_only(&volumes)
            .map_err(|error| format!("make the root file system read-only: {error}"))?;
    }
    Ok(())
}

/// Makes everything read-only that is neither a volume nor of the kernel.
fn make_root_read_only(volumes: &[PathBuf]) -> io::Result<()> {
    let kernel = ["/proc", "/dev", "/sys"].map(PathBuf::from);
    let excluded: Vec<&PathBuf> = kernel.iter().chain(volumes).collect();
    for mount_point in mount_points(&fs::read_to_string("/proc/self/mountinfo")?) {
        if !excluded.iter().any(|path| mount_point.starts_with(path)) {
            match remount_read_only(&mount_point) {
                // A mount below one that was mounted later cannot be reached.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result.map_err(|error| {
                    let path = mount_point.display();
                    io::Error::new(error.kind(), format!("{path}: {error}"))
                })?,
            }
        }
    }
    Ok(())
}

/// The mount points of proc_pid_mountinfo(5), in which blanks and backslashes are escaped.
fn mount_points(mountinfo: &str) -> impl Iterator<Item = PathBuf> {
    let fields = mountinfo.lines();
    let fields = fields.filter_map(|line| line.split(' ').nth(4));
    fields.map(|field| {
        let unescaped = [
            ("\\040", " "),
            ("\\011", "\t"),
            ("\\012", "\n"),
            ("\\134", "\\"),
        ];
        let unescape = |path: String, (escaped, text): (&str, &str)| path.replace(escaped, text);
        let path = unescaped.into_iter().fold(field.to_owned(), unescape);
        path.into()
    })
}

fn describe(mount: &Mount, error: &io::Error) -> String {
    let Mount { source, target, .. } = mount;
    format!(
        "error mounting {:?} to {:?}: {error}",
        source.display(),
        target.display()
    )
}

/// Opens the source of a mount, below its volume.
fn open_source(mount: &Mount) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let volume = rustix::fs::open(&mount.source, flags, Mode::empty())?;
    match mount.sub_path.as_deref() {
        None => Ok(volume),
        Some(sub_path) if sub_path.as_os_str().is_empty() => Ok(volume),
        Some(sub_path) => match open_beneath(&volume, sub_path) {
            Err(rustix::io::Errno::NOENT) if mount.create_sub_path => {
                create_beneath(&volume, sub_path)?;
                Ok(open_beneath(&volume, sub_path)?)
            }
            opened => Ok(opened?),
        },
    }
}

fn open_beneath(volume: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(volume, path, flags, Mode::empty(), resolve)
}

/// Creates the directories of a path below a volume.
fn create_beneath(volume: &OwnedFd, path: &Path) -> io::Result<()> {
    let mut created = PathBuf::new();
    for name in names(path) {
        let parent = open_beneath(volume, &created.join("."))?;
        match rustix::fs::mkdirat(&parent, name.as_os_str(), Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        created.push(name);
    }
    Ok(())
}

fn descriptor_path(fd: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

/// Binds an open file or directory to a path.
pub(super) fn bind_descriptor(source: impl AsFd, target: &Path) -> io::Result<()> {
    Ok(mount_bind_recursive(descriptor_path(source), target)?)
}

/// The file system of a container while its volumes are mounted.
#[derive(Default)]
struct Root {
    /// Directories in which entries can be created without an effect on the node.
    writable: BTreeSet<PathBuf>,
    /// Mount paths of volumes.
    volumes: Vec<PathBuf>,
    replaced: bool,
}

impl Root {
    fn mount(&mut self, mount: &Mount, source: &OwnedFd) -> io::Result<()> {
        let is_dir =
            rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(source)?.st_mode).is_dir();
        let target = self.mount_point(&mount.target, is_dir)?;
        bind_descriptor(source, &target)?;
        if mount.read_only {
            remount_read_only(&target)?;
        }
        self.volumes.push(target);
        Ok(())
    }

    /// Resolves a mount path and creates what does not exist.
    fn mount_point(&mut self, target: &Path, is_dir: bool) -> io::Result<PathBuf> {
        let mut links = 0;
        let mut path = PathBuf::from("/");
        let mut rest: VecDeque<OsString> = names(target).collect();
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                path.pop();
                continue;
            }
            let next = path.join(&name);
            match fs::symlink_metadata(&next) {
                Ok(metadata) if metadata.is_symlink() => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(rustix::io::Errno::LOOP.into());
                    }
                    let link = fs::read_link(&next)?;
                    if link.is_absolute() {
                        path = PathBuf::from("/");
                    }
                    for name in names(&link).collect::<Vec<_>>().into_iter().rev() {
                        rest.push_front(name);
                    }
                }
                Ok(_) => path = next,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.create(&path, &next, is_dir || !rest.is_empty())?;
                    path = next;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(path)
    }

    fn create(&mut self, parent: &Path, path: &Path, is_dir: bool) -> io::Result<()> {
        let is_in_volume = self.volumes.iter().any(|volume| parent.starts_with(volume));
        if !is_in_volume && !self.writable.contains(parent) {
            self.replace(parent)?;
        }
        if !is_dir {
            return File::create(path).map(drop);
        }
        fs::create_dir(path)?;
        if !is_in_volume {
            self.writable.insert(path.to_owned());
        }
        Ok(())
    }

    /// Replaces a directory by a tmpfs with the same entries.
    fn replace(&mut self, dir: &Path) -> io::Result<()> {
        if dir == Path::new("/") {
            self.replace_root()?;
        } else {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let original = rustix::fs::open(dir, flags, Mode::empty())?;
            let entries = entries(dir)?;
            mount_tmpfs(dir)?;
            for name in entries {
                mirror(&descriptor_path(&original).join(&name), &dir.join(&name))?;
            }
        }
        self.writable.insert(dir.to_owned());
        Ok(())
    }

    fn replace_root(&mut self) -> io::Result<()> {
        let new_root = Path::new(NEW_ROOT);
        fs::create_dir_all(new_root)?;
        let entries = entries(Path::new("/"))?;
        mount_tmpfs(new_root)?;
        // Otherwise the copy of /dev would have a copy of it.
        mount_change(new_root, MountPropagationFlags::UNBINDABLE)?;
        for name in entries {
            mirror(&Path::new("/").join(&name), &new_root.join(&name))?;
        }
        let old_root = new_root.join(OLD_ROOT.trim_start_matches('/'));
        fs::create_dir(&old_root)?;
        rustix::process::pivot_root(new_root, &old_root)?;
        rustix::process::chdir("/")?;
        mount_change("/", MountPropagationFlags::PRIVATE)?;
        self.replaced = true;
        Ok(())
    }

    /// Unmounts the old root, which has the sources of the mounts until then; returns the mount
    /// paths of the volumes.
    fn finish(self) -> io::Result<Vec<PathBuf>> {
        if self.replaced {
            unmount(OLD_ROOT, UnmountFlags::DETACH)?;
            fs::remove_dir(OLD_ROOT)?;
        }
        Ok(self.volumes)
    }
}

fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

fn entries(dir: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

fn mount_tmpfs(target: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("tmpfs", target, "tmpfs", flags, c"mode=0755")?)
}

/// Makes `target` show the same file, directory or symbolic link as `original`.
fn mirror(original: &Path, target: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(original) {
        // It was removed after the directory was read.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if metadata.is_symlink() {
        return symlink(fs::read_link(original)?, target);
    }
    if metadata.is_dir() {
        fs::create_dir(target)?;
    } else {
        File::create(target)?;
    }
    Ok(mount_bind_recursive(original, target)?)
}

fn remount_read_only(target: &Path) -> io::Result<()> {
    // Flags of the original mount are locked in a user namespace and must be repeated.
    let current = rustix::fs::statvfs(target)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    let locked = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    for (current_flag, flag) in locked {
        if current.contains(current_flag) {
            flags |= flag;
        }
    }
    Ok(mount_remount(target, flags, "")?)
}
