//! Links of proxied HTML pages.
//! In: a page as it arrives. Out: the same page, in which links to the backend lead through the
//! proxy.
//!
//! Mirrors `Transport.rewriteResponse`, for a page that is passed on as it arrives: what is not a
//! URL stays as it was written, byte for byte. At most one tag of 64 KiB waits in memory.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::{
    Compression,
    write::{DeflateDecoder, DeflateEncoder, GzDecoder, GzEncoder},
};
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, header};

use super::{rewrite::Links, tag::Tag};

/// A longer tag is passed on unchanged.
const TAG_MAX_BYTES: usize = 64 << 10;

/// Elements whose content has no tags.
const RAW_TEXT: [&str; 8] = [
    "iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp",
];

/// How a page is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

/// The encoding of a page whose links can be rewritten; `None` for any other response.
pub(super) fn rewritable(headers: &HeaderMap) -> Option<Encoding> {
    let text = |name| {
        let value = headers.get(name).map_or(&b""[..], |value| value.as_bytes());
        String::from_utf8_lossy(value).into_owned()
    };
    let content_type = text(header::CONTENT_TYPE);
    if content_type.split(';').next().map(str::trim) != Some("text/html") {
        return None;
    }
    match text(header::CONTENT_ENCODING).as_str() {
        "" => Some(Encoding::Identity),
        "gzip" => Some(Encoding::Gzip),
        "deflate" => Some(Encoding::Deflate),
        _ => None,
    }
}

/// A page with its links rewritten.
pub(super) fn rewrite(
    page: impl Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
    encoding: Encoding,
    links: Links,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let state = Some((page, PageRewriter::new(encoding, links)));
    stream::unfold(state, |state| async {
        let (mut page, mut rewriter) = state?;
        loop {
            let rewritten = match page.next().await {
                Some(chunk) => match chunk.and_then(|chunk| rewriter.push(&chunk)) {
                    // There is no chunk of no bytes: it would end a chunked body.
                    Ok(rewritten) if rewritten.is_empty() => continue,
                    Ok(rewritten) => Ok((rewritten, Some((page, rewriter)))),
                    Err(error) => Err(error),
                },
                None => rewriter.finish().map(|rewritten| (rewritten, None)),
            };
            return match rewritten {
                Ok((rewritten, _)) if rewritten.is_empty() => None,
                Ok((rewritten, next)) => Some((Ok(rewritten), next)),
                Err(error) => Some((Err(error), None)),
            };
        }
    })
}

/// Decodes, rewrites and encodes a page.
enum PageRewriter {
    Identity(HtmlRewriter),
    Gzip(Box<GzDecoder<HtmlRewriter>>, Box<GzEncoder<Vec<u8>>>),
    Deflate(
        Box<DeflateDecoder<HtmlRewriter>>,
        Box<DeflateEncoder<Vec<u8>>>,
    ),
}

impl PageRewriter {
    fn new(encoding: Encoding, links: Links) -> Self {
        let html = HtmlRewriter::new(links);
        match encoding {
            Encoding::Identity => Self::Identity(html),
            Encoding::Gzip => Self::Gzip(
                Box::new(GzDecoder::new(html)),
                Box::new(GzEncoder::new(Vec::new(), Compression::default())),
            ),
            Encoding::Deflate => Self::Deflate(
                Box::new(DeflateDecoder::new(html)),
                Box::new(DeflateEncoder::new(Vec::new(), Compression::best())),
            ),
        }
    }

    fn push(&mut self, chunk: &[u8]) -> io::Result<Bytes> {
        match self {
            Self::Identity(html) => {
                html.write_all(chunk)?;
                Ok(html.take())
            }
            Self::Gzip(decoder, encoder) => {
                decoder.write_all(chunk)?;
                decoder.flush()?;
                encoder.write_all(&decoder.get_mut().take())?;
                encoder.flush()?;
                Ok(std::mem::take(encoder.get_mut()).into())
            }
            Self::Deflate(decoder, encoder) => {
                decoder.write_all(chunk)?;
                decoder.flush()?;
                encoder.write_all(&decoder.get_mut().take())?;
                encoder.flush()?;
                Ok(std::mem::take(encoder.get_mut()).into())
            }
        }
    }

