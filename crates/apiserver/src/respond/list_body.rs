//! The body of a list of objects in JSON or protobuf.
//!
//! Inputs: stored objects and the metadata of the list. Output: chunks.
//!
//! Guarantee: a list that is not sent yet shares the bytes of the stored objects; its only buffer
//! is the chunk that is sent.

use std::{io::Write as _, sync::Arc, vec};

use bellerophon_codec::{object::Encoded, protobuf};
use bellerophon_resources::print::ListMeta;
use bellerophon_storage::Stored;
use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    http::body::{Body, Chunks},
    registry::Resource,
};

/// Up to this size, a list is encoded as a whole.
const WHOLE_MAX_BYTES: usize = 64 << 10;

/// The most that is written before an item: a tag and a length in protobuf.
const PREFIX_MAX_BYTES: usize = 11;

/// A list that is encoded while it is sent.
pub(super) struct ListBody {
    resource: Arc<Resource>,
    encoding: Encoding,
    /// The bytes before the first item; empty once they are sent.
    head: Bytes,
    objects: vec::IntoIter<Arc<Stored>>,
    /// The item that did not fit into the last chunk.
    next_item: Option<Bytes>,
    /// An item larger than a chunk; what is before it is sent.
    large_item: Option<Bytes>,
    /// The bytes after the last item; empty once they are sent.
    tail: &'static [u8],
    /// How many bytes are still to come. An estimate if objects are converted to another version.
    remaining: usize,
    /// Whether `remaining` is exact.
    is_exact: bool,
}

#[derive(Clone, Copy)]
enum Encoding {
    Json {
        /// Whether items have `kind` and `apiVersion`, as those of custom resources have.
        items_name_kind: bool,
        /// Whether no item was written so far.
        is_first: bool,
    },
    Protobuf,
}

impl ListBody {
    /// A list in JSON: a head, and the stored bytes of every object.
    pub(super) fn json(
        resource: &Arc<Resource>,
        objects: Vec<Arc<Stored>>,
        meta: &ListMeta,
    ) -> Self {
        let encoding = Encoding::Json {
            items_name_kind: resource.is_custom(),
            is_first: true,
        };
        let is_exact = objects.iter().all(|stored| resource.is_stored_form(stored));
        let head = json_head(resource, meta);
        Self::new(resource, encoding, objects, head, b"]}", is_exact)
    }

    /// A list in protobuf, in its envelope.
    pub(super) fn protobuf(
        resource: &Arc<Resource>,
        objects: Vec<Arc<Stored>>,
        meta: &ListMeta,
    ) -> Self {
        let meta = serde_json::to_value(meta).expect("a value has string keys");
        let list_head = protobuf::list_message(meta, std::iter::empty());
        let mut list = Self::new(
            resource,
            Encoding::Protobuf,
            objects,
            Bytes::new(),
            b"",
            true,
        );
        // The envelope begins with the size of the list.
        let message_size = list_head.len() + list.remaining;
        let (mut head, tail) =
            protobuf::envelope_around(&resource.api_version(), &resource.list_kind, message_size);
        head.extend(list_head);
        list.remaining += head.len() + tail.len();
        list.head = head.into();
        list.tail = tail;
        list
    }

    fn new(
        resource: &Arc<Resource>,
        encoding: Encoding,
        objects: Vec<Arc<Stored>>,
        head: Bytes,
        tail: &'static [u8],
        is_exact: bool,
    ) -> Self {
        let separators = match encoding {
            Encoding::Json { .. } => objects.len().saturating_sub(1),
            Encoding::Protobuf => 0,
        };
        let items: usize = objects
            .iter()
            .map(|stored| encoding.size(&stored.encoded))
            .sum();
        Self {
            resource: resource.clone(),
            encoding,
            remaining: head.len() + items + separators + tail.len(),
            is_exact,
            head,
            objects: objects.into_iter(),
            next_item: None,
            large_item: None,
            tail,
        }
    }

    /// As a body: a large list is encoded while it is sent.
    pub(super) fn into_body(self) -> Body {
        if self.remaining > WHOLE_MAX_BYTES {
            Body::chunks(self)
        } else {
            Body::full(self.into_bytes())
        }
    }

