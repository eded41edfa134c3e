//! Patch strategies of fields, from the type table.

use bellerophon_apimachinery::error::ApiError;

use super::failed;
use crate::types::{Field, Item, Patch, Shape, Type};

/// The type at a place of the object.
#[derive(Clone, Copy)]
pub(super) enum Schema {
    Struct(&'static Type),
    /// A struct of Go whose fields JSON does not show, by its name.
    Opaque(&'static str),
    /// Any other type, by its Go name.
    Other(&'static str),
}

/// How a field is merged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The default: maps merge, lists are replaced.
    Plain,
    Merge,
    Replace,
}

/// A field that both the object and the patch have.
pub(super) struct Found {
    pub(super) schema: Schema,
    pub(super) strategy: Strategy,
    /// The merge key of a list; empty for none.
    pub(super) key: &'static str,
}

impl Schema {
    /// A field that holds a map.
    ///
    /// # Errors
    /// The type has no such field.
    pub(super) fn field(self, name: &str) -> Result<Found, ApiError> {
        let field = self.find(name)?;
        let schema = match field.shape {
            Shape::One(item) => of_item(item, field.go),
            Shape::List(_) => Self::Other("slice"),
            Shape::Map(_) | Shape::MapOfLists(_) => Self::Other("map"),
        };
        Ok(Found::new(schema, field))
    }

    /// A field that holds a list.
    ///
    /// # Errors
    /// The type has no such field, or it holds no list.
    pub(super) fn list(self, name: &str) -> Result<Found, ApiError> {
        let field = self.find(name)?;
        match field.shape {
            Shape::List(item) => Ok(Found::new(of_item(item, field.item_go), field)),
            _ => Err(failed(
                "expected slice or array type, but got: struct".into(),
            )),
        }
    }

    /// The Go name of the kind of type.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Struct(_) | Self::Opaque(_) => "struct",
            Self::Other(kind) => kind,
        }
    }

    fn find(self, name: &str) -> Result<&'static Field, ApiError> {
        let unknown = |ty: &str| {
            failed(format!(
                "unable to find api field in struct {ty} for the json field {name:?}"
            ))
        };
        match self {
            Self::Struct(ty) => ty.field(name).ok_or_else(|| unknown(ty.name())),
            Self::Opaque(ty) => Err(unknown(ty)),
            Self::Other(kind) => Err(failed(format!(
                "merging an object in json but data type is not struct, instead is: {kind}"
            ))),
        }
    }
}

fn of_item(item: Item, go: &'static str) -> Schema {
    match item {
        Item::Str => Schema::Other("string"),
        Item::Bool => Schema::Other("bool"),
        Item::Int32 => Schema::Other("int32"),
        Item::Int64 => Schema::Other("int64"),
        Item::Double => Schema::Other("float64"),
        Item::Bytes => Schema::Other("slice"),
        item => item.object().map_or_else(
            || Schema::Opaque(go.split_once('.').map_or(go, |(_, name)| name)),
            Schema::Struct,
        ),
    }
}

impl Found {
    fn new(schema: Schema, field: &'static Field) -> Self {
        let (strategy, key) = match field.patch {
            None | Some((Patch::RetainKeys, _)) => (Strategy::Plain, ""),
            Some((Patch::Merge | Patch::MergeRetainingKeys, key)) => (Strategy::Merge, key),
            Some((Patch::Replace, key)) => (Strategy::Replace, key),
        };
        Self {
            schema,
            strategy,
            key,
        }
    }
}
