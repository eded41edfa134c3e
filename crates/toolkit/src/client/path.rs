//! Names and namespaces in the paths of requests.
//! Guarantees: a name is one segment of a path, and never another path or a query.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Escaped characters of a segment: all but the characters of names in Kubernetes.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// A name as one segment of a path; `None` if no object can have it, since it is `.` or `..` or has
/// a `/` or `%`. An empty name is an empty segment.
///
/// [`ReconcileClient`](super::ReconcileClient) does this by itself. Names that do not come from the
/// metadata of an object, such as those in a spec or in an owner reference, may be anything: escape
/// them before they are used with the plain client, which does not.
///
/// ```
/// use bellerophon::client::path_segment;
///
/// assert_eq!(path_segment("system:node").as_deref(), Some("system:node"));
/// assert_eq!(path_segment("a?b").as_deref(), Some("a%3Fb"));
/// assert_eq!(path_segment("../secrets"), None);
/// ```
pub fn path_segment(name: &str) -> Option<Cow<'_, str>> {
    // Mirrors IsValidPathSegmentName.
    let is_invalid = matches!(name, "." | "..") || name.contains(['/', '%']);
    (!is_invalid).then(|| utf8_percent_encode(name, ESCAPED).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_one_segment() {
        for (name, segment) in [
            ("web-1", Some("web-1")),
            ("kube-root-ca.crt", Some("kube-root-ca.crt")),
            ("system:controller", Some("system:controller")),
            ("my role", Some("my%20role")),
            ("a?watch=1", Some("a%3Fwatch%3D1")),
            ("a#b", Some("a%23b")),
            ("ä", Some("%C3%A4")),
            ("...", Some("...")),
            ("", Some("")),
            (".", None),
            ("..", None),
            ("a/b", None),
            ("../b", None),
            ("%2e%2e", None),
        ] {
            assert_eq!(path_segment(name).as_deref(), segment, "{name:?}");
        }
    }
}
