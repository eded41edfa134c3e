//! The cost of calls, estimated and actual.
//! In: the sizes of arguments, possible or actual. Out: a range of costs and sizes, or the cost.
//! Guarantees: the rules are kube-apiserver's, so an expression is rejected here if and only if it
//! is rejected there.

use crate::{types::Type, value::Value};

/// Reading a text once costs this much for each of its characters.
const PASS: f64 = 0.1;
/// Applying a regular expression costs this much for each of its characters.
const REGEX: f64 = 0.25;
/// Making a list.
pub(crate) const LIST: u64 = 10;
/// Making a map.
pub(crate) const MAP: u64 = 30;
/// Making a message.
pub(crate) const MESSAGE: u64 = 40;
/// Format names are checked by expressions of about this length.
const FORMAT_REGEX_MAX: f64 = 128.0;
/// The bytes of an address: four or sixteen.
const ADDRESS: Range = Range { min: 4, max: 16 };

/// From the least to the most something may cost or hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

impl Range {
    pub(crate) const ZERO: Self = Self::exactly(0);
    pub(crate) const UNKNOWN: Self = Self {
        min: 0,
        max: u64::MAX,
    };
    /// The neutral element of [`Range::or`].
    pub(crate) const NOTHING: Self = Self {
        min: u64::MAX,
        max: 0,
    };

    pub(crate) const fn exactly(n: u64) -> Self {
        Self { min: n, max: n }
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    pub(crate) const fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    pub(crate) fn by(self, factor: f64) -> Self {
        Self {
            min: scaled(self.min, factor),
            max: scaled(self.max, factor),
        }
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }
}

/// A number times a factor, rounded up, saturating.
fn scaled(n: u64, factor: f64) -> u64 {
    let product = (n as f64 * factor).ceil();
    if product >= u64::MAX as f64 {
        u64::MAX
    } else {
        product as u64
    }
}

/// The size and type of an argument.
#[derive(Clone, Debug)]
pub(crate) struct Argument {
    pub(crate) size: Range,
    /// The type and size of the items, if it is a list.
    pub(crate) item: Option<(Type, Range)>,
    /// Its value, if it is a whole number written in the expression.
    pub(crate) int: Option<i64>,
}

/// The estimated cost of a call, and the size of its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) cost: Range,
    pub(crate) size: Option<Range>,
}

/// The cost model of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CostModel {
    /// A constant 1.
    Unit,
    /// A constant.
    Fixed(u64),
    /// Reading the first argument once.
    Pass,
    /// Reading the first argument once; the result is as large.
    PassAlong,
    /// Reading the first argument twice.
    TwoPasses,
    /// `startsWith` and `endsWith`.
    Affix,
    /// `bytes(string)`.
    ToBytes,
    /// `string(bytes)`.
    ToText,
    /// `strings.quote`.
    Quote,
    /// `in` a list.
    InList,
    /// Comparing two values that may be large.
    Compare,
    /// Concatenation of two strings or two byte strings.
    Concat,
    /// Joining two lists.
    Append,
    /// `matches`.
    Match,
    /// `contains` of a text.
    Contains,
    /// `find` and `findAll`.
    Find,
    /// Functions that read every item of a list: `sum`, `indexOf`, …
    EveryItem,
    /// `replace`.
    Replace,
    /// `split`.
    Split,
    /// `join`.
    Join,
    /// Whether a network holds an address; `parsed` when that is given as text.
    HoldsAddress {
        /// Whether the address is given as text.
        text: bool,
    },
    /// Whether a network holds another.
    HoldsNetwork {
        /// Whether the other is given as text.
        text: bool,
    },
    /// Checking a text against a named format.
    Validate,
    /// `slice`.
    Slice,
    /// `lists.range`.
    Count,
    /// A list as long as the first argument.
    Reorder,
    /// `flatten`.
    Flatten,
    /// Comparing all items of the list at this place with each other.
    AllPairs {
        /// Which argument.
        of: usize,
        /// Whether its items are strings or bytes by declaration.
        texts: bool,
    },
    /// Looking for all items of one list in another, this many times.
    Sets(u8),
}

fn smaller(a: u64, b: u64) -> u64 {
    a.min(b)
}

