//! What definitions may say in Kubernetes but this server cannot do yet.
//! In: a definition that is otherwise sound. Out: a refusal that says so, so that nothing is silently left unchecked.
//! Holds: this is the only place that knows of the gaps; closing one means deleting its function.

use crate::field::{FieldError, Path};

use super::{
    definition::Conversion,
    schema::{Additional, Items, Schema},
};

/// Refuses `x-kubernetes-validations` anywhere in a schema.
pub(super) fn rules(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if schema.rules > 0 {
        let detail = "rules are not evaluated by this server yet; remove them from the schema to create the definition";
        errors.push(FieldError::forbidden(path.child("x-kubernetes-validations"), detail));
    }
    if let Some(Items::One(item)) = &schema.items {
        rules(item, &path.child("items"), errors);
    }
    if let Some(Additional::Schema(additional)) = &schema.additional_properties {
        rules(additional, &path.child("additionalProperties"), errors);
    }
    let properties = path.child("properties");
    schema.properties.iter().for_each(|(name, property)| rules(property, &properties.key(name), errors));
}

/// Refuses conversion by webhook.
pub(super) fn webhook(conversion: &Conversion, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if conversion.strategy == "Webhook" {
        let detail = "conversion by webhook is not done by this server yet; use None";
        errors.push(FieldError::invalid(path.child("strategy"), &conversion.strategy, detail));
    }
}
