//! A column of a table: its name, what its cells hold and when it is shown.

use std::borrow::Cow;

use serde::Serialize;

use super::descriptions;

/// A column definition, in the shape it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Column {
    /// The heading, before a client turns it into capitals.
    pub(crate) name: Cow<'static, str>,
    /// `string`, `integer`, `boolean`, `date`, …
    #[serde(rename = "type")]
    pub(crate) type_: Cow<'static, str>,
    /// `name` for the column that names the object; mostly empty.
    pub(crate) format: Cow<'static, str>,
    /// For people who wonder what the column means.
    pub(crate) description: Cow<'static, str>,
    /// 0 is always shown; anything higher only on request (`-o wide`).
    pub(crate) priority: i64,
}

impl Column {
    /// The object's name.
    pub(crate) const NAME: Self = Self::named("Name", descriptions::NAME);
    /// How long ago the object was created, in words.
    pub(crate) const AGE: Self = Self::text("Age", descriptions::AGE);
    /// When the object was created, for kinds without columns of their own.
    pub(crate) const CREATED_AT: Self = Self::new("Created At", "date", "", descriptions::AGE);

    /// A column of words.
    pub(crate) const fn text(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "string", "", description)
    }

    /// A column of names.
    pub(crate) const fn named(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "string", "name", description)
    }

    /// A column of whole numbers.
    pub(crate) const fn integer(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "integer", "", description)
    }

    /// A column of truth values.
    pub(crate) const fn boolean(name: &'static str, description: &'static str) -> Self {
        Self::new(name, "boolean", "", description)
    }

    /// The same column, shown only on request.
    pub(crate) const fn wide(mut self) -> Self {
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