    /// The list as a whole.
    pub(super) fn into_bytes(mut self) -> Bytes {
        self.next(usize::MAX).expect("a list has a head")
    }

    fn take_item(&mut self) -> Option<Bytes> {
        if self.next_item.is_some() {
            return self.next_item.take();
        }
        let stored = self.objects.next()?;
        Some(self.encoding.item(&self.resource.present(&stored)))
    }

    /// Appends items until the chunk is full, and what is after the last one.
    fn fill(&mut self, max_bytes: usize, out: &mut BytesMut) {
        let fits =
            |item: &Bytes, used| item.len() <= max_bytes.saturating_sub(used + PREFIX_MAX_BYTES);
        while let Some(item) = self.take_item() {
            if fits(&item, out.len()) {
                self.encoding.put_prefix(item.len(), out);
                out.put(item);
            } else if fits(&item, 0) {
                self.next_item = Some(item);
                return;
            } else {
                self.encoding.put_prefix(item.len(), out);
                self.large_item = Some(item);
                return;
            }
        }
        out.put_slice(std::mem::take(&mut self.tail));
    }
}

impl Chunks for ListBody {
    fn next(&mut self, max_bytes: usize) -> Option<Bytes> {
        let chunk = match self.large_item.take() {
            Some(item) => item,
            None => {
                let mut out = BytesMut::with_capacity(self.remaining.min(max_bytes));
                out.put(std::mem::take(&mut self.head));
                self.fill(max_bytes, &mut out);
                out.freeze()
            }
        };
        self.remaining = self.remaining.saturating_sub(chunk.len());
        (!chunk.is_empty()).then_some(chunk)
    }

    fn remaining_bytes(&self) -> Option<u64> {
        self.is_exact.then_some(self.remaining as u64)
    }
}

impl Encoding {
    /// The bytes of an object in the list.
    fn item(self, encoded: &Encoded) -> Bytes {
        match self {
            Self::Json {
                items_name_kind: true,
                ..
            } => encoded.bytes().clone(),
            Self::Json { .. } => encoded.item(),
            Self::Protobuf => encoded.message().clone(),
        }
    }

    /// The size of an object in the list, without a separator.
    fn size(self, encoded: &Encoded) -> usize {
        match self {
            Self::Json {
                items_name_kind: true,
                ..
            } => encoded.bytes().len(),
            Self::Json { .. } => "{".len() + encoded.item_len(),
            Self::Protobuf => protobuf::list_item_size(encoded.message().len()),
        }
    }

    /// Writes what is before an object of this size.
    fn put_prefix(&mut self, item_bytes: usize, out: &mut BytesMut) {
        match self {
            Self::Json {
                items_name_kind,
                is_first,
            } => {
                if !std::mem::take(is_first) {
                    out.put_u8(b',');
                }
                if !*items_name_kind {
                    out.put_u8(b'{');
                }
            }
            Self::Protobuf => protobuf::put_list_item_prefix(item_bytes, out),
        }
    }
}

fn json_head(resource: &Resource, meta: &ListMeta) -> Bytes {
    let mut out = BytesMut::with_capacity(256).writer();
    let write = "writing to memory does not fail";
    out.write_all(b"{\"kind\":").expect(write);
    serde_json::to_writer(&mut out, &resource.list_kind).expect(write);
    out.write_all(b",\"apiVersion\":").expect(write);
    serde_json::to_writer(&mut out, &resource.api_version()).expect(write);
    out.write_all(b",\"metadata\":").expect(write);
    if resource.is_custom() && meta.continue_token.is_empty() {
        // Lists of custom resources name the next page even when there is none.
        let revision = &meta.resource_version;
        write!(
            out,
            "{{\"continue\":\"\",\"resourceVersion\":\"{revision}\"}}"
        )
        .expect(write);
    } else {
        serde_json::to_writer(&mut out, meta).expect(write);
    }
    out.write_all(b",\"items\":[").expect(write);
    out.into_inner().freeze()
}
