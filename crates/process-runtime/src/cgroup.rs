//! Limits by cgroup v2, where a cgroup is delegated to the user.
//!
//! A cgroup with processes cannot have limited children, so the node moves itself into a child
//! first. It does that only if no other process is in its cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Access;

use crate::config::Limits;

const CONTROLLERS: &[&str] = &["cpu", "memory", "pids"];
const REMEDY: &str = "start the node with `systemd-run --user --scope -p Delegate=yes`";
/// The period of `cpu.max` in microseconds; the default of the kernel and of the kubelet.
const CPU_PERIOD_US: u64 = 100_000;

/// Where cgroups of containers are created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CgroupParent {
    /// In the cgroup of the node, if it is delegated.
    #[default]
    Own,
    /// In that directory, which has no processes.
    Directory(PathBuf),
    /// Nowhere: limits are not enforced.
    Disabled,
}

/// The parent of the cgroups of containers.
#[derive(Debug)]
pub(crate) struct Cgroups {
    parent: PathBuf,
    created: AtomicU64,
}

impl Cgroups {
    /// Finds the parent; the error is the reason why limits are not enforced.
    pub(crate) fn find(parent: &CgroupParent) -> Result<Self, String> {
        let parent = match parent {
            CgroupParent::Disabled => return Err("limits are disabled".to_owned()),
            CgroupParent::Directory(dir) => dir.clone(),
            CgroupParent::Own => {
                let own = own_cgroup(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"))?;
                move_into_child(&own)?;
                own
            }
        };
        enable_controllers(&parent)?;
        Ok(Self {
            parent,
            created: AtomicU64::new(0),
        })
    }

    /// Creates the cgroup of a container.
    pub(crate) fn create(&self, limits: Limits) -> io::Result<Cgroup> {
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        let name = format!("container-{}-{number}", std::process::id());
        let cgroup = Cgroup {
            path: self.parent.join(name),
        };
        fs::create_dir(&cgroup.path)?;
        if let Some(bytes) = limits.memory_bytes {
            cgroup.write("memory.max", &bytes.to_string())?;
            // All processes of the container end, as with container runtimes.
            cgroup.write("memory.oom.group", "1")?;
        }
        if let Some(millis) = limits.cpu_millis {
            let quota = millis * CPU_PERIOD_US / 1000;
            cgroup.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
        }
        if let Some(pids) = limits.pids {
            cgroup.write("pids.max", &pids.to_string())?;
        }
        Ok(cgroup)
    }
}

/// Whether a runtime that this process starts can enforce limits; the error is the reason why not.
/// Changes nothing.
pub fn check_limits() -> Result<(), String> {
    let own = own_cgroup(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"))?;
    for path in [own.clone(), own.join("cgroup.subtree_control")] {
        rustix::fs::access(&path, Access::WRITE_OK)
            .map_err(|error| not_delegated(&own, &error.into()))?;
    }
    check_no_other_processes(&own)?;
    check_controllers(&own)
}

/// The cgroup of this process in the unified hierarchy.
fn own_cgroup(membership: &Path, root: &Path) -> Result<PathBuf, String> {
    if !root.join("cgroup.controllers").exists() {
        return Err(format!(
            "{} is not a cgroup v2 hierarchy; boot with systemd.unified_cgroup_hierarchy=1",
            root.display()
        ));
    }
    let text = fs::read_to_string(membership).map_err(|error| error.to_string())?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    path.map(|path| root.join(path))
        .ok_or_else(|| "the node is in no cgroup v2".to_owned())
}

fn not_delegated(cgroup: &Path, error: &io::Error) -> String {
    let cgroup = cgroup.display();
    format!("cgroup {cgroup} is not delegated to this user ({error}); {REMEDY}")
}

/// Checks that no other process is in the cgroup of the node.
fn check_no_other_processes(own: &Path) -> Result<(), String> {
    let this = std::process::id().to_string();
    let processes = fs::read_to_string(own.join("cgroup.procs"));
    let processes = processes.map_err(|error| not_delegated(own, &error))?;
    if processes.lines().any(|pid| pid != this) {
        let own = own.display();
        return Err(format!("cgroup {own} has other processes; {REMEDY}"));
    }
    Ok(())
}

fn move_into_child(own: &Path) -> Result<(), String> {
    check_no_other_processes(own)?;
    let describe = |error: io::Error| not_delegated(own, &error);
    let child = own.join("node");
    fs::create_dir_all(&child).map_err(describe)?;
    fs::write(child.join("cgroup.procs"), std::process::id().to_string()).map_err(describe)
}

fn check_controllers(parent: &Path) -> Result<(), String> {
    let available = fs::read_to_string(parent.join("cgroup.controllers"));
    let available = available.map_err(|error| not_delegated(parent, &error))?;
    let is_available = |name: &&str| available.split_whitespace().any(|other| other == *name);
    if let Some(missing) = CONTROLLERS.iter().find(|name| !is_available(name)) {
        let parent = parent.display();
        return Err(format!(
            "cgroup {parent} has no {missing} controller; {REMEDY}"
        ));
    }
    Ok(())
}

fn enable_controllers(parent: &Path) -> Result<(), String> {
    check_controllers(parent)?;
    let describe = |error: io::Error| not_delegated(parent, &error);
    let enable: Vec<_> = CONTROLLERS.iter().map(|name| format!("+{name}")).collect();
    fs::write(parent.join("cgroup.subtree_control"), enable.join(" ")).map_err(describe)
}

/// The cgroup of a container. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(file), value)
    }

