//! What the sandboxes of a runtime share: its settings, capabilities and launcher of shims.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::cgroup::Cgroups;
use crate::detect::detect;
use crate::error::Error;
use crate::marker::{NODE_MARKER, sweep};
use crate::open_files::raise_open_files_limit;
use crate::options::RuntimeOptions;
use crate::sys::Launcher;
use crate::tier::{Tier, TierReport};

/// What this runtime can do on this system; the node reports it as conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The tier, and why it is not tier A.
    pub tier: TierReport,
    /// Whether limits are enforced; otherwise the reason, with the remedy.
    pub limits: Result<(), String>,
}

/// What sandboxes share.
pub(crate) struct Shared {
    pub(crate) options: RuntimeOptions,
    pub(crate) capabilities: Capabilities,
    pub(crate) launcher: Launcher,
    pub(crate) cgroups: Option<Cgroups>,
    pub(crate) node_marker: String,
    /// Held as long as the runtime lives.
    _lock: File,
}

impl Shared {
    /// Detects the tier, and kills what is left of an earlier runtime with the same data directory.
    /// Raises the soft limit of open files to the hard limit.
    pub(crate) async fn start(options: RuntimeOptions) -> Result<Self, Error> {
        raise_open_files_limit()?;
        let _lock = lock_data_dir(&options.data_dir)?;
        let node_marker = fs::canonicalize(&options.data_dir)?
            .to_string_lossy()
            .into_owned();
        sweep(NODE_MARKER, &node_marker).await?;
        let tier = if options.force_tier_b {
            TierReport::without_namespaces("tier B was requested".to_owned())
        } else {
            detect(&options.shim).await
        };
        let env = vec![(NODE_MARKER.to_owned(), node_marker.clone())];
        let launcher = Launcher::new(options.shim.clone(), tier.tier, env)
            .map_err(|error| Error::Unsupported(error.to_string()))?;
        let cgroups = Cgroups::find(&options.cgroup_parent);
        let capabilities = Capabilities {
            tier,
            limits: cgroups.as_ref().map(drop).map_err(Clone::clone),
        };
        Ok(Self {
            options,
            capabilities,
            launcher,
            cgroups: cgroups.ok(),
            node_marker,
            _lock,
        })
    }

    pub(crate) fn tier(&self) -> Tier {
        self.capabilities.tier.tier
    }

    /// Whether Services listen in a network of their own (tier A).
    pub(crate) fn has_veth(&self) -> bool {
        self.capabilities.tier.veth_error.is_none()
    }
}

fn lock_data_dir(data_dir: &Path) -> Result<File, Error> {
    fs::create_dir_all(data_dir)?;
    let file = File::create(data_dir.join("lock"))?;
    file.try_lock().map_err(|_| {
        let dir = data_dir.display();
        let message = format!("another node uses {dir}; stop it or choose another directory");
        io::Error::new(io::ErrorKind::AddrInUse, message)
    })?;
    Ok(file)
}
