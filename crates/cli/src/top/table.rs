//! The plain table, for pipes and `--once`.

use super::numbers::{Numbers, duration, number};

/// The caches that are shown: those with the most objects.
const CACHES_MAX: usize = 8;

/// The table.
pub(super) fn text(numbers: &Numbers) -> String {
    let mut text = format!(
        "{:42} {:>8} {:>6} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7}\n",
        "CONTROLLER",
        "RATE/S",
        "READY",
        "IN FLIGHT",
        "DELAYED",
        "WAIT P50",
        "P99",
        "WORK P50",
        "P99",
        "ERRORS"
    );
    for row in numbers.controllers() {
        text.push_str(&format!(
            "{:42} {:>8.1} {:>6} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7}\n",
            row.name,
            row.rate,
            number(row.ready),
            number(row.in_flight),
            number(row.delayed),
            duration(row.wait[0]),
            duration(row.wait[1]),
            duration(row.work[0]),
            duration(row.work[1]),
            row.errors,
        ));
    }
    text.push_str(&format!(
        "\n{:42} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8}\n",
        "CACHE", "OBJECTS", "REVISION", "BACKLOG", "LAG", "RELISTS", "WATCHES"
    ));
    for row in numbers.caches().into_iter().take(CACHES_MAX) {
        text.push_str(&format!(
            "{:42} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8}\n",
            row.kind,
            row.objects,
            number(row.version),
            row.backlog,
            duration(Some(row.lag_us)),
            row.relists,
            row.watches,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::numbers::tests::numbers;

    #[test]
    fn table_has_a_row_per_controller_and_cache() {
        let text = text(&numbers());
        let words = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start));
            let words: Vec<_> = line.expect("a line").split_whitespace().collect();
            words.join(" ")
        };
        assert_eq!(
            words("hero"),
            "hero 0.1 3 1 2 1.5 ms 1.5 ms 1.017 s 1.017 s 1"
        );
        assert_eq!(words("Pod"), "Pod 7 42 0 0.0 ms 1 2");
    }
}
