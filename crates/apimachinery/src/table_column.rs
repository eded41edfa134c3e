//! A column of a table: its name, type and priority.

use std::borrow::Cow;

use serde::Serialize;

const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const AGE_DESCRIPTION: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// A column definition, in the shape it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// The heading, before a client turns it into capitals.
    pub name: Cow<'static, str>,
    /// `string`, `integer`, `boolean`, `date`, …
    #[serde(rename = "type")]
    pub type_: Cow<'static, str>,
    /// `name` for the column that names the object; mostly empty.
    pub format: Cow<'static, str>,
    /// The description of the column.
    pub description: Cow<'static, str>,
    /// 0 is always shown; higher ones only on request (`-o wide`).
    pub priority: i64,
}

impl Column {
    /// The object's name.
    pub const NAME: Self = Self::named("Name", NAME_DESCRIPTION);
    /// The object's name, in the table of `Scale`, whose column has no format.
    pub const NAME_WITHOUT_FORMAT: Self = Self::text("Name", NAME_DESCRIPTION);
    /// The age of the object.
    pub const AGE: Self = Self::text("Age", AGE_DESCRIPTION);
    /// The creation time, for kinds without columns.
    pub const CREATED_AT: Self = Self::new("Created At", "date", "", AGE_DESCRIPTION);

    /// A column of strings.
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "string", "", description)
    }

    /// A column of names.
    pub const fn named(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "string", "name", description)
    }

    /// A column of whole numbers.
    pub const fn integer(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "integer", "", description)
    }

    /// A column of truth values.
    pub const fn boolean(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "boolean", "", description)
    }

    /// The same column, shown only on request.
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    const fn new(
        name: &'static str,
        type_: &'static str,
        format: &'static str,
        description: &'static str,
    ) -> Self {
        Self {
            name: Cow::Borrowed(name),
            type_: Cow::Borrowed(type_),
            format: Cow::Borrowed(format),
            description: Cow::Borrowed(description),
            priority: 0,
        }
    }
}