    /// Whether a process was killed because of the memory limit.
    pub(crate) fn oom_killed(&self) -> bool {
        let events = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        events
            .lines()
            .filter_map(|line| line.strip_prefix("oom_kill "))
            .any(|count| count != "0")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Older kernels have no cgroup.kill; the processes were killed by their shim.
        let _ = self.write("cgroup.kill", "1");
        if let Err(error) = fs::remove_dir(&self.path) {
            let path = self.path.display();
            tracing::debug!(%path, %error, "cannot remove a cgroup");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with the files of a delegated cgroup.
    fn fake_cgroup(controllers: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), controllers).unwrap();
        dir
    }

    #[test]
    fn limits_are_written_to_the_files_of_the_cgroup() {
        let dir = fake_cgroup("cpuset cpu memory pids");
        let parent = CgroupParent::Directory(dir.path().to_owned());
        let cgroups = Cgroups::find(&parent).unwrap();
        let enabled = fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!(enabled, "+cpu +memory +pids");
        let cgroup = cgroups
            .create(Limits {
                memory_bytes: Some(1 << 20),
                cpu_millis: Some(250),
                pids: Some(10),
            })
            .unwrap();
        let read = |file: &str| fs::read_to_string(cgroup.path().join(file)).unwrap();
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("memory.oom.group"), "1");
        assert_eq!(read("cpu.max"), "25000 100000");
        assert_eq!(read("pids.max"), "10");
        assert!(!cgroup.oom_killed());
        fs::write(cgroup.path().join("memory.events"), "oom 2\noom_kill 1\n").unwrap();
        assert!(cgroup.oom_killed());
    }

    #[test]
    fn missing_delegation_names_the_remedy() {
        let dir = fake_cgroup("memory");
        let parent = CgroupParent::Directory(dir.path().to_owned());
        let reason = Cgroups::find(&parent).unwrap_err();
        assert!(reason.contains("no cpu controller"), "{reason}");
        assert!(reason.contains("Delegate=yes"), "{reason}");
        let parent = CgroupParent::Directory(dir.path().join("missing"));
        let reason = Cgroups::find(&parent).unwrap_err();
        assert!(reason.contains("not delegated"), "{reason}");
    }

    #[test]
    fn cgroup_is_read_from_the_membership() {
        let root = fake_cgroup("memory");
        let membership = root.path().join("membership");
        fs::write(&membership, "1:name=systemd:/a\n0::/user.slice/b\n").unwrap();
        let own = own_cgroup(&membership, root.path()).unwrap();
        assert_eq!(own, root.path().join("user.slice/b"));
        let reason = own_cgroup(&membership, &root.path().join("v1")).unwrap_err();
        assert!(reason.contains("not a cgroup v2 hierarchy"), "{reason}");
    }
}
