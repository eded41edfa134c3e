//! Versions of the store, and which upgrade is supported.

use std::fmt;

/// A version, without pre-release and build parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u64,
    minor: u64,
    patch: u64,
}

impl Version {
    /// Parses `1.2.3`, `v1.2.3` or `1.2.3-rc.1`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(|part| part.parse::<u64>().ok());
        let version = Self {
            major: parts.next()??,
            minor: parts.next()??,
            patch: parts.next()??,
        };
        parts.next().is_none().then_some(version)
    }

    /// The version in the tag of an image; `None` if the tag is not a version.
    pub(crate) fn of_image(image: &str) -> Option<Self> {
        let image = image.split('@').next()?;
        // A colon before the last slash is that of a port.
        let name = image.rsplit('/').next()?;
        let (_, tag) = name.rsplit_once(':')?;
        Self::parse(tag)
    }

    /// Whether members may change from this version to another one.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn check_upgrade(self, to: Self) -> Result<(), String> {
        if to < self {
            return Err(format!(
                "{to} is lower than {self}; a downgrade is not supported: restore a backup instead"
            ));
        }
        let is_next_major = to.major == self.major + 1 && to.minor == 0;
        let is_next_minor = to.major == self.major && to.minor <= self.minor + 1;
        if is_next_major || is_next_minor {
            return Ok(());
        }
        Err(format!(
            "{to} skips a version after {self}; upgrade one minor version at a time"
        ))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_image_tags() {
        for (image, expected) in [
            ("bellerophon:0.1.0", Some("0.1.0")),
            (
                "registry.example:5000/team/bellerophon:v1.2.3",
                Some("1.2.3"),
            ),
            ("bellerophon:1.2.3-rc.1", Some("1.2.3")),
            ("bellerophon:1.2.3@sha256:00", Some("1.2.3")),
            ("bellerophon", None),
            ("registry.example:5000/bellerophon", None),
            ("bellerophon:latest", None),
            ("bellerophon:1.2", None),
            ("bellerophon:1.2.3.4", None),
        ] {
            let version = Version::of_image(image).map(|version| version.to_string());
            assert_eq!(version.as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn downgrades_and_skips_are_refused() {
        for (from, to, is_supported) in [
            ("1.2.3", "1.2.3", true),
            ("1.2.3", "1.2.4", true),
            ("1.2.3", "1.3.0", true),
            ("1.2.3", "2.0.0", true),
            ("1.2.3", "1.2.2", false),
            ("1.2.3", "1.1.9", false),
            ("1.2.3", "1.4.0", false),
            ("1.2.3", "2.1.0", false),
            ("1.2.3", "3.0.0", false),
            ("1.2.3", "0.9.0", false),
        ] {
            let from_version = Version::parse(from).unwrap();
            let to_version = Version::parse(to).unwrap();
            let result = from_version.check_upgrade(to_version);
            assert_eq!(result.is_ok(), is_supported, "{from} to {to}");
        }
    }
}
