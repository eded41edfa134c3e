//! The dictionary with which header blocks are deflated.

use std::sync::LazyLock;

/// The Adler-32 checksum of the dictionary.
pub(super) const CHECKSUM: u32 = 0xe3c6_a7c2;

/// The dictionary of SPDY/3: words with their length in front, and values of common headers.
pub(super) static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::with_capacity(1423);
    for word in WORDS.split('|') {
        let length = u32::try_from(word.len()).expect("words are short");
        dictionary.extend(length.to_be_bytes());
        dictionary.extend(word.as_bytes());
    }
    dictionary.extend(VALUES.as_bytes());
    dictionary
});

const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|\
accept-language|accept-ranges|age|allow|authorization|cache-control|connection|content-base|\
content-encoding|content-language|content-length|content-location|content-md5|content-range|\
content-type|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|\
if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|proxy-authenticate|\
proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|\
user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|\
public|set-cookie|keep-alive|origin";

const VALUES: &str = "100101201202205206300302303304305306307402405406407408409410411412413414\
415416417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad \
Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented\
503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, \
Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,\
application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=\
utf-8charset=iso-8859-1,utf-,*,enq=0.";
