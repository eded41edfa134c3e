//! Semantic versions.
//! In: strings. Out: versions that can be compared, and their numbers.
//! Guarantees: build metadata is ignored when versions are compared.

use std::{any::Any, cmp::Ordering};

use crate::{
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::{Functions, Run},
    types::Type,
    value::{Opaque, Value},
};

use super::text;

fn semver_type() -> Type {
    Type::object("kubernetes.Semver")
}

pub(super) fn declare(f: &mut Functions) {
    use Type::{Bool, Int, String};
    f.global(
        "semver",
        "string_to_semver",
        &[String],
        semver_type(),
        CostModel::Pass,
        |_, args| read(args).map(Value::of),
    );
    f.global(
        "semver",
        "string_bool_to_semver",
        &[String, Bool],
        semver_type(),
        CostModel::Pass,
        |_, args| read(args).map(Value::of),
    );
    f.global(
        "isSemver",
        "is_semver_string",
        &[String],
        Bool,
        CostModel::Pass,
        |_, args| Ok(Value::Bool(read(args).is_ok())),
    );
    f.global(
        "isSemver",
        "is_semver_string_bool",
        &[String, Bool],
        Bool,
        CostModel::Pass,
        |_, args| Ok(Value::Bool(read(args).is_ok())),
    );
    let pair = [semver_type(), semver_type()];
    f.member(
        "isGreaterThan",
        "semver_is_greater_than",
        &pair,
        Bool,
        CostModel::Unit,
        |_, args| Ok(Value::Bool(order(args)?.is_gt())),
    );
    f.member(
        "isLessThan",
        "semver_is_less_than",
        &pair,
        Bool,
        CostModel::Unit,
        |_, args| Ok(Value::Bool(order(args)?.is_lt())),
    );
    f.member(
        "compareTo",
        "semver_compare_to",
        &pair,
        Int,
        CostModel::Unit,
        |_, args| Ok(Value::Int(order(args)? as i64)),
    );
    let numbers: [(&'static str, &'static str, Run); 3] = [
        ("major", "semver_major", |m, args| number(m, args, 0)),
        ("minor", "semver_minor", |m, args| number(m, args, 1)),
        ("patch", "semver_patch", |m, args| number(m, args, 2)),
    ];
    for (name, id, run) in numbers {
        f.member(name, id, &[semver_type()], Int, CostModel::Unit, run);
    }
}

fn number<'a>(_: &mut Meter, args: &[Value<'a>], which: usize) -> Result<Value<'a>, Failure> {
    Ok(Value::Int(version(args, 0)?.numbers[which] as i64))
}

fn version<'v>(args: &'v [Value<'_>], at: usize) -> Result<&'v Semver, Failure> {
    args.get(at)
        .and_then(Value::downcast)
        .ok_or_else(Failure::no_such_overload)
}

fn order(args: &[Value<'_>]) -> Result<Ordering, Failure> {
    Ok(version(args, 0)?.compare(version(args, 1)?))
}

fn read(args: &[Value<'_>]) -> Result<Semver, Failure> {
    let text = text(args, 0)?;
    match args.get(1) {
        Some(Value::Bool(true)) => Semver::parse(&normal(text)?),
        _ => Semver::parse(text),
    }
}

/// Normalizes a version: adds missing numbers and drops a prefix `v` and leading zeros: `v1.02` is
/// `1.2.0`.
fn normal(text: &str) -> Result<String, Failure> {
    let mut parts: Vec<String> = text
        .strip_prefix('v')
        .unwrap_or(text)
        .splitn(3, '.')
        .map(str::to_owned)
        .collect();
    for part in parts.iter_mut().filter(|part| part.len() > 1) {
        let trimmed = part.trim_start_matches('0');
        *part = if trimmed.starts_with(|c: char| c.is_ascii_digit()) {
            trimmed.to_owned()
        } else {
            format!("0{trimmed}")
        };
    }
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err(Failure::new(
            "short version cannot contain PreRelease/Build meta data",
        ));
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Identifier {
    Number(u64),
    Text(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Semver {
    numbers: [u64; 3],
    pre: Vec<Identifier>,
}

impl Opaque for Semver {
    fn type_of(&self) -> Type {
        semver_type()
    }

    fn equals(&self, other: &dyn Opaque) -> Option<bool> {
        other
            .as_any()
            .downcast_ref::<Self>()
            .map(|other| self.compare(other).is_eq())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Semver {
    fn parse(text: &str) -> Result<Self, Failure> {
        if text.is_empty() {
            return Err(Failure::new("Version string empty"));
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts.as_slice() else {
            return Err(Failure::new("No Major.Minor.Patch elements found"));
        };
        let (rest, build) = rest
            .split_once('+')
            .map_or((*rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) = rest
            .split_once('-')
            .map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let numbers = [
            numeric(major, "Major")?,
            numeric(minor, "Minor")?,
            numeric(patch, "Patch")?,
        ];
        let pre = pre.map_or_else(
            || Ok(Vec::new()),
            |pre| pre.split('.').map(identifier).collect(),
        )?;
        for part in build.into_iter().flat_map(|build| build.split('.')) {
            if part.is_empty() {
                return Err(Failure::new("Build meta data is empty"));
            }
            if !part.bytes().all(is_version_byte) {
                return Err(Failure::new(format!(
                    "Invalid character(s) found in build meta data \"{part}\""
                )));
            }
        }
        Ok(Self { numbers, pre })
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => self.pre.iter().map(rank).cmp(other.pre.iter().map(rank)),
            }
        })
    }
}

/// Numbers are before strings.
fn rank(identifier: &Identifier) -> (bool, u64, &str) {
    match identifier {
        Identifier::Number(n) => (false, *n, ""),
        Identifier::Text(text) => (true, 0, text),
    }
}

fn is_version_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'-'
}

fn numeric(text: &str, what: &str) -> Result<u64, Failure> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Failure::new(format!(
            "Invalid character(s) found in {} number \"{text}\"",
            what.to_lowercase()
        )));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(Failure::new(format!(
            "{what} number must not contain leading zeroes \"{text}\""
        )));
    }
    text.parse().map_err(|_| {
        Failure::new(format!(
            "strconv.ParseUint: parsing \"{text}\": value out of range"
        ))
    })
}

fn identifier(text: &str) -> Result<Identifier, Failure> {
    if text.is_empty() {
        return Err(Failure::new("Prerelease is empty"));
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(Failure::new(format!(
                "Numeric PreRelease version must not contain leading zeroes \"{text}\""
            )));
        }
        return text
            .parse()
            .map(Identifier::Number)
            .map_err(|_| Failure::new("Prerelease number out of range"));
    }
    if !text.bytes().all(is_version_byte) {
        return Err(Failure::new(format!(
            "Invalid character(s) found in prerelease \"{text}\""
        )));
    }
    Ok(Identifier::Text(text.to_owned()))
}