impl CostModel {
    /// The estimated cost of a call.
    pub(crate) fn estimate(self, args: &[Argument]) -> Estimate {
        let size = |i: usize| args.get(i).map_or(Range::UNKNOWN, |arg| arg.size);
        let int = |i: usize| args.get(i).and_then(|arg| arg.int);
        let only = |cost| Estimate { cost, size: None };
        let sized = |cost, size| Estimate {
            cost,
            size: Some(size),
        };
        let first = size(0);
        match self {
            Self::Unit => only(Range::exactly(1)),
            Self::Fixed(cost) => only(Range::exactly(cost)),
            Self::Pass => only(first.by(PASS)),
            Self::PassAlong => sized(first.by(PASS), first),
            Self::TwoPasses => only(first.by(2.0 * PASS)),
            Self::Affix => only(size(1).by(PASS)),
            Self::ToBytes => sized(
                first.by(PASS),
                Range {
                    min: first.min,
                    max: first.max.wrapping_mul(4),
                },
            ),
            Self::ToText => sized(
                first.by(PASS),
                Range {
                    min: first.min / 4,
                    max: first.max,
                },
            ),
            Self::Quote => sized(
                first.by(PASS),
                Range {
                    min: first.min.wrapping_add(2),
                    max: first.max.wrapping_mul(2).wrapping_add(2),
                },
            ),
            Self::InList => only(size(1)),
            Self::Compare => {
                let max = smaller(first.max, size(1).max);
                only(
                    Range {
                        min: u64::from(max > 0),
                        max,
                    }
                    .by(PASS),
                )
            }
            Self::Concat => sized(first.plus(size(1)).by(PASS), first.plus(size(1))),
            Self::Append => sized(Range::exactly(1), first.plus(size(1))),
            Self::Match => only(
                first
                    .plus(Range::exactly(1))
                    .by(PASS)
                    .times(size(1).by(REGEX)),
            ),
            Self::Contains => only(first.by(PASS).times(size(1).by(PASS))),
            Self::Find => sized(
                first
                    .plus(Range::exactly(1))
                    .by(PASS)
                    .times(size(1).by(REGEX)),
                Range {
                    min: 0,
                    max: first.max,
                },
            ),
            Self::EveryItem => only(match args.first().and_then(|arg| arg.item.as_ref()) {
                Some((Type::String | Type::Bytes, item)) => {
                    first.times(Range::exactly(1).plus(item.by(PASS)))
                }
                Some(_) => first,
                None => first.by(PASS),
            }),
            Self::Replace => sized(first.by(2.0 * PASS), replaced(first, size(1), size(2))),
            Self::Split => {
                let max = int(2).map_or(first.max, |n| n as u64);
                sized(first.by(2.0 * PASS), Range { min: 0, max })
            }
            Self::Join => {
                let mut length = args
                    .first()
                    .and_then(|arg| arg.item.as_ref())
                    .map_or(Range::ZERO, |(_, item)| first.times(*item));
                if args.len() > 1 {
                    let gaps = Range {
                        min: first.min.saturating_sub(1),
                        max: first.max.saturating_sub(1),
                    };
                    length = length.plus(size(1).times(gaps));
                }
                sized(length.by(PASS), length)
            }
            Self::HoldsAddress { text } => {
                only(ADDRESS.plus(ADDRESS).by(PASS).plus(parsing(text, size(1))))
            }
            Self::HoldsNetwork { text } => {
                let compared = ADDRESS
                    .plus(ADDRESS)
                    .by(PASS)
                    .plus(ADDRESS.by(PASS))
                    .plus(Range::exactly(1));
                only(compared.plus(parsing(text, size(1))))
            }
            Self::Validate => only(size(1).by(PASS).by(FORMAT_REGEX_MAX * REGEX)),
            Self::Slice => {
                let begin = int(1).map_or(0, |n| u64::try_from(n).unwrap_or(0));
                let end = int(2).map_or(first.max, |n| u64::try_from(n).unwrap_or(0));
                listed(1.0, Range::exactly(end.wrapping_sub(begin)))
            }
            Self::Count => listed(
                1.0,
                Range::exactly(int(0).map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(0))),
            ),
            Self::Reorder => listed(1.0, first),
            Self::Flatten => {
                let depth = if args.len() > 1 {
                    int(1).map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(0))
                } else {
                    1
                };
                listed(depth as f64, first)
            }
            Self::AllPairs { of, texts } => listed(pair_factor(texts), size(of).times(size(of))),
            Self::Sets(times) => only(
                first
                    .times(size(1))
                    .by(f64::from(times))
                    .plus(Range::exactly(1)),
            ),
        }
    }

    /// The cost model where only the name of the function is known: most of the language's own
    /// functions then cost one.
    pub(crate) fn by_name(self) -> Self {
        match self {
            Self::HoldsAddress { .. } => Self::HoldsAddress { text: false },
            Self::HoldsNetwork { .. } => Self::HoldsNetwork { text: false },
            Self::Pass
            | Self::PassAlong
            | Self::TwoPasses
            | Self::EveryItem
            | Self::Replace
            | Self::Split
            | Self::Join
            | Self::Find
            | Self::Fixed(_)
            | Self::Validate => self,
            _ => Self::Unit,
        }
    }

    /// The actual cost of a call.
    pub(crate) fn actual(self, args: &[Value<'_>], result: &Value<'_>) -> u64 {
        let size = |i: usize| args.get(i).map_or(1, Value::size);
        let pass = |n: u64, factor: f64| (n as f64 * factor).ceil() as u64;
        // Go turns a negative number into a huge one.
        let listed =
            |n: u64, factor: f64| ((n as f64 * factor) as i128 as u64).wrapping_add(1 + LIST);
        let pattern = || pass(1 + size(0), PASS) * pass(size(1), REGEX);
        match self {
            Self::Unit | Self::Append => 1,
            Self::Fixed(cost) => cost,
            Self::Pass
            | Self::PassAlong
            | Self::Affix
            | Self::ToBytes
            | Self::ToText
            | Self::Quote => pass(size(0), PASS),
            Self::TwoPasses | Self::Replace | Self::Split => pass(size(0), 2.0 * PASS),
            Self::InList => size(1),
            Self::Compare => pass(smaller(size(0), size(1)), PASS),
            Self::Concat => pass(size(0) + size(1), PASS),
            Self::Match | Self::Find => pattern(),
            Self::Contains => pass(size(0), PASS) * pass(size(1), PASS),
            Self::EveryItem => args.first().map_or(0, Value::traversal_cost),
            Self::Join => pass(result.size(), 2.0 * PASS),
            Self::HoldsAddress { text } => {
                pass(2 * size(0), PASS) + if text { pass(size(1), PASS) } else { 0 }
            }
            Self::HoldsNetwork { text } => {
                pass(2 * size(0), PASS)
                    + pass(size(0), PASS)
                    + 1
                    + if text { pass(size(1), PASS) } else { 0 }
            }
            Self::Validate => {
                let regex = args
                    .first()
                    .map_or(0, |format| format.opaque().map_or(0, |o| o.regex_size()));
                pass(1 + size(1), PASS) * pass(regex, REGEX)
            }
            Self::Slice | Self::Count | Self::Reorder => listed(result.size(), 1.0),
            Self::Flatten => {
                let depth = match args.get(1) {
                    Some(Value::Int(depth)) => *depth as f64,
                    _ => 1.0,
                };
                listed(size(0), depth)
            }
            Self::AllPairs { of, .. } => listed(
                size(of).saturating_mul(size(of)),
                pair_factor(args.get(of).is_some_and(Value::lists_texts)),
            ),
            Self::Sets(times) => 1 + size(0).saturating_mul(size(1)).saturating_mul(times.into()),
        }
    }
}

