//! Schemas of the Kubernetes types that fields of custom resources have.
//!
//! A field of a derived schema names its type here: `#[schemars(with = "Vec<schemas::Condition>")]`
//! for a `Vec` of the `Condition` of k8s-openapi. The types hold nothing. Their schemas are those
//! that k8s-openapi has with its feature `schemars`, texts included, so definitions are the same.
//! That feature is off, since it compiles a schema of every type of Kubernetes for these five.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The schema of `io.k8s.apimachinery.pkg.apis.meta.v1.Condition`.
#[derive(Clone, Copy, Debug)]
pub enum Condition {}

impl JsonSchema for Condition {
    fn schema_name() -> Cow<'static, str> {
        "io.k8s.apimachinery.pkg.apis.meta.v1.Condition".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Condition contains details for one aspect of the current state of \
                this API Resource.",
            "type": "object",
            "properties": {
                "lastTransitionTime": {
                    "description": "lastTransitionTime is the last time the condition \
                        transitioned from one status to another. This should be when the \
                        underlying condition changed.  If that is not known, then using the time \
                        when the API field changed is acceptable.",
                    "type": "string",
                    "format": "date-time",
                },
                "message": {
                    "description": "message is a human readable message indicating details about \
                        the transition. This may be an empty string.",
                    "type": "string",
                },
                "observedGeneration": {
                    "description": "observedGeneration represents the .metadata.generation that \
                        the condition was set based upon. For instance, if .metadata.generation \
                        is currently 12, but the .status.conditions[x].observedGeneration is 9, \
                        the condition is out of date with respect to the current state of the \
                        instance.",
                    "type": "integer",
                    "format": "int64",
                },
                "reason": {
                    "description": "reason contains a programmatic identifier indicating the \
                        reason for the condition's last transition. Producers of specific \
                        condition types may define expected values and meanings for this field, \
                        and whether the values are considered a guaranteed API. The value should \
                        be a CamelCase string. This field may not be empty.",
                    "type": "string",
                },
                "status": {
                    "description": "status of the condition, one of True, False, Unknown.",
                    "type": "string",
                },
                "type": {
                    "description": "type of condition in CamelCase or in \
                        foo.example.com/CamelCase.",
                    "type": "string",
                },
            },
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        })
    }
}

/// The schema of `io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector`.
#[derive(Clone, Copy, Debug)]
pub enum LabelSelector {}

impl JsonSchema for LabelSelector {
    fn schema_name() -> Cow<'static, str> {
        "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A label selector is a label query over a set of resources. The \
                result of matchLabels and matchExpressions are ANDed. An empty label selector \
                matches all objects. A null label selector matches no objects.",
            "type": "object",
            "properties": {
                "matchExpressions": {
                    "description": "matchExpressions is a list of label selector requirements. \
                        The requirements are ANDed.",
                    "type": "array",
                    "items": (requirement()),
                },
                "matchLabels": {
                    "description": "matchLabels is a map of {key,value} pairs. A single \
                        {key,value} in the matchLabels map is equivalent to an element of \
                        matchExpressions, whose key field is \"key\", the operator is \"In\", \
                        and the values array contains only \"value\". The requirements are ANDed.",
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                },
            },
        })
    }
}

/// The schema of `io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement`.
fn requirement() -> Schema {
    json_schema!({
        "description": "A label selector requirement is a selector that contains values, a key, \
            and an operator that relates the key and values.",
        "type": "object",
        "properties": {
            "key": {
                "description": "key is the label key that the selector applies to.",
                "type": "string",
            },
            "operator": {
                "description": "operator represents a key's relationship to a set of values. \
                    Valid operators are In, NotIn, Exists and DoesNotExist.",
                "type": "string",
            },
            "values": {
                "description": "values is an array of string values. If the operator is In or \
                    NotIn, the values array must be non-empty. If the operator is Exists or \
                    DoesNotExist, the values array must be empty. This array is replaced during \
                    a strategic merge patch.",
                "type": "array",
                "items": {"type": "string"},
            },
        },
        "required": ["key", "operator"],
    })
}

/// The schema of `io.k8s.apimachinery.pkg.util.intstr.IntOrString`.
#[derive(Clone, Copy, Debug)]
pub enum IntOrString {}

impl JsonSchema for IntOrString {
    fn schema_name() -> Cow<'static, str> {
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // Without `type`: a structural schema must not have both.
        json_schema!({"x-kubernetes-int-or-string": true})
    }
}

/// The schema of `io.k8s.apimachinery.pkg.apis.meta.v1.Time`.
#[derive(Clone, Copy, Debug)]
pub enum Time {}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "io.k8s.apimachinery.pkg.apis.meta.v1.Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

/// The schema of a number from 0. That of `u32` and `u64` has a format which Kubernetes does not
/// know, and a warning for each client that applies the definition.
#[derive(Clone, Copy, Debug)]
pub enum Unsigned {}

impl JsonSchema for Unsigned {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Unsigned".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "format": "int64", "minimum": 0})
    }
}
