//! Start tags of HTML, and where the URLs in them are.

/// The attributes that are URLs, by element: the names of `atomsToAttrs`.
const URL_ATTRIBUTES: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// A start tag.
pub(super) struct Tag {
    /// In lower case.
    pub(super) name: String,
    pub(super) length: usize,
    /// Where URLs start and end.
    pub(super) urls: Vec<(usize, usize)>,
}

impl Tag {
    /// The tag at the begin of `html`; `None` if its end has not arrived.
    pub(super) fn parse(html: &[u8]) -> Option<Self> {
        let mut at = 1;
        let name = take_until(html, &mut at, |b| is_space(b) || b == b'/' || b == b'>')?;
        let urls_of = URL_ATTRIBUTES.iter().find(|(element, _)| *element == name);
        let url_attributes = urls_of.map_or(&[][..], |(_, attributes)| attributes);
        let mut urls = Vec::new();
        loop {
            take_until(html, &mut at, |b| !is_space(b) && b != b'/')?;
            if html[at] == b'>' {
                let length = at + 1;
                return Some(Self { name, length, urls });
            }
            // An attribute may begin with `=`.
            let start = at;
            let is_end = |b: u8| is_space(b) || matches!(b, b'/' | b'>' | b'=');
            at += 1;
            take_until(html, &mut at, is_end)?;
            let attribute = String::from_utf8_lossy(&html[start..at]).to_ascii_lowercase();
            take_until(html, &mut at, |b| !is_space(b))?;
            if html[at] != b'=' {
                continue;
            }
            at += 1;
            take_until(html, &mut at, |b| !is_space(b))?;
            let quote = html[at];
            let value = if matches!(quote, b'"' | b'\'') {
                at += 1;
                let start = at;
                take_until(html, &mut at, |b| b == quote)?;
                at += 1;
                (start, at - 1)
            } else {
                let start = at;
                take_until(html, &mut at, |b| is_space(b) || b == b'>')?;
                (start, at)
            };
            if url_attributes.contains(&attribute.as_str()) {
                urls.push(value);
            }
        }
    }
}

/// Moves `at` to the first byte that is an end, and returns what is before it in lower case; `None`
/// if there is no such byte.
fn take_until(html: &[u8], at: &mut usize, is_end: impl Fn(u8) -> bool) -> Option<String> {
    let rest = html.get(*at..)?;
    let length = rest.iter().position(|b| is_end(*b))?;
    *at += length;
    Some(String::from_utf8_lossy(&rest[..length]).to_ascii_lowercase())
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | 0x0c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_a_tag_are_found() {
        for (html, expected) in [
            ("<a href=\"/x\">rest", Some(vec!["/x"])),
            ("<A class=b HREF = '/x' >", Some(vec!["/x"])),
            ("<img src=/x/ usemap=#m>", Some(vec!["/x/", "#m"])),
            ("<a href>", Some(vec![])),
            ("<p href=\"/x\">", Some(vec![])),
            ("<a title=\">\" href=/x>", Some(vec!["/x"])),
            ("<a href=\"/x", None),
            ("<a", None),
        ] {
            let tag = Tag::parse(html.as_bytes());
            let urls = tag.map(|tag| {
                let urls = tag.urls.iter();
                urls.map(|(start, end)| &html[*start..*end])
                    .collect::<Vec<_>>()
            });
            assert_eq!(urls, expected, "{html}");
        }
    }
}
