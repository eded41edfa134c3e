//! Get, put, delete and list.

use bytes::Bytes;
use http::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    api::{Consistency, Item, Key, ListPage, Revision, WriteResult},
    call::Call,
    client::Client,
    error::ClientError,
    response::{json, number},
};

/// What is encoded in the path of a key: everything but unreserved characters and slashes.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// The result of a get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The key, if it exists.
    pub item: Option<Item>,
    /// The revision of the store.
    pub revision: Revision,
}

/// What a list selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only keys with this prefix.
    pub prefix: String,
    /// The page begins here: `continue` of the page before.
    pub start: Option<String>,
    /// Items per page.
    pub limit: Option<usize>,
    /// How current the page is.
    pub consistency: Consistency,
}

impl Client {
    /// Reads a key.
    ///
    /// # Errors
    /// See [`ClientError`]. A key that does not exist is no error.
    pub async fn get(&self, key: &Key, consistency: Consistency) -> Result<Found, ClientError> {
        let mut query = Query::of_key(key);
        query.add_consistency(consistency);
        let call = Call::read(query.text);
        let answer = self.call(&call).await?;
        let revision = number(&call, &answer, "store-revision")?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(Found {
                item: None,
                revision,
            });
        }
        let item = Item {
            key: key.clone(),
            create_revision: number(&call, &answer, "store-create-revision")?,
            mod_revision: number(&call, &answer, "store-mod-revision")?,
            version: number(&call, &answer, "store-version")?,
            value: answer.body.to_vec(),
        };
        Ok(Found {
            item: Some(item),
            revision,
        })
    }

    /// Writes a key, if it has the revision; 0: if it does not exist.
    ///
    /// # Errors
    /// See [`ClientError`]. A failed condition is [`Reason::ConditionFailed`].
    ///
    /// [`Reason::ConditionFailed`]: crate::api::Reason::ConditionFailed
    pub async fn put(
        &self,
        key: &Key,
        value: impl Into<Bytes>,
        if_revision: Option<Revision>,
    ) -> Result<WriteResult, ClientError> {
        let mut query = Query::of_key(key);
        query.add_condition(if_revision);
        let call = Call::write(Method::PUT, query.text, value.into());
        json(&call, &self.call(&call).await?)
    }

    /// Deletes a key, if it has the revision.
    ///
    /// # Errors
    /// See [`ClientError`]. A key that does not exist is no error.
    pub async fn delete(
        &self,
        key: &Key,
        if_revision: Option<Revision>,
    ) -> Result<WriteResult, ClientError> {
        let mut query = Query::of_key(key);
        query.add_condition(if_revision);
        let call = Call::write(Method::DELETE, query.text, Bytes::new());
        json(&call, &self.call(&call).await?)
    }

    /// Lists keys in their order, one page.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list(&self, options: &ListOptions) -> Result<ListPage, ClientError> {
        let mut query = Query::new("/v1/keys");
        query.add("prefix", &options.prefix);
        if let Some(start) = &options.start {
            query.add("start", start);
        }
        if let Some(limit) = options.limit {
            query.add("limit", &limit.to_string());
        }
        query.add_consistency(options.consistency);
        let call = Call::read(query.text);
        json(&call, &self.call(&call).await?)
    }
}

/// A path with a query.
pub(crate) struct Query {
    pub(crate) text: String,
    separator: char,
}

impl Query {
    pub(crate) fn new(path: &str) -> Self {
        Self {
            text: path.to_owned(),
            separator: '?',
        }
    }

    fn of_key(key: &Key) -> Self {
        let key = utf8_percent_encode(key.as_str(), PATH);
        Self::new(&format!("/v1/keys/{key}"))
    }

    pub(crate) fn add(&mut self, name: &str, value: &str) {
        let value = utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
        self.text.push(self.separator);
        self.text.push_str(name);
        self.text.push('=');
        self.text.push_str(&value);
        self.separator = '&';
    }

    fn add_consistency(&mut self, consistency: Consistency) {
        if consistency == Consistency::Stale {
            self.add("consistency", "stale");
        }
    }

    fn add_condition(&mut self, if_revision: Option<Revision>) {
        if let Some(revision) = if_revision {
            self.add("if-revision", &revision.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_in_paths() {
        let key: Key = "a/ü ?&#%".parse().unwrap();
        let mut query = Query::of_key(&key);
        query.add("if-revision", "7");
        query.add("x", "a&b=c/d");
        let expected = "/v1/keys/a/%C3%BC%20%3F%26%23%25?if-revision=7&x=a%26b%3Dc%2Fd";
        assert_eq!(query.text, expected);
    }
}
