//! A custom resource that is written or read: pruned, defaulted, validated.
//! In: the resource as a JSON object. Out: the resource as it is stored or shown, or its errors.
//! Guarantees: prune, default and validate are run in this order; each is idempotent.

use std::sync::Arc;

use bellerophon_apimachinery::field::{FieldError, Path, Reason};
use serde_json::{Map, Value};

use super::{
    default::{self, DefaultsTooLarge},
    definition::{Scale, Version},
    embedded, lists, number,
    problem::NOWHERE,
    prune,
    rules::{RULE_BUDGET, Ratchet, RuleTree},
    scale,
    schema::Schema,
    validate,
};

/// The schema of one version of a custom resource, ready to be applied to objects.
///
/// An object is the whole JSON object, `metadata` included: a schema may restrict the name.
#[derive(Clone, Debug)]
pub struct CustomSchema {
    schema: Schema,
    scale: Option<Scale>,
    /// The validation rules, compiled; none when there are none.
    rules: Option<Arc<RuleTree>>,
}

impl CustomSchema {
    /// The schema of a version; none when the version has none that can be read.
    pub fn of(version: &Version) -> Option<Self> {
        let schema = version.schema.as_ref()?.as_ref().ok()?.clone();
        let rules = RuleTree::of(&schema).map(Arc::new);
        Some(Self {
            schema,
            scale: version.scale().cloned(),
            rules,
        })
    }

    /// The schema itself.
    pub fn structure(&self) -> &Schema {
        &self.schema
    }

    /// Drops unknown fields and nulls that the schema does not allow. Returns the paths of unknown
    /// fields in the order in which strict validation lists them; unknown fields of the object's
    /// own metadata are handled by the caller.
    ///
    /// # Errors
    /// An embedded resource whose `apiVersion`, `kind` or `metadata` cannot be decoded.
    pub fn prune(&self, object: &mut Map<String, Value>) -> Result<Vec<String>, FieldError> {
        let mut unknown = prune::prune_resource(object, &self.schema);
        default::drop_nulls(object, &self.schema);
        unknown.extend(embedded::coerce(object, &self.schema)?);
        Ok(unknown)
    }

    /// Fills in what is missing; also run on objects read from storage. Whole numbers lose their
    /// fraction: `2.0` is stored as `2`.
    ///
    /// # Errors
    /// The defaults make the object too large. It has some of them.
    pub fn default(&self, object: &mut Map<String, Value>) -> Result<(), DefaultsTooLarge> {
        let filled = default::fill(object, &self.schema);
        object.values_mut().for_each(number::make_whole);
        filled
    }

    /// The errors of an object, compared on update with the `old` one: problems of unchanged values
    /// are tolerated. Returns warnings about rules that the old object violates too.
    pub fn validate(
        &self,
        object: &Value,
        old: Option<&Value>,
        errs: &mut Vec<FieldError>,
    ) -> Vec<String> {
        let mut errors = validate::validate(object, old, &self.schema, None);
        if let Some(scale) = &self.scale {
            scale::validate_spec(scale, object, &mut errors);
            scale::validate_status(scale, object, &mut errors);
        }
        if let Value::Object(map) = object {
            embedded::validate(map, &self.schema, &Path::ROOT, &mut errors);
        }
        self.validate_lists(object, old, &mut errors);
        self.validate_rules(object, old, errors, errs)
    }

    /// The errors of an object whose status is written through its own endpoint; returns warnings
    /// like [`Self::validate`].
    pub fn validate_status(
        &self,
        object: &Value,
        old: &Value,
        errs: &mut Vec<FieldError>,
    ) -> Vec<String> {
        let mut errors = match (object.get("status"), self.schema.properties.get("status")) {
            (Some(status), Some(schema)) => validate::validate(
                status,
                old.get("status"),
                schema,
                Some(&Path::field("status")),
            ),
            _ => Vec::new(),
        };
        if let Some(scale) = &self.scale {
            scale::validate_status(scale, object, &mut errors);
        }
        self.validate_lists(object, Some(old), &mut errors);
        self.validate_rules(object, Some(old), errors, errs)
    }

    /// Rules run on objects that fit their schema, or miss it only where no rule can stumble.
    fn validate_rules(
        &self,
        object: &Value,
        old: Option<&Value>,
        mut errors: Vec<FieldError>,
        errs: &mut Vec<FieldError>,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(rules) = &self.rules {
            if errors.iter().any(is_blocking) {
                let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
                errors.push(FieldError::invalid(NOWHERE, &Value::Null, detail));
            } else {
                let ratchet = Ratchet::root(object, old, &self.schema);
                (_, warnings) = rules.validate(object, old, ratchet, RULE_BUDGET, &mut errors);
            }
        }
        errs.append(&mut errors);
        warnings
    }

    /// Sets and maps are validated only if they were valid before.
    fn validate_lists(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let errs = |value: Option<&Value>| {
            let mut errors = Vec::new();
            if let Some(Value::Object(map)) = value {
                lists::validate(map, &self.schema, &Path::ROOT, &mut errors);
            }
            errors
        };
        if errs(old).is_empty() {
            errors.extend(errs(Some(object)));
        }
    }
}

/// Whether rules could stumble over the errors.
fn is_blocking(error: &FieldError) -> bool {
    matches!(
        error.reason,
        Reason::NotSupported
            | Reason::Required
            | Reason::TooLong
            | Reason::TooMany
            | Reason::TypeInvalid
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pump() -> CustomSchema {
        let schema = json!({"type": "object", "required": ["spec"], "properties": {
            "spec": {"type": "object", "properties": {"tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}},
            "status": {"type": "object", "properties": {"rpm": {"type": "integer"}}},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^pump-"}}},
        }});
        CustomSchema {
            schema: Schema::parse(&schema).expect("a valid schema"),
            scale: None,
            rules: None,
        }
    }

    fn validated(object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut errors = Vec::new();
        pump().validate(object, old, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn status_validated(object: &Value, old: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        pump().validate_status(object, old, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn name_may_be_restricted_and_spec_required() {
        let object = json!({"apiVersion": "a/v1", "kind": "Pump", "metadata": {"name": "tap"}});
        assert_eq!(
            validated(&object, None),
            [
                "metadata.name: Invalid value: \"tap\": metadata.name in body should match '^pump-'",
                "spec: Required value",
            ]
        );
    }

    #[test]
    fn status_is_validated_below_its_own_path() {
        let new = json!({"spec": {}, "status": {"rpm": "x"}});
        let old = json!({"spec": {}});
        assert_eq!(
            status_validated(&new, &old),
            [
                "status.rpm: Invalid value: \"string\": rpm in body must be of type integer: \"string\""
            ]
        );
        assert!(
            status_validated(&new, &new).is_empty(),
            "an unchanged status keeps its problems"
        );
    }

    #[test]
    fn whole_numbers_lose_their_fraction() {
        let mut object = json!({"spec": {"n": 2.0, "l": [1e3, 1.5]}});
        let filled = pump().default(object.as_object_mut().expect("an object"));
        assert!(filled.is_ok());
        assert_eq!(object, json!({"spec": {"n": 2, "l": [1000, 1.5]}}));
    }

    #[test]
    fn sets_are_checked_unless_they_were_broken_before() {
        let broken = json!({"spec": {"tags": ["a", "a"]}, "metadata": {"name": "pump-1"}});
        assert_eq!(
            validated(&broken, None),
            ["spec.tags[1]: Duplicate value: \"a\""]
        );
        assert!(validated(&broken, Some(&broken)).is_empty());
    }
}
