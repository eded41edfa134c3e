//! Tier detection: which isolation this system offers without privileges.

use std::path::Path;

#[cfg(target_os = "linux")]
use crate::linux::{SUBCOMMAND, Stage};
#[cfg(target_os = "linux")]
use crate::tier::Tier;
use crate::tier::TierReport;

/// Detects the tier by creating namespaces in a child process.
#[cfg(target_os = "linux")]
pub async fn detect(shim: &Path) -> TierReport {
    let output = tokio::process::Command::new(shim)
        .args([SUBCOMMAND, Stage::Probe.as_str()])
        .env_clear()
        .stdin(std::process::Stdio::null())
        .output()
        .await;
    let error = match output {
        Ok(output) if output.status.success() => {
            return TierReport {
                tier: Tier::A,
                reason: None,
                veth_error: first_line(&output.stderr),
            };
        }
        Ok(output) => {
            first_line(&output.stderr).unwrap_or_else(|| "the probe was killed".to_owned())
        }
        Err(error) => format!("{}: {error}", shim.display()),
    };
    let read = |name: &str| std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok();
    TierReport::without_namespaces(reason(&error, read))
}

#[cfg(target_os = "linux")]
fn first_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    text.lines().next().map(ToOwned::to_owned)
}

/// Only Linux has namespaces.
#[cfg(not(target_os = "linux"))]
pub async fn detect(_shim: &Path) -> TierReport {
    TierReport::without_namespaces("namespaces need Linux".to_owned())
}

/// The reason for tier B: a sysctl that forbids namespaces, or the error itself.
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "sysctls of Linux")
)]
fn reason(error: &str, read: impl Fn(&str) -> Option<String>) -> String {
    let value = |name: &str| read(name).and_then(|text| text.trim().parse::<u64>().ok());
    let remedy = if value("kernel/unprivileged_userns_clone") == Some(0) {
        Some("kernel.unprivileged_userns_clone=1")
    } else if value("user/max_user_namespaces") == Some(0) {
        Some("user.max_user_namespaces=15000")
    } else if value("kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        Some("kernel.apparmor_restrict_unprivileged_userns=0")
    } else {
        None
    };
    match remedy {
        Some(setting) => format!(
            "unprivileged user namespaces are disabled ({error}); \
             enable them with `sudo sysctl -w {setting}`"
        ),
        None => format!(
            "namespaces cannot be created ({error}); a container or a security policy around \
             this process may forbid them"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_the_sysctl_that_forbids_namespaces() {
        let cases = [
            (
                "kernel/unprivileged_userns_clone",
                "0\n",
                "kernel.unprivileged_userns_clone=1",
            ),
            (
                "user/max_user_namespaces",
                "0\n",
                "user.max_user_namespaces=15000",
            ),
            (
                "kernel/apparmor_restrict_unprivileged_userns",
                "1\n",
                "kernel.apparmor_restrict_unprivileged_userns=0",
            ),
            ("user/max_user_namespaces", "96000\n", "security policy"),
        ];
        for (name, content, expected) in cases {
            let read = |path: &str| (path == name).then(|| content.to_owned());
            let reason = reason("unshare: EPERM", read);
            assert!(reason.contains(expected), "{name}: {reason}");
            assert!(reason.contains("unshare: EPERM"), "{name}: {reason}");
        }
    }
}
