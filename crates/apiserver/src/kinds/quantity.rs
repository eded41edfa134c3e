//! Amounts of resources in rules: compared, added, and printed in messages.
//! In: the text or number of a field. Out: something to calculate with.
//! Guarantees: equal amounts are equal however they are written.

use std::{cmp::Ordering, fmt};

use serde_json::Value;

use crate::types::{self, Amount};

/// Fractions of one unit that an amount can be printed in.
const NANOS: i128 = 1_000_000_000;
const MILLI: i128 = NANOS / 1000;

/// An amount of some resource, which prints in its canonical form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantity(Amount);

impl Quantity {
    /// None of it.
    pub(crate) const ZERO: Self = Self(Amount::ZERO);

    /// Reads a field: a string or a bare number.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(s) => Self::parse(s),
            Value::Number(n) => Self::parse(&n.to_string()),
            _ => None,
        }
    }

    /// Reads the text of an amount.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        types::Quantity::parse(text)
            .ok()
            .map(|quantity| Self(quantity.amount()))
    }

    /// Rounded up to the next thousandth.
    pub(crate) fn rounded_up_to_milli(self) -> Self {
        self.with(ceil_div(self.nanos(), MILLI).saturating_mul(MILLI))
    }

    /// Whether it is a whole number of units, printed in thousandths.
    pub(crate) fn is_whole(self) -> bool {
        ceil_div(self.nanos(), MILLI) % 1000 == 0
    }

    /// Rounded up to whole units.
    pub(crate) fn value(self) -> i64 {
        whole(ceil_div(self.nanos(), NANOS))
    }

    /// Rounded up to thousandths.
    pub(crate) fn milli_value(self) -> i64 {
        whole(ceil_div(self.nanos(), MILLI))
    }

    /// -1, 0 or 1.
    pub(crate) fn sign(self) -> i8 {
        match self.nanos().cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        self.with(self.nanos().saturating_add(other.nanos()))
    }

    /// Whether this is a multiple of `other`, which is not zero.
    pub(crate) fn is_multiple_of(self, other: Self) -> bool {
        other.nanos() != 0 && self.nanos() % other.nanos() == 0
    }

    fn nanos(self) -> i128 {
        self.0.nanos
    }

    /// So much, or the largest amount there is, written in the same way.
    fn with(mut self, nanos: i128) -> Self {
        self.0.nanos = nanos.clamp(-Amount::MAX_NANOS, Amount::MAX_NANOS);
        self
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos() == other.nanos()
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos().cmp(&other.nanos())
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is too large for the type is cut.
fn whole(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount > 0 { i64::MAX } else { i64::MIN })
}

fn ceil_div(a: i128, b: i128) -> i128 {
    let quotient = a / b;
    if a % b != 0 && a > 0 {
        quotient + 1
    } else {
        quotient
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_printed_in_canonical_form() {
        let cases = [
            (json!("1000m"), "1"),
            (json!("1.5Gi"), "1536Mi"),
            (json!(0.5), "500m"),
            (json!("1e9"), "1e9"),
            (json!("1000"), "1k"),
            (json!("0.5Ki"), "512"),
            (json!(-1), "-1"),
            (json!("+2"), "2"),
            (json!("1.500"), "1500m"),
        ];
        for (written, printed) in cases {
            assert_eq!(
                Quantity::of(&written).map(|q| q.to_string()).as_deref(),
                Some(printed),
                "{written}"
            );
        }
        assert!(
            [json!("ten"), json!(""), json!(true), json!(null)]
                .iter()
                .all(|value| Quantity::of(value).is_none())
        );
    }

    #[test]
    fn amounts_compare_by_value() {
        let q = |s| Quantity::parse(s).expect("an amount");
        assert_eq!(q("2"), q("2000m"));
        assert!(q("1Gi") > q("1G") && q("999m") < q("1"));
        assert!(q("2").is_whole() && !q("1500m").is_whole());
        assert_eq!(q("1.0001").rounded_up_to_milli(), q("1001m"));
        assert_eq!(q("1500m").plus(q("1500m")), q("3"));
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("2500u").milli_value(), 3);
        assert_eq!(q("-1Gi").value(), -1_073_741_824);
        assert_eq!(q("99999999999999999999E").value(), i64::MAX);
        assert_eq!(q("-1").sign(), -1);
    }

    /// Rounding used to overflow, and a message showed a negative amount.
    #[test]
    fn amounts_beyond_the_largest_are_the_largest() {
        let q = |s| Quantity::parse(s).expect("an amount");
        let most = q("9223372036854775807E");
        assert_eq!(most, q("99999999999999999999E"));
        assert_eq!(most.rounded_up_to_milli(), most);
        assert_eq!(most.plus(most), most);
        assert_eq!(most.sign(), 1);
        assert_eq!(most.value(), i64::MAX);
        assert_eq!(most.to_string(), "170141183460469231731687303715");
        let least = q("-9223372036854775807E");
        assert_eq!(least.plus(least), least);
        assert_eq!(
            least.rounded_up_to_milli().to_string(),
            "-170141183460469231731687303715"
        );
    }
}
