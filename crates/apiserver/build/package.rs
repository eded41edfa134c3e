//! The k8s-openapi package: which one the build uses, and the directory of its source.
//!
//! Cargo passes only what the build script of k8s-openapi publishes through its `links` key: the
//! enabled Kubernetes version. The directory comes from `cargo metadata` for a manifest that
//! depends on nothing else. Metadata of this workspace would need all its packages, including
//! those of other platforms, and a first build downloads fewer.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The variable is named `DEP_<links>_VERSION`; the links key is `k8s-openapi-<version>`.
const PREFIX: &str = "DEP_K8S_OPENAPI_";
const SUFFIX: &str = "_VERSION";

/// The k8s-openapi of this build.
pub(crate) struct Package {
    /// Its own version, such as `0.29.0`.
    version: String,
    /// The minor version of Kubernetes whose types are enabled, such as 36.
    minor: u32,
}

impl Package {
    /// Reads what k8s-openapi publishes.
    pub(crate) fn find() -> Result<Self, String> {
        let (name, value) = env::vars()
            .find(|(name, _)| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
            .ok_or_else(|| format!("k8s-openapi does not publish {PREFIX}*{SUFFIX}"))?;
        let version = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_suffix(SUFFIX))
            .ok_or_else(|| format!("cannot read a version from {name}"))?;
        // Its form is 0x00_MAJOR_MINOR_00, a byte each.
        let enabled: u32 = value
            .parse()
            .map_err(|error| format!("cannot read {name}={value}: {error}"))?;
        Ok(Self {
            version: version.replace('_', "."),
            minor: (enabled >> 8) & 0xff,
        })
    }

    /// The directory with the types of the enabled Kubernetes version.
    pub(crate) fn types_dir(&self, out: &Path) -> Result<PathBuf, String> {
        let manifest = self.manifest(out).map_err(|error| {
            let version = &self.version;
            format!("cannot find the source of k8s-openapi {version}: {error}; run `cargo fetch`")
        })?;
        let types = manifest.with_file_name("src").join(self.module());
        if types.is_dir() {
            Ok(types)
        } else {
            Err(format!("{} is not a directory", types.display()))
        }
    }

    fn module(&self) -> String {
        format!("v1_{}", self.minor)
    }

    /// The path of its manifest, from cargo.
    fn manifest(&self, out: &Path) -> Result<PathBuf, String> {
        let own = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
        let probe = self
            .write_probe(out, &own)
            .map_err(|error| format!("cannot write to {}: {error}", out.display()))?;
        let output = Command::new(variable("CARGO")?)
            .args(["metadata", "--offline", "--format-version", "1"])
            .args(["--filter-platform", &variable("TARGET")?])
            .arg("--manifest-path")
            .arg(probe)
            // Cargo reads its configuration, such as vendored sources, from here upwards.
            .current_dir(own)
            .output()
            .map_err(|error| format!("cannot start cargo metadata: {error}"))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            // A directive of a build script ends with its line.
            return Err(stderr.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("cannot read cargo metadata: {error}"))?;
        let packages = metadata["packages"].as_array().into_iter().flatten();
        packages
            .filter(|package| package["name"] == "k8s-openapi")
            .find_map(|package| package["manifest_path"].as_str())
            .map(PathBuf::from)
            .ok_or_else(|| "cargo metadata does not name it".to_owned())
    }

    /// Writes a package that depends on this version of k8s-openapi alone, with the lock file of
    /// the workspace, so that cargo resolves to packages that are downloaded.
    fn write_probe(&self, out: &Path, own: &Path) -> std::io::Result<PathBuf> {
        let probe = out.join("probe");
        fs::create_dir_all(&probe)?;
        let manifest = probe.join("Cargo.toml");
        let version = &self.version;
        fs::write(
            &manifest,
            format!(
                "[workspace]\n\
                 [package]\nname = \"probe\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
                 [lib]\npath = \"lib.rs\"\n\
                 [dependencies]\n\
                 k8s-openapi = {{ version = \"={version}\", default-features = false }}\n"
            ),
        )?;
        fs::write(probe.join("lib.rs"), "")?;
        let locks = own.ancestors().map(|dir| dir.join("Cargo.lock"));
        if let Some(lock) = locks.into_iter().find(|lock| lock.is_file()) {
            fs::copy(lock, probe.join("Cargo.lock"))?;
        }
        Ok(manifest)
    }
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("cannot read the variable {name}: {error}"))
}
