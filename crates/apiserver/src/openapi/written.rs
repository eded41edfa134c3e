//! A document as it is sent.

use std::sync::OnceLock;

use bytes::Bytes;
use http::HeaderValue;

use crate::{discovery::Tagged, http::response::packed};

/// A document's bytes, their tag, and the same bytes packed; each is made once.
#[derive(Debug)]
pub(super) struct Written {
    text: Tagged,
    packed: OnceLock<Bytes>,
}

impl Written {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self {
            text: Tagged::new(bytes),
            packed: OnceLock::new(),
        }
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.text.bytes
    }

    /// The digest by which a version of the document is known.
    pub(super) fn tag(&self) -> &str {
        &self.text.tag
    }

    /// The digest as the `ETag` header.
    pub(super) fn header(&self) -> HeaderValue {
        self.text.header()
    }

    /// The bytes for clients that unpack gzip; `None` when packing does not pay.
    pub(super) fn packed(&self) -> Option<&Bytes> {
        let packed = self
            .packed
            .get_or_init(|| packed(&self.text.bytes).unwrap_or_default().into());
        (!packed.is_empty()).then_some(packed)
    }
}
