//! A request and its response, in memory.

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

use crate::endpoint::Endpoint;

/// Whether a request can be repeated after it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It changes nothing, or the same again.
    Always,
    /// Only if it had no effect.
    WithoutEffect,
}

/// A request, to be sent to one endpoint after another.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) repeat: Repeat,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) endpoint: Endpoint,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn read(path: String) -> Self {
        Self {
            method: Method::GET,
            path,
            body: Bytes::new(),
            repeat: Repeat::Always,
        }
    }

    pub(crate) fn write(method: Method, path: String, body: Bytes) -> Self {
        Self {
            method,
            path,
            body,
            repeat: Repeat::WithoutEffect,
        }
    }

    /// Method and path, without the query: it may be long.
    pub(crate) fn description(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        format!("{} {path}", self.method)
    }
}