/// Comparing strings costs a little more than comparing numbers.
fn pair_factor(texts: bool) -> f64 {
    if texts { 2.0 + PASS } else { 2.0 }
}

fn listed(factor: f64, size: Range) -> Estimate {
    Estimate {
        cost: size.by(factor).plus(Range::exactly(1 + LIST)),
        size: Some(size),
    }
}

fn parsing(text: bool, size: Range) -> Range {
    if text { size.by(PASS) } else { Range::ZERO }
}

/// How long a text may be after all occurrences of another were replaced.
fn replaced(text: Range, old: Range, new: Range) -> Range {
    let ceil = |n: u64, by: u64| (n as f64 / by as f64).ceil() as u64;
    let mut count = Range::ZERO;
    let mut kept = Range::ZERO;
    if old.min == 0 {
        // An empty string can be replaced everywhere: around every character.
        (count.max, kept.max) = (text.max.saturating_add(1), text.max);
    } else if new.max <= old.min {
        kept.max = text.max;
    } else {
        count.max = ceil(text.max, old.min);
    }
    if old.max == 0 {
        (count.min, kept.min) = (text.min.saturating_add(1), text.min);
    } else if old.max <= new.min {
        kept.min = text.min;
    } else {
        count.min = ceil(text.min, old.max);
    }
    count.times(new).plus(kept)
}
