//! Sizes of volumes, as the schema of the spec permits them.

/// The bytes of a size such as `5Gi` or `10G`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor: u64 = match suffix {
        "" => 1,
        "k" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_their_suffix() {
        for (text, expected) in [
            ("1024", Some(1024)),
            ("2k", Some(2000)),
            ("1Gi", Some(1 << 30)),
            ("3Ti", Some(3 << 40)),
            ("1Xi", None),
            ("Gi", None),
            ("99999999999Ti", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
