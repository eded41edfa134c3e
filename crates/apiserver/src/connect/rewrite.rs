//! Links of proxied responses.
//! In: a URL in a response of a backend. Out: the URL by which a client reaches the same page
//! through the proxy. Mirrors `Transport.rewriteURL`.

use super::url::clean_path;

/// How the links of one response are rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Links {
    /// The path of the proxy, such as `/api/v1/namespaces/ns/services/web/proxy`.
    pub(super) prefix: String,
    /// The hosts by which the backend knows itself: its address and the `Host` of the request.
    pub(super) hosts: [String; 2],
}

impl Links {
    /// The URL through the proxy; unchanged if it is relative or names another host.
    pub(super) fn rewrite(&self, url: &str) -> String {
        let unchanged = || url.to_owned();
        let Some(parsed) = Parsed::of(url) else {
            return unchanged();
        };
        let is_other_host = !parsed.host.is_empty() && !self.hosts.iter().any(|h| h == parsed.host);
        if is_other_host || !parsed.path.starts_with('/') {
            return unchanged();
        }
        if parsed.path.starts_with(&self.prefix) {
            return format!("{}{}", parsed.path, parsed.rest);
        }
        let mut path = clean_path(&format!("{}{}", self.prefix, parsed.path));
        if parsed.path.ends_with('/') && !path.ends_with('/') {
            path.push('/');
        }
        format!("{path}{}", parsed.rest)
    }
}

/// A URL in three parts; the scheme is not needed.
struct Parsed<'a> {
    /// Empty for a URL without one.
    host: &'a str,
    path: &'a str,
    /// Query and fragment, with their marks.
    rest: &'a str,
}

impl<'a> Parsed<'a> {
    /// Reads a URL; `None` if it is of no hierarchical scheme, such as `mailto:` or `data:`.
    fn of(url: &'a str) -> Option<Self> {
        let (hierarchy, rest) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
        let after_scheme = match hierarchy.split_once(':') {
            Some((scheme, after)) if is_scheme(scheme) => {
                after.starts_with("//").then_some(after)?
            }
            _ => hierarchy,
        };
        let Some(authority) = after_scheme.strip_prefix("//") else {
            return Some(Self {
                host: "",
                path: after_scheme,
                rest,
            });
        };
        let (host, path) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
        Some(Self { host, path, rest })
    }
}

fn is_scheme(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_backend_are_rewritten_to_the_proxy() {
        let links = Links {
            prefix: "/p/proxy".into(),
            hosts: ["10.0.0.1:80".into(), "localhost:8001".into()],
        };
        for (url, expected) in [
            ("/a", "/p/proxy/a"),
            ("/a/?q=/x#f", "/p/proxy/a/?q=/x#f"),
            ("/", "/p/proxy/"),
            ("/a/../b", "/p/proxy/b"),
            ("a/b", "a/b"),
            ("?page=2", "?page=2"),
            ("#top", "#top"),
            ("", ""),
            ("http://10.0.0.1:80/a", "/p/proxy/a"),
            ("https://localhost:8001/p/proxy/a", "/p/proxy/a"),
            ("//10.0.0.1:80/a", "/p/proxy/a"),
            ("http://other/a", "http://other/a"),
            ("http://10.0.0.1:80", "http://10.0.0.1:80"),
            ("mailto:ann@example.com", "mailto:ann@example.com"),
            ("data:text/plain,x", "data:text/plain,x"),
        ] {
            assert_eq!(links.rewrite(url), expected, "{url}");
        }
    }
}
