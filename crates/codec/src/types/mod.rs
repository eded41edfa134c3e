//! The built-in types: the fields of each kind, and typed decoding and normalization.
//! In: trees of bodies, or values. Out: objects as Kubernetes encodes them, and strict decoding
//! errors.
//! Guarantees: the table is static data; decoding is idempotent.

mod base64; // bytes in JSON, with the errors of Go's decoder
mod decode; // a tree, by its type
mod field_path; // paths of fields in errors
mod index; // kinds by group, version and name
mod internal; // the structs that messages show
mod model; // entries of the table
mod normal; // normalization of empty fields
mod published; // the names of published schemas
#[rustfmt::skip]
mod table; // the types of Kubernetes 1.36, generated
mod time; // times, with the errors of Go's parser
mod written; // values as Go writes them

#[cfg(test)]
mod promises; // properties of decoding

pub use base64::{decode_or_empty as from_base64, encode as base64};
pub use decode::{Decoded, decode, decode_node};
pub use internal::{Internal, changes};
pub use model::{Field, Item, ListKind, Patch, Shape, Type};
pub use normal::{complete, settle};
#[cfg(test)]
pub(crate) use promises::full_object;
pub use published::{Published, Union};
pub use written::{Opened, written};

use std::sync::LazyLock;

#[cfg(test)]
use table::KINDS;
use table::{SCHEMA, TYPES, UNSERVED};

/// The type of a kind that has one.
pub fn find(group: &str, version: &str, kind: &str) -> Option<&'static Type> {
    let (.., id) = index::find(group, version, kind)?;
    Some(&TYPES[usize::from(*id)])
}

/// The type of `metadata`.
pub fn object_meta() -> &'static Type {
    static OBJECT_META: LazyLock<&Type> = LazyLock::new(|| {
        let pod = find("", "v1", "Pod").expect("the table has pods");
        pod.field("metadata")
            .and_then(|field| field.shape.item().object())
            .expect("pods have metadata")
    });
    *OBJECT_META
}

/// A schema of a custom resource, which its own fields hold again.
pub const fn schema() -> Item {
    Item::Object(SCHEMA)
}

/// Whether the kind is registered in the client scheme, served or not.
pub fn is_registered(group: &str, version: &str, kind: &str) -> bool {
    find(group, version, kind).is_some() || UNSERVED.binary_search(&(group, version, kind)).is_ok()
}

/// Group, version and name of every kind whose objects have metadata.
#[cfg(test)]
pub(crate) fn object_kinds() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let metadata = Shape::One(object_meta_item());
    KINDS
        .iter()
        .filter(move |(.., id)| {
            TYPES[usize::from(*id)]
                .field("metadata")
                .is_some_and(|field| field.shape == metadata)
        })
        .map(|(group, version, kind, _)| (*group, *version, *kind))
}

#[cfg(test)]
fn object_meta_item() -> Item {
    let pod = find("", "v1", "Pod").expect("the table has pods");
    pod.field("metadata")
        .expect("pods have metadata")
        .shape
        .item()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found() {
        assert!(KINDS.is_sorted() && UNSERVED.is_sorted());
        for (group, version, kind, id) in KINDS {
            let ty = find(group, version, kind).expect("a kind of the table");
            assert!(
                std::ptr::eq(ty, &raw const TYPES[usize::from(*id)]),
                "{group}/{version} {kind}"
            );
            assert_eq!(ty.name(), *kind);
        }
        assert!(find("", "v1", "Deployment").is_none());
        assert!(
            is_registered("apps", "v1beta1", "Deployment")
                && !is_registered("apps", "v1", "ConfigMap")
        );
    }

    #[test]
    fn table_has_merge_keys_and_list_types() {
        let field = |kind, path: &[&str]| {
            let mut ty = find("", "v1", kind).expect("a core kind");
            let (last, steps) = path.split_last().expect("a path");
            for step in steps {
                ty = ty
                    .field(step)
                    .and_then(|f| f.shape.item().object())
                    .expect("a struct on the way");
            }
            ty.field(last).expect("a field")
        };
        let ports = field("Pod", &["spec", "containers", "ports"]);
        assert_eq!(
            ports.list,
            Some(ListKind::Map(&["containerPort", "protocol"]))
        );
        assert_eq!(ports.patch, Some((Patch::Merge, "containerPort")));
        let protocol = ports
            .shape
            .item()
            .object()
            .and_then(|ty| ty.field("protocol"))
            .expect("a protocol");
        assert_eq!(protocol.default, Some("\"TCP\""));
        assert_eq!(protocol.number, 4);
        assert_eq!(protocol.shape, Shape::One(Item::Str));
        let empty_dir = field("Pod", &["spec", "volumes", "emptyDir"]);
        assert_eq!(empty_dir.embedded, "VolumeSource");
        assert_eq!(empty_dir.inside, [2].as_slice());
        assert_eq!(empty_dir.number, 2);
        assert_eq!(field("Pod", &["spec", "nodeSelector"]).atomic, Some(true));
        assert!(
            field("Pod", &["spec", "containers"]).required
                && object_meta().field("labels").is_some()
        );
    }
}
