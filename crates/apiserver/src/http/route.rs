//! Parses the path of a request.
//! In: the path of a request. Out: typed segments, each decoded once and free of slashes.
//! Guarantees: no later stage splits or joins path text; storage keys are built from these segments
//! only.

/// The route of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A resource, its objects or their parts.
    Resource(ResourcePath),
    /// `/api`, `/apis`, `/apis/GROUP`, `/api/v1`, `/apis/GROUP/VERSION`.
    Discovery(Discovery),
    /// Anything else, as it was sent.
    Other(String),
}

/// A discovery document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// `/api`.
    Core,
    /// `/apis`.
    Groups,
    /// `/apis/GROUP`.
    Group(String),
    /// `/api/v1` (empty group) or `/apis/GROUP/VERSION`.
    Version { group: String, version: String },
}

/// The parts of a resource path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) version: String,
    /// Empty when the path names none.
    pub(crate) namespace: String,
    pub(crate) resource: String,
    /// Empty for a collection.
    pub(crate) name: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
    /// The path behind the subresource `proxy`, with its slashes: `/metrics/`. Otherwise empty.
    pub(crate) proxied: String,
    /// Whether it is one of the old `/watch/` paths.
    pub(crate) watch: bool,
}

impl ResourcePath {
    /// The path of the route.
    pub(crate) fn to_path(&self) -> String {
        let mut path = match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        let itself = self.resource == "namespaces" && self.group.is_empty();
        if !self.namespace.is_empty() && !itself {
            path.push_str("/namespaces/");
            path.push_str(&self.namespace);
        }
        for segment in [&self.resource, &self.name, &self.subresource] {
            if !segment.is_empty() {
                path.push('/');
                path.push_str(segment);
            }
        }
        path
    }
}

impl Route {
    /// Parses a path.
    ///
    /// Percent signs are decoded first, so an encoded slash separates like a plain one. A path with
    /// an empty segment in it, or with `.` or `..`, is not served.
    pub(crate) fn parse(path: &str) -> Self {
        let other = || Self::Other(path.to_owned());
        let Some(decoded) = percent_decode(path) else {
            return other();
        };
        if let Some(proxied) = proxy(&decoded) {
            return Self::Resource(proxied);
        }
        Self::parse_segments(&decoded).unwrap_or_else(other)
    }

    /// Reads a decoded path; `None` if it is neither a resource nor a discovery document.
    fn parse_segments(decoded: &str) -> Option<Self> {
        let trimmed = decoded.strip_prefix('/').unwrap_or(decoded);
        let trimmed = trimmed.strip_suffix('/').unwrap_or(trimmed);
        let segments: Vec<&str> = trimmed.split('/').collect();
        if segments
            .iter()
            .any(|s| s.is_empty() || *s == "." || *s == ".." || s.contains('\0'))
        {
            return None;
        }
        Some(match segments.as_slice() {
            ["api"] => Self::Discovery(Discovery::Core),
            ["apis"] => Self::Discovery(Discovery::Groups),
            ["apis", group] => Self::Discovery(Discovery::Group((*group).into())),
            ["api", version] => Self::Discovery(Discovery::Version {
                group: String::new(),
                version: (*version).into(),
            }),
            ["apis", group, version] => Self::Discovery(Discovery::Version {
                group: (*group).into(),
                version: (*version).into(),
            }),
            ["api", version, rest @ ..] => Self::Resource(resource("", version, rest)?),
            ["apis", group, version, rest @ ..] => Self::Resource(resource(group, version, rest)?),
            _ => return None,
        })
    }
}

/// A path with the subresource `proxy`. The rest is the path of the backend, whatever it is.
fn proxy(path: &str) -> Option<ResourcePath> {
    const SUBRESOURCE: &str = "/proxy";
    let mut ends = path
        .match_indices(SUBRESOURCE)
        .map(|(start, _)| path.split_at(start + SUBRESOURCE.len()));
    ends.find_map(|(before, proxied)| {
        if !proxied.is_empty() && !proxied.starts_with('/') {
            return None;
        }
        match Route::parse_segments(before)? {
            Route::Resource(found) if found.subresource == "proxy" => Some(ResourcePath {
                proxied: proxied.to_owned(),
                ..found
            }),
            _ => None,
        }
    })
}

