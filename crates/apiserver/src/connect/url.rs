//! Paths and queries of URLs, written as Go's `net/url` and `path` write them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that Go escapes in the path of a URL.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// Characters that Go escapes in a query, besides the space.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b' ');

/// A path, percent-encoded.
pub(super) fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// Parameters as a query, sorted by name. Mirrors `url.Values.Encode`.
pub(super) fn encode_query(mut parameters: Vec<(&str, String)>) -> String {
    // The order of the values of one name stays.
    parameters.sort_by_key(|(name, _)| *name);
    let pairs: Vec<String> = parameters
        .iter()
        .map(|(name, value)| {
            let value = utf8_percent_encode(value, QUERY).to_string();
            format!("{name}={}", value.replace(' ', "+"))
        })
        .collect();
    pairs.join("&")
}

/// The shortest path that is equal to this one: without empty segments, `.` and `..`. Mirrors
/// `path.Clean` for a path with a leading slash.
pub(super) fn clean_path(path: &str) -> String {
    let mut cleaned: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                cleaned.pop();
            }
            segment => cleaned.push(segment),
        }
    }
    format!("/{}", cleaned.join("/"))
}

/// The path that is proxied to: cleaned, with the slash at its end. Mirrors
/// `JoinPreservingTrailingSlash`.
pub(super) fn proxied_path(path: &str) -> String {
    if path.is_empty() {
        return String::new();
    }
    let mut cleaned = clean_path(path);
    if path.ends_with('/') && !cleaned.ends_with('/') {
        cleaned.push('/');
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_sorted_and_escaped() {
        let parameters = vec![
            ("output", "1".to_owned()),
            ("command", "echo".to_owned()),
            ("command", "a b&c".to_owned()),
        ];
        let expected = "command=echo&command=a+b%26c&output=1";
        assert_eq!(encode_query(parameters), expected);
        assert_eq!(encode_query(Vec::new()), "");
    }

    #[test]
    fn proxied_paths_are_cleaned() {
        for (path, expected) in [
            ("", ""),
            ("/", "/"),
            ("/a", "/a"),
            ("/a/", "/a/"),
            ("/a//b", "/a/b"),
            ("/a/../../b/.", "/b"),
            ("/..", "/"),
        ] {
            assert_eq!(proxied_path(path), expected, "{path}");
        }
    }
}
