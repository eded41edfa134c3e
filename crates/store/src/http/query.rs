//! Paths and queries of requests.
//!
//! Guarantees: an unknown or repeated parameter is an error, so a misspelled condition is never
//! ignored.

use std::{collections::BTreeMap, str::FromStr};

use http::Uri;
use percent_encoding::percent_decode_str;

use crate::api::{Consistency, Key, Reason, StoreError};

/// The parameters of a query that were not taken yet.
pub(crate) struct Query {
    parameters: BTreeMap<String, String>,
}

impl Query {
    /// Parses the query of a request.
    pub(crate) fn of(uri: &Uri) -> Result<Self, StoreError> {
        let mut parameters = BTreeMap::new();
        let query = uri.query().unwrap_or_default().as_bytes();
        for (name, value) in form_urlencoded::parse(query) {
            if parameters
                .insert(name.clone().into_owned(), value.into_owned())
                .is_some()
            {
                return Err(invalid(format!("parameter {name} is repeated")));
            }
        }
        Ok(Self { parameters })
    }

    /// Takes a text.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        self.parameters.remove(name)
    }

    /// Takes a number or another value that is parsed.
    pub(crate) fn parsed<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, StoreError> {
        self.text(name)
            .map(|text| {
                text.parse()
                    .map_err(|_| invalid(format!("parameter {name} has an invalid value {text:?}")))
            })
            .transpose()
    }

    /// Takes a value that must be present.
    pub(crate) fn required<T: FromStr>(&mut self, name: &str) -> Result<T, StoreError> {
        self.parsed(name)?
            .ok_or_else(|| invalid(format!("parameter {name} is missing")))
    }

    /// Takes the consistency of a read.
    pub(crate) fn consistency(&mut self) -> Result<Consistency, StoreError> {
        match self.text("consistency").as_deref() {
            None | Some("linearizable") => Ok(Consistency::Linearizable),
            Some("stale") => Ok(Consistency::Stale),
            Some(other) => Err(invalid(format!(
                "parameter consistency has an invalid value {other:?}; use linearizable or stale"
            ))),
        }
    }

    /// Fails if a parameter was not taken.
    pub(crate) fn end(self) -> Result<(), StoreError> {
        match self.parameters.keys().next() {
            None => Ok(()),
            Some(name) => Err(invalid(format!("parameter {name} is unknown; remove it"))),
        }
    }
}

/// The key in the path of a request.
pub(crate) fn key(encoded: &str) -> Result<Key, StoreError> {
    let text = percent_decode_str(encoded)
        .decode_utf8()
        .map_err(|_| invalid("the key is not UTF-8 text".to_owned()))?;
    Key::from_str(&text).map_err(|error| {
        let reason = if text.is_empty() {
            Reason::Invalid
        } else {
            Reason::TooLarge
        };
        StoreError::new(reason, error.to_string())
    })
}

pub(crate) fn invalid(message: String) -> StoreError {
    StoreError::new(Reason::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uri: &'static str, expected: Result<(Option<u64>, Consistency), &str>) {
        let parse = || {
            let mut query = Query::of(&Uri::from_static(uri))?;
            let revision = query.parsed("if-revision")?;
            let consistency = query.consistency()?;
            query.end()?;
            Ok((revision, consistency))
        };
        let result: Result<_, StoreError> = parse();
        let result = result.map_err(|error| error.to_string());
        assert_eq!(result, expected.map_err(str::to_owned), "{uri}");
    }

    #[test]
    fn queries_are_parsed_strictly() {
        check("/a", Ok((None, Consistency::Linearizable)));
        check(
            "/a?if-revision=0&consistency=stale",
            Ok((Some(0), Consistency::Stale)),
        );
        check(
            "/a?if-revision=-1",
            Err("parameter if-revision has an invalid value \"-1\""),
        );
        check(
            "/a?if_revision=1",
            Err("parameter if_revision is unknown; remove it"),
        );
        check(
            "/a?if-revision=1&if-revision=1",
            Err("parameter if-revision is repeated"),
        );
        check(
            "/a?consistency=x",
            Err("parameter consistency has an invalid value \"x\"; use linearizable or stale"),
        );
    }

    #[test]
    fn keys_are_decoded() {
        assert_eq!(key("a/%C3%BC%2F+").unwrap().as_str(), "a/ü/+");
        assert_eq!(key("").unwrap_err().reason(), Reason::Invalid);
        assert_eq!(key("%FF").unwrap_err().reason(), Reason::Invalid);
        assert_eq!(
            key(&"a".repeat(1025)).unwrap_err().reason(),
            Reason::TooLarge
        );
    }
}
