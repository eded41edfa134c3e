//! The structs and members of the table.

/// A struct of kube-apiserver.
#[derive(Debug)]
pub(super) struct Struct {
    /// Its package and name: `core.PodSpec`.
    pub(super) name: &'static str,
    /// In the order of the struct, those of embedded structs in their place.
    pub(super) members: &'static [Member],
}

/// One member of a [`Struct`].
#[derive(Debug)]
pub(super) struct Member {
    /// Its name in Go, under which messages show it.
    pub(super) go: &'static str,
    /// The name of the field that holds it in objects.
    pub(super) json: &'static str,
    /// Whether objects have that field one level up.
    pub(super) above: bool,
    pub(super) holds: Holds,
}

/// The type of a member, and so its value where an object has none: the zero value, or null.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holds {
    One(Item),
    Maybe(Item),
    List(Item),
    Map(Item),
    /// Metadata, whose fields are inlined.
    Inline,
}

/// A value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Text,
    Number,
    Bool,
    Quantity,
    /// Shown as objects have it; null when there is none.
    Plain,
    /// A struct of the table.
    Internal(&'static str),
    /// A struct that looks the same to clients.
    Published(&'static str),
}

/// A row of the table.
pub(super) const fn s(name: &'static str, members: &'static [Member]) -> Struct {
    Struct { name, members }
}

/// A member of a row.
pub(super) const fn m(go: &'static str, json: &'static str, holds: Holds) -> Member {
    Member {
        go,
        json,
        above: false,
        holds,
    }
}

/// A member of a row whose field objects have one level up.
pub(super) const fn above(go: &'static str, json: &'static str, holds: Holds) -> Member {
    Member {
        above: true,
        ..m(go, json, holds)
    }
}
