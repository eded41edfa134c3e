//! URLs.
//! In: strings. Out: URLs as Go parses them, and their components.
//! Guarantees: a URL is a request URI: absolute, or a path from the root.

use std::{any::Any, collections::BTreeMap, sync::Arc};

use crate::{
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::{Functions, Run},
    types::Type,
    value::{Key, Map, Opaque, Text, Value},
};

use super::{made, text};

fn url_type() -> Type {
    Type::object("kubernetes.URL")
}

pub(super) fn declare(f: &mut Functions) {
    f.global(
        "url",
        "string_to_url",
        &[Type::String],
        url_type(),
        CostModel::PassAlong,
        |_, args| {
            let text = text(args, 0)?;
            let parse_error = |problem: &str| {
                let quoted = serde_json::to_string(&**text).expect("a string can be written");
                Failure::new(format!(
                    "URL parse error during conversion from string: parse {quoted}: {problem}"
                ))
            };
            Url::parse(text)
                .map(Value::of)
                .map_err(|problem| parse_error(&problem))
        },
    );
    f.global(
        "isURL",
        "is_url_string",
        &[Type::String],
        Type::Bool,
        CostModel::Unit,
        |_, args| Ok(Value::Bool(Url::parse(text(args, 0)?).is_ok())),
    );
    let parts: [(&'static str, &'static str, Run); 5] = [
        ("getScheme", "url_get_scheme", |meter, args| {
            part(meter, args, |url| &url.scheme)
        }),
        ("getHost", "url_get_host", |meter, args| {
            part(meter, args, |url| &url.host)
        }),
        ("getHostname", "url_get_hostname", |meter, args| {
            part(meter, args, Url::hostname)
        }),
        ("getPort", "url_get_port", |meter, args| {
            part(meter, args, Url::port)
        }),
        ("getEscapedPath", "url_get_escaped_path", |meter, args| {
            part(meter, args, |url| &url.path)
        }),
    ];
    for (name, id, run) in parts {
        f.member(name, id, &[url_type()], Type::String, CostModel::Unit, run);
    }
    let query = Type::map(Type::String, Type::list(Type::String));
    f.member(
        "getQuery",
        "url_get_query",
        &[url_type()],
        query,
        CostModel::Unit,
        |meter, args| {
            let url = url(args)?;
            meter.allocate(url.query.len() * 2)?;
            let mut entries: BTreeMap<Key<'_>, Vec<Value<'_>>> = BTreeMap::new();
            for (name, value) in url.query_pairs() {
                meter.allocate_values(2)?;
                entries
                    .entry(Key::String(Text::Made(name.into())))
                    .or_default()
                    .push(Value::text(value));
            }
            let entries = entries
                .into_iter()
                .map(|(name, values)| (name, Value::list(values)))
                .collect();
            Ok(Value::Map(Map::Made(Arc::new(entries))))
        },
    );
}

fn url<'v>(args: &'v [Value<'_>]) -> Result<&'v Url, Failure> {
    args.first()
        .and_then(Value::downcast)
        .ok_or_else(Failure::no_such_overload)
}

fn part<'a>(
    meter: &mut Meter,
    args: &[Value<'a>],
    read: fn(&Url) -> &str,
) -> Result<Value<'a>, Failure> {
    made(meter, read(url(args)?))
}

/// A URL. The fragment is not kept: no function returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Url {
    /// As it was written, for comparing.
    text: String,
    scheme: String,
    host: String,
    /// Escaped.
    path: String,
    query: String,
}

impl Opaque for Url {
    fn type_of(&self) -> Type {
        url_type()
    }

    fn equals(&self, other: &dyn Opaque) -> Option<bool> {
        other
            .as_any()
            .downcast_ref::<Self>()
            .map(|other| self.text == other.text)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Url {
    fn parse(text: &str) -> Result<Self, String> {
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err("net/url: invalid control character in URL".into());
        }
        if text.is_empty() {
            return Err("empty url".into());
        }
        let (scheme, rest) = split_scheme(text)?;
        let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Self {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: String::new(),
            path: String::new(),
            query: query.to_owned(),
        };
        if !before_query.starts_with('/') {
            // Something like `mailto:a@b` has no parts.
            return if scheme.is_empty() {
                Err("invalid URI for request".into())
            } else {
                Ok(url)
            };
        }
        let path = match before_query
            .strip_prefix("//")
            .filter(|_| !scheme.is_empty())
        {
            None => before_query,
            Some(after) => {
                let end = after.find('/').unwrap_or(after.len());
                url.host = host(&after[..end])?;
                &after[end..]
            }
        };
        check_escapes(path)?;
        url.path = escaped_path(path);
        Ok(url)
    }

    fn hostname(&self) -> &str {
        match self
            .host
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
        {
            Some((name, _)) => name,
            None => self
                .host
                .split_once(':')
                .map_or(&self.host, |(name, _)| name),
        }
    }

    fn port(&self) -> &str {
        let after = self
            .host
            .rsplit_once(']')
            .map_or(self.host.as_str(), |(_, after)| after);
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }

    fn query_pairs(&self) -> Vec<(String, String)> {
        let pairs = self
            .query
            .split('&')
            .filter(|pair| !pair.is_empty() && !pair.contains(';'));
        pairs
            .filter_map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Some((
                    unescape(&name.replace('+', " "))?,
                    unescape(&value.replace('+', " "))?,
                ))
            })
            .collect()
    }
}

fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".into()),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    let first = text.split('/').next().unwrap_or_default();
    if first.contains(':') && !text.starts_with('/') {
        return Err("first path segment in URL cannot contain colon".into());
    }
    Ok(("", text))
}

fn host(authority: &str) -> Result<String, String> {
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    if let Some((user, _)) = authority.rsplit_once('@') {
        check_escapes(user)?;
        if user.contains(|c: char| !c.is_ascii_alphanumeric() && !"-._:~!$&'()*+,;=%@".contains(c))
        {
            return Err("net/url: invalid userinfo".into());
        }
    }
    if let Some(rest) = host.strip_prefix('[') {
        let Some((_, after)) = rest.rsplit_once(']') else {
            return Err("missing ']' in host".into());
        };
        check_port(after)?;
        return Ok(host.to_owned());
    }
    if let Some(at) = host.rfind(':') {
        check_port(&host[at..])?;
    }
    check_escapes(host)?;
    if let Some(c) = host.chars().find(|c| {
        c.is_ascii() && !c.is_ascii_alphanumeric() && !"-_.~!$&'()*+,;=:[]<>\"%".contains(*c)
    }) {
        return Err(format!("invalid character \"{c}\" in host name"));
    }
    Ok(host.to_owned())
}

fn check_port(port: &str) -> Result<(), String> {
    match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Ok(()),
        None if port.is_empty() => Ok(()),
        _ => Err(format!("invalid port \"{port}\" after host")),
    }
}

fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let escape: String = text[at..].chars().take(3).collect();
        if escape.len() < 3 || !escape[1..].bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("invalid URL escape \"{escape}\""));
        }
    }
    Ok(())
}

/// A path with everything escaped that must be.
fn escaped_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for b in path.bytes() {
        if b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@%!'()*[]".contains(&b) {
            out.push(b.into());
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

fn unescape(text: &str) -> Option<String> {
    check_escapes(text).ok()?;
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            out.push(u8::from_str_radix(&text[at + 1..at + 3], 16).ok()?);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}
