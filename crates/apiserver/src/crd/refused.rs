//! What definitions may say in Kubernetes but this server cannot do yet.
//! In: a definition that is otherwise sound. Out: a refusal that says so, so that nothing is
//! silently left unchecked.
//! Guarantees: this is the only place that knows of the gaps; closing one means deleting its
//! function.

use crate::field::{FieldError, Path};

use super::definition::Conversion;

/// Refuses conversion by webhook.
pub(super) fn webhook(conversion: &Conversion, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if conversion.strategy == "Webhook" {
        let detail = "conversion by webhook is not done by this server yet; use None";
        errors.push(FieldError::invalid(
            path.child("strategy"),
            &conversion.strategy,
            detail,
        ));
    }
}