    fn finish(self) -> io::Result<Bytes> {
        match self {
            Self::Identity(mut html) => Ok(html.finish()),
            Self::Gzip(decoder, mut encoder) => {
                encoder.write_all(&decoder.finish()?.finish())?;
                Ok(encoder.finish()?.into())
            }
            Self::Deflate(decoder, mut encoder) => {
                encoder.write_all(&decoder.finish()?.finish())?;
                Ok(encoder.finish()?.into())
            }
        }
    }
}

/// The state of the tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    Comment,
    /// The content of an element of [`RAW_TEXT`].
    RawText(&'static str),
}

/// Rewrites the links of a page that is written to it.
struct HtmlRewriter {
    links: Links,
    state: State,
    /// The begin of a tag, comment or end tag whose end has not arrived.
    pending: Vec<u8>,
    rewritten: Vec<u8>,
}

impl HtmlRewriter {
    fn new(links: Links) -> Self {
        Self {
            links,
            state: State::Text,
            pending: Vec::new(),
            rewritten: Vec::new(),
        }
    }

    /// The output so far.
    fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.rewritten).into()
    }

    /// The rest, when the page has ended.
    fn finish(&mut self) -> Bytes {
        let pending = std::mem::take(&mut self.pending);
        self.rewritten.extend_from_slice(&pending);
        self.take()
    }

    /// Rewrites a token at the begin of `html`. Returns its length; 0 if more is needed to know it.
    fn token(&mut self, html: &[u8]) -> usize {
        let length = match self.state {
            State::Text => return self.text_or_tag(html),
            State::Comment => match find(html, b"-->") {
                Some(end) => {
                    self.state = State::Text;
                    end + 3
                }
                None => html.len().saturating_sub(2),
            },
            State::RawText(element) => match find_end_tag(html, element) {
                Some(end) => {
                    self.state = State::Text;
                    end
                }
                None => html.len().saturating_sub(element.len() + 2),
            },
        };
        self.rewritten.extend_from_slice(&html[..length]);
        length
    }

    fn text_or_tag(&mut self, html: &[u8]) -> usize {
        let is_tag = html[0] == b'<';
        if !is_tag {
            let length = html.iter().position(|b| *b == b'<').unwrap_or(html.len());
            self.rewritten.extend_from_slice(&html[..length]);
            return length;
        }
        if b"<!--".starts_with(&html[..html.len().min(4)]) {
            if html.len() < 4 {
                return 0;
            }
            self.state = State::Comment;
            self.rewritten.extend_from_slice(b"<!--");
            return 4;
        }
        if !html[1].is_ascii_alphabetic() {
            self.rewritten.push(b'<');
            return 1;
        }
        let Some(tag) = Tag::parse(html) else {
            return 0;
        };
        self.write_tag(&html[..tag.length], &tag);
        tag.length
    }

    fn write_tag(&mut self, html: &[u8], tag: &Tag) {
        let mut written = 0;
        for (start, end) in &tag.urls {
            let Ok(url) = std::str::from_utf8(&html[*start..*end]) else {
                continue;
            };
            self.rewritten.extend_from_slice(&html[written..*start]);
            let url = self.links.rewrite(url);
            self.rewritten.extend_from_slice(url.as_bytes());
            written = *end;
        }
        self.rewritten.extend_from_slice(&html[written..]);
        let raw_text = RAW_TEXT.iter().find(|element| **element == tag.name);
        if let Some(element) = raw_text {
            self.state = State::RawText(element);
        }
    }
}

impl io::Write for HtmlRewriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut html = std::mem::take(&mut self.pending);
        html.extend_from_slice(bytes);
        let mut done = 0;
        while done < html.len() {
            let length = self.token(&html[done..]);
            if length > 0 {
                done += length;
            } else if html.len() - done > TAG_MAX_BYTES {
                self.rewritten.push(html[done]);
                done += 1;
            } else {
                break;
            }
        }
        html.drain(..done);
        self.pending = html;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn find(html: &[u8], wanted: &[u8]) -> Option<usize> {
    html.windows(wanted.len())
        .position(|window| window == wanted)
}

