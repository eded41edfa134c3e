//! `/`: the list of served paths.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{health, openid};
use crate::{discovery, registry::Catalog};

/// Paths that are always there, besides health and the groups.
const FIXED: [&str; 10] = [
    openid::CONFIGURATION,
    openid::KEYS,
    "/api",
    "/apis",
    "/apis/",
    "/metrics",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/",
    "/version",
];

/// The list of paths.
#[derive(Debug, Serialize)]
pub(super) struct Paths {
    /// Sorted.
    paths: BTreeSet<String>,
}

/// Every path that is no resource. Custom groups are not listed, as in kube-apiserver.
pub(super) fn paths(catalog: &Catalog) -> Paths {
    let mut paths: BTreeSet<String> = FIXED
        .iter()
        .map(|&p| p.to_owned())
        .chain(health::paths())
        .collect();
    for group in discovery::groups(catalog)
        .into_iter()
        .filter(|g| g.built_in)
    {
        let path = if group.name.is_empty() {
            "/api".to_owned()
        } else {
            format!("/apis/{}", group.name)
        };
        paths.extend(group.versions.iter().map(|v| format!("{path}/{}", v.name)));
        paths.insert(path);
    }
    Paths { paths }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_sorted_and_name_every_group() {
        let Paths { paths } = paths(&Catalog::default());
        let first: Vec<&str> = paths.iter().map(String::as_str).take(4).collect();
        assert_eq!(
            first,
            [
                "/.well-known/openid-configuration",
                "/api",
                "/api/v1",
                "/apis"
            ]
        );
        for path in [
            "/apis/apps/v1",
            "/apis/autoscaling/v2",
            "/healthz/ping",
            "/readyz/shutdown",
            "/version",
        ] {
            assert!(paths.contains(path), "{path}");
        }
    }
}