/// The part of a path behind its version.
fn resource(group: &str, version: &str, rest: &[&str]) -> Option<ResourcePath> {
    let (watch, rest) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
        rest => (false, rest),
    };
    let (namespace, rest) = match rest {
        // A namespace itself, or a part of it.
        ["namespaces"] | ["namespaces", _] => ("", rest),
        ["namespaces", _, "status" | "finalize"] => ("", rest),
        ["namespaces", namespace, rest @ ..] => (*namespace, rest),
        rest => ("", rest),
    };
    let (resource, name, subresource) = match rest {
        [resource] => (*resource, "", String::new()),
        [resource, name] => (*resource, *name, String::new()),
        [resource, name, subresource @ ..] => (*resource, *name, subresource.join("/")),
        [] => return None,
    };
    Some(ResourcePath {
        group: group.into(),
        version: version.into(),
        namespace: namespace.into(),
        resource: resource.into(),
        name: name.into(),
        subresource,
        proxied: String::new(),
        watch,
    })
}

/// Decodes percent signs; `None` when the outcome is not UTF-8 or a percent sign is not followed by
/// two digits.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let digit = |b: Option<u8>| (b? as char).to_digit(16);
            let high = digit(bytes.next())?;
            let low = digit(bytes.next())?;
            out.push((high * 16 + low) as u8);
        } else {
            out.push(b);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> String {
        match Route::parse(path) {
            Route::Resource(p) => {
                let watch = if p.watch { "watch " } else { "" };
                format!(
                    "{watch}{}|{}|{}|{}|{}|{}{}{}",
                    p.group,
                    p.version,
                    p.namespace,
                    p.resource,
                    p.name,
                    p.subresource,
                    if p.proxied.is_empty() { "" } else { " " },
                    p.proxied
                )
            }
            Route::Discovery(d) => format!("{d:?}"),
            Route::Other(_) => "other".into(),
        }
    }

    #[test]
    fn paths_are_read_into_their_parts() {
        for (path, expected) in [
            ("/api/v1/pods", "|v1||pods||"),
            ("/api/v1/namespaces", "|v1||namespaces||"),
            ("/api/v1/namespaces/a", "|v1||namespaces|a|"),
            ("/api/v1/namespaces/a/status", "|v1||namespaces|a|status"),
            (
                "/api/v1/namespaces/a/finalize",
                "|v1||namespaces|a|finalize",
            ),
            ("/api/v1/namespaces/a/pods", "|v1|a|pods||"),
            ("/api/v1/namespaces/a/pods/b/log", "|v1|a|pods|b|log"),
            (
                "/apis/apps/v1/namespaces/a/deployments/b/scale",
                "apps|v1|a|deployments|b|scale",
            ),
            ("/api/v1/watch/namespaces/a/pods/b", "watch |v1|a|pods|b|"),
            ("/apis/apps/v1/deployments/", "apps|v1||deployments||"),
            ("/apis", "Groups"),
            ("/apis/apps", "Group(\"apps\")"),
            ("/api//v1", "other"),
            ("/api/v1/pods/..", "other"),
            ("/api/v1/pods/%2e%2e/x", "other"),
            ("/api/v1/namespaces/a%2Fb/pods", "|v1|a|b|pods|"),
            ("/api/v1/pods/%zz", "other"),
            ("/api/v1/nodes/n/proxy", "|v1||nodes|n|proxy"),
            ("/api/v1/nodes/n/proxy/", "|v1||nodes|n|proxy /"),
            ("/api/v1/nodes/n/proxyx", "|v1||nodes|n|proxyx"),
            (
                "/api/v1/nodes/proxy/proxy/proxy",
                "|v1||nodes|proxy|proxy /proxy",
            ),
            (
                "/api/v1/namespaces/proxy/pods/proxy",
                "|v1|proxy|pods|proxy|",
            ),
            (
                "/api/v1/namespaces/a/services/https:b:web/proxy/c//d%2Fe/../f/",
                "|v1|a|services|https:b:web|proxy /c//d/e/../f/",
            ),
            ("/healthz", "other"),
        ] {
            assert_eq!(shown(path), expected, "{path}");
        }
    }
}
