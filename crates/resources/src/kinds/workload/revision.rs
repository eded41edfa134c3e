//! ControllerRevisions: past states of a StatefulSet or DaemonSet, never changed.
//! Mirrors `ValidateControllerRevision` in `pkg/apis/apps/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonExt, same},
};

use super::super::{Strategy, validation};

/// A ControllerRevision.
pub const CONTROLLER_REVISION: Strategy = Strategy {
    validate: |object, out| {
        validation::not_negative(
            &Path::field("revision"),
            object.body.number("revision"),
            out,
        )
    },
    validate_create: |object, out| match object.body.get_set("data") {
        None => out.push(FieldError::required("data", "data is mandatory")),
        Some(data) if !data.is_object() => out.push(FieldError::required(
            "data",
            "data must be a valid JSON object",
        )),
        Some(_) => {}
    },
    validate_update: |new, old, out| {
        let data = new.body.field("data");
        if !same(data, old.body.field("data")) {
            out.push(FieldError::invalid("data", data, validation::IMMUTABLE));
        }
    },
    ..Strategy::PLAIN
};
