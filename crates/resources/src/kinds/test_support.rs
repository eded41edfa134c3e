//! Writes against one strategy, as the write path would run them, for tests.

use bellerophon_apimachinery::{field::FieldError, time::Time};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::Strategy;

/// The time of every write.
pub(crate) const NOW: &str = "2026-01-02T03:04:05Z";

/// An object from its JSON.
pub(crate) fn object(json: Value) -> Object {
    let Value::Object(map) = json else {
        panic!("an object is a JSON map")
    };
    Object::from_map(map).expect("metadata written for the test")
}

/// The object as it would be stored, and its errors.
pub(crate) fn create(strategy: &Strategy, json: Value) -> (Object, Vec<String>) {
    let mut new = object(json);
    (strategy.default)(&mut new);
    (strategy.prepare_create)(&mut new);
    (strategy.stamp)(&mut new, None, now());
    let mut out = Vec::new();
    (strategy.validate)(&new, &mut out);
    (strategy.validate_create)(&new, &mut out);
    (new, lines(&out))
}

/// The updated object and the errors of the update.
pub(crate) fn update(strategy: &Strategy, old: &Object, json: Value) -> (Object, Vec<String>) {
    let mut new = object(json);
    (strategy.default)(&mut new);
    (strategy.prepare_update)(&mut new, old);
    (strategy.stamp)(&mut new, Some(old), now());
    let mut out = Vec::new();
    (strategy.validate)(&new, &mut out);
    (strategy.validate_update)(&new, old, &mut out);
    (new, lines(&out))
}

/// The object after a status write and its errors.
pub(crate) fn update_status(
    strategy: &Strategy,
    old: &Object,
    json: Value,
) -> (Object, Vec<String>) {
    let mut new = object(json);
    (strategy.default)(&mut new);
    (strategy.prepare_status)(&mut new, old);
    (strategy.stamp)(&mut new, Some(old), now());
    let mut out = Vec::new();
    (strategy.validate_status)(&new, old, &mut out);
    (new, lines(&out))
}

/// Asserts that a create is rejected with these causes, each `field: message` or the start of it
/// when it ends in `…`.
pub(crate) fn refused(strategy: &Strategy, json: Value, expected: &[&str]) {
    let shown = json.to_string();
    let (_, errs) = create(strategy, json);
    assert_lines(&errs, expected, &shown);
}

/// Asserts causes as [`refused`] does.
pub(crate) fn assert_lines(errs: &[String], expected: &[&str], shown: &str) {
    let same = errs.len() == expected.len()
        && errs.iter().zip(expected).all(|(got, want)| {
            want.strip_suffix('…')
                .map_or(got == want, |start| got.starts_with(start))
        });
    assert!(same, "{shown}\n got: {errs:#?}\nwant: {expected:#?}");
}

fn now() -> Time {
    Time::parse(NOW).expect("a constant of this file")
}

fn lines(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}
