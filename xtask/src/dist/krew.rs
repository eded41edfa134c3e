//! The manifest of the kubectl plugin for krew: `Plugin` of v1alpha2.
//!
//! Input: the archives of a release with their checksums, and where they are published. Output: YAML.

use super::VERSION;

const HEAD: &str = "\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: bellerophon
spec:
";

const DESCRIPTION: &str = "  shortDescription: Show why controllers reconcile
  description: |
    Shows the operators of a cluster and the readiness of their objects (status), why an object was
    written or reconciled (why), the work queues of controllers (queue), the timeline of an object
    (trace), and reboots of nodes (reboot). why, queue and trace need a cluster of `bellerophon up`.
  platforms:
";

/// The manifest of all archives.
///
/// # Errors
/// An archive is for a platform that krew does not know.
pub(super) fn manifest(url: &str, archives: &[(String, String)]) -> Result<String, String> {
    let mut text = HEAD.to_owned();
    text.push_str(&format!("  version: v{VERSION}\n  homepage: {url}\n"));
    text.push_str(DESCRIPTION);
    for (file, sha256) in archives {
        let name = file.trim_end_matches(".tar.gz");
        let prefix = format!("bellerophon-{VERSION}-");
        // An archive of another version is not part of this release.
        let Some(target) = name.strip_prefix(&prefix) else {
            continue;
        };
        let (os, arch, suffix) = platform(target)?;
        text.push_str(&format!(
            "  - selector:\n      matchLabels:\n        os: {os}\n        arch: {arch}\n    uri: \
             {url}/v{VERSION}/{file}\n    sha256: {sha256}\n    bin: bellerophon{suffix}\n    \
             files:\n    - from: {name}/bellerophon{suffix}\n      to: .\n    - from: \
             {name}/LICENSE\n      to: .\n"
        ));
    }
    Ok(text)
}

/// Go's names of the operating system and the architecture of a target, and the suffix of programs.
fn platform(target: &str) -> Result<(&'static str, &'static str, &'static str), String> {
    let unknown = || format!("krew has no platform for the target {target}");
    let arch = match target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        _ => return Err(unknown()),
    };
    let (os, suffix) = match target {
        target if target.contains("-linux-") => ("linux", ""),
        target if target.ends_with("-darwin") => ("darwin", ""),
        target if target.contains("-windows-") => ("windows", ".exe"),
        _ => return Err(unknown()),
    };
    Ok((os, arch, suffix))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn manifest_has_a_platform_per_archive() {
        let archive = |target: &str| format!("bellerophon-{VERSION}-{target}.tar.gz");
        let archives = [
            (archive("x86_64-unknown-linux-gnu"), "ab".repeat(32)),
            (archive("aarch64-apple-darwin"), "cd".repeat(32)),
            (archive("x86_64-pc-windows-msvc"), "ef".repeat(32)),
            (
                "bellerophon-0.0.1-x86_64-unknown-linux-gnu.tar.gz".into(),
                "00".repeat(32),
            ),
        ];
        let text = manifest("https://host", &archives).expect("a manifest");
        let plugin: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(plugin["kind"], "Plugin");
        assert_eq!(plugin["spec"]["version"], format!("v{VERSION}"));
        // The limit of the index of krew.
        let short = plugin["spec"]["shortDescription"].as_str().expect("text");
        assert!(short.len() <= 50, "{short}");
        let platforms = plugin["spec"]["platforms"].as_array().expect("platforms");
        let selectors: Vec<&Value> = platforms
            .iter()
            .map(|platform| &platform["selector"]["matchLabels"])
            .collect();
        let expected = [
            json!({"os": "linux", "arch": "amd64"}),
            json!({"os": "darwin", "arch": "arm64"}),
            json!({"os": "windows", "arch": "amd64"}),
        ];
        assert_eq!(selectors, expected.iter().collect::<Vec<_>>());
        let first = &platforms[0];
        assert_eq!(first["sha256"], "ab".repeat(32));
        assert_eq!(
            first["uri"],
            format!("https://host/v{VERSION}/{}", archives[0].0)
        );
        assert_eq!(platforms[2]["bin"], "bellerophon.exe");
        let files = first["files"].as_array().expect("files");
        assert!(
            files.iter().any(|file| file["from"]
                .as_str()
                .is_some_and(|from| from.ends_with("/LICENSE"))),
            "krew requires the license"
        );
    }

    #[test]
    fn unknown_platforms_are_errors() {
        let file = format!("bellerophon-{VERSION}-riscv64gc-unknown-linux-gnu.tar.gz");
        let error = manifest("https://host", &[(file, String::new())]).expect_err("unknown");
        assert!(error.contains("riscv64gc"), "{error}");
    }
}
