//! Label selectors in their text form, as in `labelSelector` parameters and `scale.status.selector`.
//!
//! In: text such as `app=web,tier in (a,b)`. Out: a [`Selector`]. Mirrors `labels.Parse`, without
//! the operators `<` and `>`.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// Parses a selector. The empty text selects everything.
///
/// # Errors
/// A message about the requirement that cannot be parsed.
pub(crate) fn parse(text: &str) -> Result<Selector, String> {
    let requirements = split_requirements(text)?;
    requirements.into_iter().map(parse_requirement).collect()
}

/// Splits at commas outside of parentheses.
fn split_requirements(text: &str) -> Result<Vec<&str>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut requirements = Vec::new();
    let mut start = 0;
    let mut in_values = false;
    for (position, character) in text.char_indices() {
        match character {
            '(' => in_values = true,
            ')' => in_values = false,
            ',' if !in_values => {
                requirements.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    if in_values {
        return Err(unparsable(&text[start..]));
    }
    requirements.push(&text[start..]);
    Ok(requirements)
}

fn parse_requirement(text: &str) -> Result<Expression, String> {
    let text = text.trim();
    if let Some(key) = text.strip_prefix('!') {
        return Ok(Expression::DoesNotExist(parse_key(key, text)?));
    }
    if let Some((key, values)) = text.strip_suffix(')').and_then(|it| it.split_once('(')) {
        let (key, operator) = key
            .trim_end()
            .rsplit_once(char::is_whitespace)
            .ok_or_else(|| unparsable(text))?;
        let key = parse_key(key, text)?;
        let values = parse_values(values, text)?;
        return match operator {
            "in" => Ok(Expression::In(key, values)),
            "notin" => Ok(Expression::NotIn(key, values)),
            _ => Err(unparsable(text)),
        };
    }
    if let Some((key, value)) = text.split_once("!=") {
        let key = parse_key(key, text)?;
        return Ok(Expression::NotEqual(key, parse_value(value, text)?));
    }
    if let Some((key, value)) = text.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        let key = parse_key(key, text)?;
        return Ok(Expression::Equal(key, parse_value(value, text)?));
    }
    Ok(Expression::Exists(parse_key(text, text)?))
}

fn parse_values(values: &str, requirement: &str) -> Result<BTreeSet<String>, String> {
    let values = values.split(',');
    values
        .map(|value| parse_value(value, requirement))
        .collect()
}

fn parse_key(key: &str, requirement: &str) -> Result<String, String> {
    let key = key.trim();
    let is_allowed = |c: char| is_name_character(c) || c == '/';
    if key.is_empty() || !key.chars().all(is_allowed) {
        return Err(unparsable(requirement));
    }
    Ok(key.to_owned())
}

fn parse_value(value: &str, requirement: &str) -> Result<String, String> {
    let value = value.trim();
    if !value.chars().all(is_name_character) {
        return Err(unparsable(requirement));
    }
    Ok(value.to_owned())
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.')
}

fn unparsable(requirement: &str) -> String {
    format!("unable to parse requirement: {:?}", requirement.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_parsed() {
        for (text, expected) in [
            ("", ""),
            ("app=web", "app=web"),
            ("app == web, tier!=a", "app=web,tier!=a"),
            ("a.b/c", "a.b/c"),
            ("!x", "!x"),
            ("app in (b, a),x notin (y)", "app in (a,b),x notin (y)"),
            ("app=", "app="),
        ] {
            let selector = parse(text).map(|selector| selector.to_string());
            assert_eq!(selector, Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for text in [
            "=a",
            ",",
            "a in (b",
            "a has (b)",
            "a b",
            "a=b=c",
            "a>1",
            "!",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
