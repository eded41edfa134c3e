//! The `pod-security.kubernetes.io` labels of a namespace.

use std::{collections::BTreeMap, fmt};

use bellerophon_apimachinery::field::{FieldError, Path};

/// How strict a level is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standard {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// A standard as it was in a version of Kubernetes; `None` is the newest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) standard: Standard,
    /// The minor version, behind `v1.`.
    pub(super) version: Option<u32>,
}

/// The levels of a namespace. Audit levels have no effect here: this server keeps no audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) enforce: Level,
    pub(super) warn: Level,
}

impl Level {
    /// The minor version of the policy.
    pub(super) fn minor(self) -> u32 {
        self.version.unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standard = match self.standard {
            Standard::Privileged => "privileged",
            Standard::Baseline => "baseline",
            Standard::Restricted => "restricted",
        };
        match self.version {
            None => write!(f, "{standard}:latest"),
            Some(minor) => write!(f, "{standard}:v1.{minor}"),
        }
    }
}

impl Policy {
    /// The levels that labels configure, and the errors of the labels. An `enforce`
    /// label that cannot be parsed is the level restricted; a `warn` label that cannot be parsed is
    /// ignored.
    pub(super) fn of(labels: &BTreeMap<String, String>) -> (Self, Vec<FieldError>) {
        let mut read = Reader {
            labels,
            errs: Vec::new(),
        };
        let enforced = read.standard("enforce");
        let enforce_version = read.version("enforce-version");
        read.standard("audit");
        read.version("audit-version");
        let warned = read.standard("warn");
        let warn_version = read.version("warn-version");
        let enforce = Level {
            standard: enforced.map_or(Standard::Privileged, |s| s.unwrap_or(Standard::Restricted)),
            version: enforce_version.flatten(),
        };
        let mut warn = Level {
            standard: warned.flatten().unwrap_or_default(),
            version: warn_version.flatten(),
        };
        if warned.is_none()
            && enforced
                .flatten()
                .is_some_and(|standard| standard > warn.standard)
        {
            warn.standard = enforce.standard;
            if warn_version.is_none() {
                warn.version = enforce.version;
            }
        }
        (Self { enforce, warn }, read.errs)
    }
}

struct Reader<'a> {
    labels: &'a BTreeMap<String, String>,
    errs: Vec<FieldError>,
}

impl Reader<'_> {
    /// `None` without the label, `Some(None)` for one that makes no sense.
    fn standard(&mut self, label: &str) -> Option<Option<Standard>> {
        self.read(
            label,
            "must be one of privileged, baseline, restricted",
            |text| match text {
                "privileged" => Some(Standard::Privileged),
                "baseline" => Some(Standard::Baseline),
                "restricted" => Some(Standard::Restricted),
                _ => None,
            },
        )
    }

    /// `None` without the label; what makes no sense counts as the newest.
    fn version(&mut self, label: &str) -> Option<Option<u32>> {
        let version = self.read(label, "must be \"latest\" or \"v1.x\"", |text| match text {
            "latest" => Some(None),
            text => minor(text).map(Some),
        })?;
        Some(version.flatten())
    }

    fn read<T>(
        &mut self,
        label: &str,
        detail: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<Option<T>> {
        let key = format!("pod-security.kubernetes.io/{label}");
        let text = self.labels.get(&key)?;
        let value = parse(text);
        if value.is_none() {
            self.errs.push(FieldError::invalid(
                Path::field("metadata.labels").key(&key),
                text,
                detail,
            ));
        }
        Some(value)
    }
}

fn minor(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("v1.")?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit())
        && (digits.len() == 1 || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_give_levels_and_warnings_follow_what_is_enforced() {
        type Labels = &'static [(&'static str, &'static str)];
        let cases: [(Labels, &str, usize); 7] = [
            (&[], "privileged:latest privileged:latest", 0),
            (
                &[("enforce", "baseline")],
                "baseline:latest baseline:latest",
                0,
            ),
            (
                &[("enforce", "baseline"), ("enforce-version", "v1.30")],
                "baseline:v1.30 baseline:v1.30",
                0,
            ),
            (
                &[("enforce", "restricted"), ("warn", "privileged")],
                "restricted:latest privileged:latest",
                0,
            ),
            (
                &[("warn", "baseline"), ("warn-version", "v1.5")],
                "privileged:latest baseline:v1.5",
                0,
            ),
            (
                &[("enforce", "strict")],
                "restricted:latest privileged:latest",
                1,
            ),
            (
                &[("enforce-version", "v1.07"), ("audit", "x"), ("warn", "y")],
                "privileged:latest privileged:latest",
                3,
            ),
        ];
        for (labels, want, errs) in cases {
            let labels = labels
                .iter()
                .map(|(k, v)| (format!("pod-security.kubernetes.io/{k}"), (*v).to_owned()))
                .collect();
            let (policy, errors) = Policy::of(&labels);
            assert_eq!(
                format!("{} {}", policy.enforce, policy.warn).as_str(),
                want,
                "{labels:?}"
            );
            assert_eq!(errors.len(), errs, "{labels:?}");
        }
    }
}
