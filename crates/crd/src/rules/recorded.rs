//! Definitions with rules, and objects of them, with the recorded results of Kubernetes 1.36.4. The
//! results in `recorded.json` come from its own validation; the order of errors is left out,
//! because it is random there.

use bellerophon_apimachinery::field::{FieldError, Path};
use serde_json::{Value, json};

use super::{
    run::{RULE_BUDGET, Ratchet, RuleTree},
    validate_rules::{self, Suppress},
};
use crate::{openapi, schema::Schema, structural};

fn texts(value: &Value) -> Vec<String> {
    value
        .as_array()
        .expect("a list")
        .iter()
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

fn sorted(errors: &[FieldError]) -> Vec<String> {
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.sort();
    texts
}

/// The errors of a schema, as far as rules are concerned.
fn refused(schema: &Schema) -> Vec<String> {
    let path = Path::field("spec.validation.openAPIV3Schema");
    let mut errors = structural::validate(schema, &path);
    let is_sound = errors.is_empty();
    openapi::validate(schema, &path, &mut errors);
    if is_sound {
        let (single, together) =
            validate_rules::validate(schema, &path, &errors, Suppress::Nothing);
        errors.extend(single.into_iter().chain(together));
    }
    sorted(&errors)
}

/// The errors and warnings about an object.
fn validated(
    tree: Option<&RuleTree>,
    schema: &Schema,
    new: &Value,
    old: Option<&Value>,
) -> (Vec<String>, Vec<String>) {
    let mut errors = Vec::new();
    let mut warnings = Vec::new();
    if let Some(tree) = tree {
        warnings = tree
            .validate(
                new,
                old,
                Ratchet::root(new, old, schema),
                RULE_BUDGET,
                &mut errors,
            )
            .1;
    }
    warnings.sort();
    (sorted(&errors), warnings)
}

#[test]
fn definitions_and_objects_are_validated_as_in_kubernetes() {
    let recorded: Vec<Value> =
        serde_json::from_str(include_str!("recorded.json")).expect("the record is JSON");
    assert!(recorded.len() > 50, "the record is there");
    let mut errs = Vec::new();
    for case in &recorded {
        let schema = Schema::parse(&case["schema"]).expect("it is well typed");
        let found = refused(&schema);
        if found != texts(&case["refused"]) {
            errs.push(format!(
                "{}\n  want {}\n  got  {}",
                case["name"],
                case["refused"],
                json!(found)
            ));
            continue;
        }
        let tree = RuleTree::of(&schema);
        for object in case["objects"].as_array().expect("a list") {
            let (errors, warnings) =
                validated(tree.as_ref(), &schema, &object["new"], object.get("old"));
            if errors != texts(&object["errors"]) || warnings != texts(&object["warnings"]) {
                let want = json!([object["errors"], object["warnings"]]);
                errs.push(format!(
                    "{} of {}\n  want {want}\n  got  {}",
                    case["name"],
                    object["new"],
                    json!([errors, warnings])
                ));
            }
        }
    }
    assert!(
        errs.is_empty(),
        "{} differ:\n{}",
        errs.len(),
        errs.join("\n")
    );
}
