//! The string formats of schemas.
//! In: a format's name and a string. Out: whether the string has the format.
//! Guarantees: the list is that of Kubernetes 1.36; names are compared without dashes; formats not
//! listed are ignored.

use std::{net::Ipv6Addr, sync::LazyLock};

use jiff::civil::Date;
use regex::Regex;

/// The check of a format; `None` for one that Kubernetes does not define.
pub(crate) fn find(name: &str) -> Option<Check> {
    let name = name.replace('-', "");
    FORMATS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, check)| *check)
}

type Check = fn(&str) -> bool;

const FORMATS: &[(&str, Check)] = &[
    ("bsonobjectid", |s| s.len() == 24 && is_hex(s)),
    ("uri", is_request_uri),
    ("email", is_email),
    ("hostname", is_hostname),
    ("ipv4", |s| s.contains('.') && is_ip(s)),
    ("ipv6", |s| s.parse::<Ipv6Addr>().is_ok()),
    ("cidr", is_cidr),
    ("mac", is_mac),
    ("uuid", |s| UUID.is_match(s)),
    ("uuid3", |s| UUID3.is_match(s)),
    ("uuid4", |s| UUID4.is_match(s)),
    ("uuid5", |s| UUID5.is_match(s)),
    ("isbn", |s| is_isbn10(s) || is_isbn13(s)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("creditcard", is_credit_card),
    ("ssn", |s| s.len() == 11 && SSN.is_match(s)),
    ("hexcolor", |s| HEX_COLOR.is_match(s)),
    ("rgbcolor", |s| RGB_COLOR.is_match(s)),
    ("byte", |s| BASE64.is_match(s)),
    ("password", |_| true),
    ("date", is_date),
    ("duration", is_duration),
    ("datetime", is_date_time),
    ("k8sshortname", |s| s.len() <= 63 && SHORT_NAME.is_match(s)),
    ("k8slongname", |s| s.len() <= 253 && LONG_NAME.is_match(s)),
];

static UUID: LazyLock<Regex> = LazyLock::new(|| {
    constant("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
});
static UUID3: LazyLock<Regex> = LazyLock::new(|| {
    constant("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
});
static UUID4: LazyLock<Regex> = LazyLock::new(|| {
    constant("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
});
static UUID5: LazyLock<Regex> = LazyLock::new(|| {
    constant("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
});
static CREDIT_CARD: LazyLock<Regex> = LazyLock::new(|| {
    constant(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
    )
});
static SSN: LazyLock<Regex> = LazyLock::new(|| constant("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static HEX_COLOR: LazyLock<Regex> =
    LazyLock::new(|| constant("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    const BYTE: &str = r"[\t\n\f\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\f\r ]*";
    constant(&format!(r"^rgb\({BYTE},{BYTE},{BYTE}\)$"))
});
static BASE64: LazyLock<Regex> = LazyLock::new(|| {
    constant("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$")
});
static SHORT_NAME: LazyLock<Regex> = LazyLock::new(|| constant("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"));
static LONG_NAME: LazyLock<Regex> = LazyLock::new(|| {
    constant(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
});
static TIME_OF_DAY: LazyLock<Regex> = LazyLock::new(|| {
    constant("^([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})$")
});
static GO_DURATION: LazyLock<Regex> = LazyLock::new(|| {
    constant(r"^[-+]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u{b5}s|\u{3bc}s|ms|s|m|h))+)$")
});
static LOOSE_DURATION: LazyLock<Regex> =
    LazyLock::new(|| constant(r"([0-9]+)[\t\n\f\r ]*([A-Za-z\u{b5}]+)"));
static LETTER: LazyLock<Regex> = LazyLock::new(|| constant(r"^\p{L}$"));
static SYMBOL: LazyLock<Regex> = LazyLock::new(|| constant(r"^\p{S}$"));

fn constant(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant of this file")
}

fn is_hex(s: &str) -> bool {
    s.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A string that Go's `url.ParseRequestURI` accepts: an absolute path or a URL with a scheme.
pub(super) fn is_request_uri(s: &str) -> bool {
    if s.is_empty() || s.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if s == "*" {
        return true;
    }
    let Some((scheme, rest)) = split_scheme(s) else {
        return false;
    };
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !rest.starts_with('/') {
        return !scheme.is_empty();
    }
    let path = match rest.strip_prefix("//") {
        Some(after) if !scheme.is_empty() => {
            let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
            if !is_authority(authority) {
                return false;
            }
            path
        }
        _ => rest,
    };
    escapes_are_whole(path)
}

/// Whether a URL names both a scheme and a host.
pub(super) fn is_url_with_host(s: &str) -> bool {
    let host = |rest: &str| {
        rest.strip_prefix("//")
            .is_some_and(|after| !after.is_empty() && !after.starts_with(['/', '?']))
    };
    is_request_uri(s)
        && split_scheme(s).is_some_and(|(scheme, rest)| !scheme.is_empty() && host(rest))
}

/// `scheme` and what follows its colon; no scheme when another character is first.
fn split_scheme(s: &str) -> Option<(&str, &str)> {
    for (at, c) in s.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return None,
            ':' => return Some((&s[..at], &s[at + 1..])),
            _ => break,
        }
    }
    Some(("", s))
}

fn is_authority(authority: &str) -> bool {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user_ok = user
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c))
        && escapes_are_whole(user);
    let (name, port) = match host.strip_prefix('[') {
        Some(literal) => match literal.split_once(']') {
            Some((name, after)) => (name, after),
            None => return false,
        },
        None => host.find(':').map_or((host, ""), |at| {
            host.split_at(host.rfind(':').unwrap_or(at))
        }),
    };
    let port_ok = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    let name_ok = name.chars().all(|c| {
        !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c)
    });
    user_ok && port_ok && name_ok && escapes_are_whole(name)
}

fn escapes_are_whole(s: &str) -> bool {
    s.split('%').skip(1).all(|after| {
        after
            .as_bytes()
            .get(..2)
            .is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    })
}

/// `user@host`, alone or as `Some Name <user@host>`.
fn is_email(s: &str) -> bool {
    let s = s.trim();
    match s.strip_suffix('>') {
        Some(open) => open
            .rsplit_once('<')
            .is_some_and(|(name, address)| is_display_name(name.trim()) && is_addr_spec(address)),
        None => is_addr_spec(s),
    }
}

fn is_display_name(name: &str) -> bool {
    let quoted = name.len() >= 2 && name.starts_with('"') && name.ends_with('"');
    quoted
        || name
            .split_ascii_whitespace()
            .all(|word| word.chars().all(|c| is_atom_char(c) || c == '.'))
}

fn is_addr_spec(address: &str) -> bool {
    let Some((local, domain)) = address.rsplit_once('@') else {
        return false;
    };
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain
        .strip_prefix('[')
        .and_then(|d| d.strip_suffix(']'))
        .is_some_and(is_ip);
    (quoted || is_dot_atom(local)) && (literal || is_dot_atom(domain))
}

fn is_dot_atom(s: &str) -> bool {
    s.split('.')
        .all(|atom| !atom.is_empty() && atom.chars().all(is_atom_char))
}

fn is_atom_char(c: char) -> bool {
    !c.is_ascii() || c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c)
}

/// One label with at most a dash in second place, or several ending in a name of letters, as in the
/// pattern of Kubernetes.
fn is_hostname(s: &str) -> bool {
    let parts: Vec<&str> = s.split('.').collect();
    if s.len() > 255 || parts.iter().any(|p| p.len() > 63) {
        return false;
    }
    match parts.as_slice() {
        [single] => is_single_label(single),
        [labels @ .., last] => {
            let letters = last
                .chars()
                .all(|c| c.is_ascii_alphabetic() || is_letter(c));
            letters
                && (2..=63).contains(&last.chars().count())
                && labels.iter().all(|l| is_inner_label(l))
        }
        [] => false,
    }
}

fn is_single_label(label: &str) -> bool {
    let mut chars = label.chars();
    chars.next().is_some_and(is_host_char) && {
        let rest = chars.as_str();
        rest.strip_prefix('-')
            .unwrap_or(rest)
            .chars()
            .all(is_host_char)
    }
}

fn is_inner_label(label: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(is_host_char);
    ends(label.chars().next())
        && ends(label.chars().next_back())
        && label.chars().all(|c| c == '-' || is_host_char(c))
}

fn is_host_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || is_letter(c) || SYMBOL.is_match(c.encode_utf8(&mut [0; 4]))
}

fn is_letter(c: char) -> bool {
    LETTER.is_match(c.encode_utf8(&mut [0; 4]))
}

/// An address; leading zeros in its decimal parts are tolerated.
fn is_ip(s: &str) -> bool {
    if s.contains(':') {
        s.parse::<Ipv6Addr>().is_ok()
    } else {
        is_ipv4(s)
    }
}

fn is_ipv4(s: &str) -> bool {
    let parts: Vec<&str> = s.split('.').collect();
    parts.len() == 4 && parts.iter().all(|p| is_number_up_to(p, 255))
}

fn is_cidr(s: &str) -> bool {
    s.split_once('/').is_some_and(|(ip, bits)| {
        is_ip(ip) && is_number_up_to(bits, if ip.contains(':') { 128 } else { 32 })
    })
}

fn is_number_up_to(digits: &str, max: u32) -> bool {
    !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && digits.parse::<u32>().is_ok_and(|n| n <= max)
}

/// Six, eight or twenty octets in pairs or quads of hexadecimal digits.
fn is_mac(s: &str) -> bool {
    let (separator, width) = match s.as_bytes().get(2) {
        Some(b':') => (':', 2),
        Some(b'-') => ('-', 2),
        _ => ('.', 4),
    };
    let groups: Vec<&str> = s.split(separator).collect();
    matches!(groups.len() * width / 2, 6 | 8 | 20)
        && groups.iter().all(|g| g.len() == width && is_hex(g))
}

/// The string without white space and dashes.
fn bare(s: &str) -> Vec<u8> {
    s.bytes().filter(|b| !b"\t\n\x0C\r -".contains(b)).collect()
}

fn is_isbn10(s: &str) -> bool {
    let s = bare(s);
    let digit = |(i, b): (usize, &u8)| match b {
        b'0'..=b'9' => Some(u32::from(b - b'0')),
        b'X' if i == 9 => Some(10),
        _ => None,
    };
    let digits: Option<Vec<u32>> = s.iter().enumerate().map(digit).collect();
    digits.is_some_and(|d| {
        d.len() == 10 && d.iter().zip(1..).map(|(d, weight)| d * weight).sum::<u32>() % 11 == 0
    })
}

fn is_isbn13(s: &str) -> bool {
    let s = bare(s);
    let sum = || {
        s.iter()
            .zip([1, 3].iter().cycle())
            .map(|(b, weight)| u32::from(b - b'0') * weight)
            .sum::<u32>()
    };
    s.len() == 13 && s.iter().all(u8::is_ascii_digit) && sum() % 10 == 0
}

/// Known issuers only, and the digits must pass Luhn's check.
fn is_credit_card(s: &str) -> bool {
    let digits: String = s.chars().filter(char::is_ascii_digit).collect();
    let luhn = |(i, b): (usize, u8)| {
        let d = u32::from(b - b'0') * if i % 2 == 1 { 2 } else { 1 };
        if d > 9 { d - 9 } else { d }
    };
    CREDIT_CARD.is_match(&digits)
        && digits.bytes().rev().enumerate().map(luhn).sum::<u32>() % 10 == 0
}

fn is_date(s: &str) -> bool {
    let b = s.as_bytes();
    let shaped = b.len() == 10
        && b.iter().enumerate().all(|(i, c)| {
            if i == 4 || i == 7 {
                *c == b'-'
            } else {
                c.is_ascii_digit()
            }
        });
    let number = |range: std::ops::Range<usize>| s[range].parse().unwrap_or(-1);
    shaped
        && i8::try_from(number(5..7))
            .and_then(|m| Ok((m, i8::try_from(number(8..10))?)))
            .is_ok_and(|(m, d)| Date::new(number(0..4), m, d).is_ok())
}

fn is_date_time(s: &str) -> bool {
    let lower = s.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    is_date(date)
        && TIME_OF_DAY
            .captures(time)
            .is_some_and(|c| &c[1] <= "23" && &c[2] <= "59" && &c[3] <= "59")
}

/// Go's durations, and numbers with names of units anywhere in the string.
fn is_duration(s: &str) -> bool {
    GO_DURATION.is_match(s)
        || LOOSE_DURATION
            .captures_iter(s)
            .any(|c| c[1].parse::<i64>().is_ok() && is_time_unit(&c[2].to_lowercase()))
}

fn is_time_unit(unit: &str) -> bool {
    const EXACT: [&str; 13] = [
        "ns", "us", "\u{b5}s", "ms", "s", "m", "h", "hr", "d", "w", "wk", "\u{3bc}s", "nano",
    ];
    const STARTS: [&str; 8] = [
        "nano", "micro", "milli", "sec", "min", "hour", "day", "week",
    ];
    EXACT.contains(&unit) || STARTS.iter().any(|start| unit.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_the_strings_of_kubernetes() {
        for (format, good, bad) in [
            (
                "date-time",
                vec!["2024-01-02T03:04:05Z", "2024-01-02t03:04:05.5+01:00"],
                vec!["2024-13-01", "2024-01-02T24:00:00Z", ""],
            ),
            (
                "date",
                vec!["2024-02-29"],
                vec!["2024/01/02", "2023-02-29", "2024-1-2", "é024-01-02"],
            ),
            (
                "duration",
                vec!["1h30m", "22 ns", "3 days", "0", "-.5s", "5.s", "2 weeks"],
                vec!["soon", "5", "1y"],
            ),
            (
                "ipv4",
                vec!["10.0.0.1", "010.1.1.1"],
                vec!["300.1.1.1", "10.0.0", "::1"],
            ),
            (
                "ipv6",
                vec!["::1", "fe80::1"],
                vec!["10.0.0.1", "fe80::1%eth0"],
            ),
            (
                "cidr",
                vec!["10.0.0.0/8", "::/0"],
                vec!["10.0.0.0", "10.0.0.0/33"],
            ),
            (
                "mac",
                vec!["01:23:45:67:89:ab", "0123.4567.89ab"],
                vec!["01:23", "01-23-45-67-89-zz", ""],
            ),
            (
                "email",
                vec!["a@b.c", "Some One <a@b>", "\"x y\"@b.c"],
                vec!["nobody", "@b", "a b@c", "a@"],
            ),
            (
                "uri",
                vec!["http://a.b/c?d", "/a/b", "mailto:x", "http://[::1]:80/"],
                vec!["not a uri", "", "a/b", "http://a b/", "/%zz"],
            ),
            (
                "hostname",
                vec!["a.example.com", "a-b", "x1"],
                vec!["my-host", "a..com", "a.b.c1", "-a", "a_b.com"],
            ),
            (
                "uuid",
                vec![
                    "123e4567-e89b-12d3-a456-426614174000",
                    "123E4567E89B12D3A456426614174000",
                ],
                vec!["abcd"],
            ),
            (
                "uuid4",
                vec!["123e4567-e89b-42d3-a456-426614174000"],
                vec!["123e4567-e89b-12d3-a456-426614174000"],
            ),
            ("byte", vec!["YQ==", "YWJj"], vec!["***", "", "YQ="]),
            ("isbn10", vec!["0-321-75104-3"], vec!["0321751044"]),
            ("isbn13", vec!["978-0321751041"], vec!["9780321751042"]),
            ("isbn", vec!["0321751043", "978-0321751041"], vec!["1"]),
            (
                "creditcard",
                vec!["4111 1111 1111 1111"],
                vec!["4111 1111 1111 1112"],
            ),
            ("ssn", vec!["111-11-1111"], vec!["111111111"]),
            ("hexcolor", vec!["#FFF", "a1b2c3"], vec!["#ffff"]),
            ("rgbcolor", vec!["rgb(255, 0,12)"], vec!["rgb(256,0,0)"]),
            ("k8s-short-name", vec!["a-b"], vec!["a.b", "A"]),
            ("k8s-long-name", vec!["a.b-c"], vec!["a..b"]),
            (
                "bsonobjectid",
                vec!["507f1f77bcf86cd799439011"],
                vec!["507f"],
            ),
            ("password", vec!["", "x"], vec![]),
        ] {
            let check = find(format).expect("the format is known");
            good.iter()
                .for_each(|s| assert!(check(s), "{format} takes {s:?}"));
            bad.iter()
                .for_each(|s| assert!(!check(s), "{format} refuses {s:?}"));
        }
        assert!(find("license-plate").is_none());
    }

    #[test]
    fn url_with_host_needs_both() {
        assert!(is_url_with_host("https://github.com/x"));
        for s in ["/x", "mailto:a", "https:///x", "yes please"] {
            assert!(!is_url_with_host(s), "{s}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_format_panics(s in ".{0,40}") {
            FORMATS.iter().for_each(|(_, check)| { check(&s); });
        }
    }
}
