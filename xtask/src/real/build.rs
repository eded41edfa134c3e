//! The programs of a control plane, built from Go modules.
//!
//! Input: the versions of `crates/conformance/upstream/go.mod`. Output: programs in target/real. A
//! program that was built from the same versions is not built again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The module with the versions, relative to the root.
const MODULE: &str = "crates/conformance/upstream";

/// The programs and their packages.
const PACKAGES: [(&str, &str); 5] = [
    ("signingkey", "./signingkey"),
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    (
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
];

/// Built programs.
pub(super) struct Programs {
    directory: PathBuf,
}

impl Programs {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The directory of logs.
    pub(super) fn logs(&self) -> PathBuf {
        self.directory.join("logs")
    }
}

/// Builds what is not up to date.
///
/// # Errors
/// Go is missing, or a program does not build.
pub(super) fn build(root: &Path) -> Result<Programs, String> {
    let directory = root.join("target/real");
    let logs = directory.join("logs");
    fs::create_dir_all(&logs).map_err(|e| format!("cannot create {}: {e}", logs.display()))?;
    let module = root.join(MODULE);
    let file = module.join("go.mod");
    let requirements =
        fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let version = version(&requirements, "k8s.io/kubernetes")?;
    for (name, package) in PACKAGES {
        let program = directory.join(name);
        let stamp = directory.join(format!("{name}.go.mod"));
        let is_current = fs::read_to_string(&stamp).is_ok_and(|built| built == requirements);
        if is_current && program.exists() {
            continue;
        }
        eprintln!("==> go build {package}; kube-apiserver takes some minutes");
        let status = Command::new("go")
            .args(["build", "-ldflags", &linker_flags(version), "-o"])
            .arg(&program)
            .arg(package)
            .current_dir(&module)
            .status()
            .map_err(|e| format!("cannot start go: {e}; install Go, see crates/conformance"))?;
        if !status.success() {
            return Err(format!("{package} does not build, see above"));
        }
        fs::write(&stamp, &requirements)
            .map_err(|e| format!("cannot write {}: {e}", stamp.display()))?;
    }
    Ok(Programs { directory })
}

/// The required version of a module, such as `v1.36.4`.
fn version<'a>(requirements: &'a str, module: &str) -> Result<&'a str, String> {
    let mut lines = requirements.lines();
    lines
        .find_map(|line| {
            let line = line.trim().trim_start_matches("require ");
            line.strip_prefix(module)?.strip_prefix(' ')
        })
        .and_then(|rest| rest.split(' ').next())
        .ok_or_else(|| format!("{MODULE}/go.mod does not require {module}"))
}

/// Without these, the programs report the version v0.0.0.
fn linker_flags(version: &str) -> String {
    let package = "k8s.io/component-base/version";
    let mut numbers = version.trim_start_matches('v').split('.');
    let major = numbers.next().unwrap_or_default();
    let minor = numbers.next().unwrap_or_default();
    format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} \
         -X {package}.gitMinor={minor}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_the_requirements() {
        let requirements = "module m\n\nrequire k8s.io/kubernetes v1.36.4\n\nrequire (\n\
                            \tk8s.io/api v0.36.4 // indirect\n)\n";
        assert_eq!(version(requirements, "k8s.io/kubernetes"), Ok("v1.36.4"));
        assert_eq!(version(requirements, "k8s.io/api"), Ok("v0.36.4"));
        assert!(version(requirements, "k8s.io/absent").is_err());
    }

    #[test]
    fn linker_flags_have_the_numbers_of_the_version() {
        let flags = linker_flags("v1.36.4");
        assert!(flags.contains("gitVersion=v1.36.4"), "{flags}");
        assert!(flags.contains("gitMinor=36"), "{flags}");
    }
}