/// Where the end tag of a raw text element begins.
fn find_end_tag(html: &[u8], element: &str) -> Option<usize> {
    html.windows(element.len() + 2).position(|window| {
        window.starts_with(b"</") && window[2..].eq_ignore_ascii_case(element.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    const PAGE: &str = "<!DOCTYPE html><html><head><title>a <a href='/t'></title>\
        <script src=\"/s.js\">if (a < b) '<a href=\"/no\">'</script><LINK rel=x HREF=/c.css></head>\
        <!-- <a href=\"/comment\"> --><body><a class=\"b\" href='/a?b=1&amp;c=2'>1 < 2</a>\
        <a href=\"rel\">r</a><img src = \"http://10.0.0.1:80/i.png\"/><a href>x</a></body></html>";
    const EXPECTED: &str = "<!DOCTYPE html><html><head><title>a <a href='/t'></title>\
        <script src=\"/p/s.js\">if (a < b) '<a href=\"/no\">'</script><LINK rel=x HREF=/p/c.css></head>\
        <!-- <a href=\"/comment\"> --><body><a class=\"b\" href='/p/a?b=1&amp;c=2'>1 < 2</a>\
        <a href=\"rel\">r</a><img src = \"/p/i.png\"/><a href>x</a></body></html>";

    fn links() -> Links {
        Links {
            prefix: "/p".into(),
            hosts: ["10.0.0.1:80".into(), "proxy".into()],
        }
    }

    async fn rewritten(chunks: Vec<Vec<u8>>, encoding: Encoding) -> Vec<u8> {
        let chunks = chunks.into_iter().map(|chunk| Ok(Bytes::from(chunk)));
        let mut page = std::pin::pin!(rewrite(stream::iter(chunks), encoding, links()));
        let mut all = Vec::new();
        while let Some(chunk) = page.next().await {
            all.extend_from_slice(&chunk.expect("a page"));
        }
        all
    }

    #[tokio::test]
    async fn links_are_rewritten_wherever_chunks_end() {
        for size in [1, 2, 3, 7, 64, 4096] {
            let chunks = PAGE.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
            let page = rewritten(chunks, Encoding::Identity).await;
            assert_eq!(String::from_utf8_lossy(&page), EXPECTED, "{size}");
        }
    }

    #[tokio::test]
    async fn compressed_pages_stay_compressed() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(PAGE.as_bytes()).expect("memory");
        let chunks = gzip.finish().expect("memory");
        let chunks = chunks.chunks(50).map(<[u8]>::to_vec).collect();
        let page = rewritten(chunks, Encoding::Gzip).await;
        let mut text = String::new();
        let read = flate2::read::GzDecoder::new(&page[..]).read_to_string(&mut text);
        read.expect("a compressed page");
        assert_eq!(text, EXPECTED);
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::fast());
        deflate.write_all(PAGE.as_bytes()).expect("memory");
        let chunks = vec![deflate.finish().expect("memory")];
        let page = rewritten(chunks, Encoding::Deflate).await;
        let mut text = String::new();
        let read = flate2::read::DeflateDecoder::new(&page[..]).read_to_string(&mut text);
        read.expect("a compressed page");
        assert_eq!(text, EXPECTED);
    }

    #[tokio::test]
    async fn tag_without_end_is_passed_on() {
        let endless = format!("<a href=\"{}", "x".repeat(3 * TAG_MAX_BYTES));
        let chunks = endless
            .as_bytes()
            .chunks(1000)
            .map(<[u8]>::to_vec)
            .collect();
        let page = rewritten(chunks, Encoding::Identity).await;
        assert_eq!(page, endless.as_bytes());
    }

    #[test]
    fn only_pages_in_known_encodings_are_rewritten() {
        for (content_type, encoding, expected) in [
            ("text/html", "", Some(Encoding::Identity)),
            ("text/html; charset=utf-8", "gzip", Some(Encoding::Gzip)),
            ("text/html", "deflate", Some(Encoding::Deflate)),
            ("text/html", "br", None),
            ("application/json", "", None),
        ] {
            let mut headers = HeaderMap::new();
            let content_type = content_type.parse().expect("a value");
            headers.insert(header::CONTENT_TYPE, content_type);
            if !encoding.is_empty() {
                let encoding = encoding.parse().expect("a value");
                headers.insert(header::CONTENT_ENCODING, encoding);
            }
            assert_eq!(rewritable(&headers), expected, "{headers:?}");
        }
    }
}
