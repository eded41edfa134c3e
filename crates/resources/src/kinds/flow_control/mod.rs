//! FlowSchemas and PriorityLevelConfigurations. Mirrors `ValidateFlowSchema`
//! and `ValidatePriorityLevelConfiguration` in `pkg/apis/flowcontrol/validation`.

mod bootstrap; // the objects of a new cluster

pub use bootstrap::{
    AUTO_UPDATE_ANNOTATION, DANGLING, dangling, default_objects, equal_specs, mandatory_objects,
};

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{Effect, STATUS_RESETS_METADATA, Strategy, validation};

/// The strategy of FlowSchemas. Mirrors `pkg/registry/flowcontrol/flowschema`.
pub const FLOW_SCHEMA: Strategy = Strategy {
    reset_fields: STATUS_RESETS_METADATA,
    default: |schema| {
        schema
            .section("spec")
            .default_number("matchingPrecedence", 1000);
        schema.section("status");
    },
    prepare_create: |schema| {
        schema.body.insert("status".into(), json!({}));
    },
    validate: validate_schema,
    validate_status: conditions,
    effect: Effect::FlowControl,
    ..Strategy::WITH_STATUS
};

/// The strategy of PriorityLevelConfigurations. Mirrors `pkg/registry/flowcontrol/prioritylevelconfiguration`.
pub const PRIORITY_LEVEL: Strategy = Strategy {
    reset_fields: STATUS_RESETS_METADATA,
    default: default_level,
    prepare_create: |level| {
        level.body.insert("status".into(), json!({}));
    },
    validate: validate_level,
    validate_status: conditions,
    effect: Effect::FlowControl,
    ..Strategy::WITH_STATUS
};

const PRECEDENCE_MAX: i64 = 10_000;
const QUEUES_MAX: i64 = 10_000_000;
const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "head",
    "list",
    "options",
    "patch",
    "post",
    "proxy",
    "put",
    "update",
    "watch",
];

fn validate_schema(schema: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = schema.body.field("spec");
    let precedence = spec.number("matchingPrecedence");
    let at_precedence = at.child("matchingPrecedence");
    if precedence <= 0 {
        out.push(FieldError::invalid(
            at_precedence,
            precedence,
            "must be a positive value",
        ));
    }
    if precedence > PRECEDENCE_MAX {
        out.push(FieldError::invalid(
            at_precedence,
            precedence,
            &format!("must not be greater than {PRECEDENCE_MAX}"),
        ));
    }
    if precedence == 1 && schema.meta.name != "exempt" {
        out.push(FieldError::invalid(
            at_precedence,
            precedence,
            "only the schema named 'exempt' may have matchingPrecedence 1",
        ));
    }
    if let Some(method) = spec.get_set("distinguisherMethod") {
        validation::one_of(
            &at.child("distinguisherMethod").child("type"),
            method.text("type"),
            &["ByNamespace", "ByUser"],
            out,
        );
    }
    let at_level = at.child("priorityLevelConfiguration");
    match spec.field("priorityLevelConfiguration").text("name") {
        "" => out.push(FieldError::required(
            at_level.child("name"),
            "must reference a priority level",
        )),
        name => validation::named(
            &at_level.child("name"),
            name,
            names::dns_subdomain(name),
            out,
        ),
    }
    let all = at.child("rules");
    for (i, rule) in spec.list("rules").iter().enumerate() {
        validate_rule(&all.index(i), rule, out);
    }
    validate_mandatory(schema, "must equal the fixed value", out);
}

/// The specs of the mandatory objects cannot be changed.
fn validate_mandatory(object: &Object, rule: &str, out: &mut Vec<FieldError>) {
    let name = object.meta.name.as_str();
    let spec = object.body.field("spec");
    let mandatory =
        mandatory_objects().find(|fixed| fixed.kind == object.kind && fixed.meta.name == name);
    if let Some(fixed) = mandatory
        && !equal_specs(name, fixed.body.field("spec"), spec)
    {
        out.push(FieldError::invalid(
            Path::field("spec"),
            spec,
            &format!("spec of '{name}' {rule}"),
        ));
    }
}

fn validate_rule(at: &Path, rule: &Value, out: &mut Vec<FieldError>) {
    let subjects = at.child("subjects");
    if rule.is_empty_at("subjects") {
        out.push(FieldError::required(
            subjects,
            "subjects must contain at least one value",
        ));
    }
    for (i, subject) in rule.list("subjects").iter().enumerate() {
        validate_subject(&subjects.index(i), subject, out);
    }
    if rule.is_empty_at("resourceRules") && rule.is_empty_at("nonResourceRules") {
        out.push(FieldError::required(
            at,
            "at least one of resourceRules and nonResourceRules has to be non-empty",
        ));
    }
    let resource_rules = at.child("resourceRules");
    for (i, rule) in rule.list("resourceRules").iter().enumerate() {
        let at = resource_rules.index(i);
        verbs(&at.child("verbs"), rule.field("verbs"), out);
        listed(
            &at.child("apiGroups"),
            rule.field("apiGroups"),
            "resource rules must supply at least one api group",
            "api groups",
            out,
        );
        listed(
            &at.child("resources"),
            rule.field("resources"),
            "resource rules must supply at least one resource",
            "resources",
            out,
        );
        namespaces(&at.child("namespaces"), rule, out);
    }
    let url_rules = at.child("nonResourceRules");
    for (i, rule) in rule.list("nonResourceRules").iter().enumerate() {
        let at = url_rules.index(i);
        verbs(&at.child("verbs"), rule.field("verbs"), out);
        let urls = at.child("nonResourceURLs");
        listed(
            &urls,
            rule.field("nonResourceURLs"),
            "nonResourceURLs must contain at least one value",
            "non-resource URLs",
            out,
        );
        for (i, url) in rule
            .list("nonResourceURLs")
            .iter()
            .filter_map(Value::as_str)
            .enumerate()
            .filter(|(_, url)| *url != "*")
        {
            if let Some(why) = url_path(url) {
                out.push(FieldError::invalid(urls.index(i), url, why));
            }
        }
    }
}

fn validate_subject(at: &Path, subject: &Value, out: &mut Vec<FieldError>) {
    const KINDS: [(&str, &str); 3] = [
        ("ServiceAccount", "serviceAccount"),
        ("User", "user"),
        ("Group", "group"),
    ];
    let kind = subject.text("kind");
    let Some((_, own)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        return out.push(FieldError::not_supported(
            at.child("kind"),
            kind,
            &["Group", "ServiceAccount", "User"],
        ));
    };
    let place = at.child(own);
    match subject.get_set(own) {
        None => out.push(FieldError::required(
            place,
            &format!("{own} is required when subject kind is '{kind}'"),
        )),
        Some(value) => {
            let name = value.text("name");
            validation::required(&place.child("name"), name, out);
            if kind == "ServiceAccount" {
                if !["", "*"].contains(&name) {
                    validation::named(&place.child("name"), name, names::dns_subdomain(name), out);
                }
                match value.text("namespace") {
                    "" => out.push(FieldError::required(
                        place.child("namespace"),
                        "must specify namespace for service account",
                    )),
                    name => validation::named(
                        &place.child("namespace"),
                        name,
                        names::dns_label(name),
                        out,
                    ),
                }
            }
        }
    }
    for (other_kind, other) in KINDS
        .iter()
        .filter(|(name, field)| *name != kind && subject.get_set(field).is_some())
    {
        out.push(FieldError::forbidden(
            at.child(other),
            &format!("{other} is forbidden when subject kind is not '{other_kind}'"),
        ));
    }
}

fn verbs(at: &Path, list: &Value, out: &mut Vec<FieldError>) {
    listed(
        at,
        list,
        "verbs must contain at least one value",
        "verbs",
        out,
    );
    let items: Vec<&str> = list
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !items.contains(&"*") && items.iter().any(|verb| !VERBS.contains(verb)) {
        out.push(FieldError::not_supported(at, list, VERBS));
    }
}

/// A list that names something, or `*` alone.
fn listed(at: &Path, list: &Value, when_empty: &str, what: &str, out: &mut Vec<FieldError>) {
    let items: Vec<&str> = list
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if items.is_empty() {
        out.push(FieldError::required(at, when_empty));
    } else if items.len() > 1 && items.contains(&"*") {
        out.push(FieldError::invalid(
            at,
            list,
            &format!("if '*' is present, must not specify other {what}"),
        ));
    }
}

fn namespaces(at: &Path, rule: &Value, out: &mut Vec<FieldError>) {
    let items: Vec<&str> = rule
        .list("namespaces")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    if items.is_empty() && !rule.is_true("clusterScope") {
        return out.push(FieldError::required(
            at,
            "resource rules that are not cluster scoped must supply at least one namespace",
        ));
    }
    if items.contains(&"*") {
        if items.len() > 1 {
            out.push(FieldError::invalid(
                at,
                rule.field("namespaces"),
                "if '*' is present, must not specify other namespaces",
            ));
        }
        return;
    }
    for (i, name) in items.iter().enumerate() {
        let errors = names::dns_label(name);
        let intro = "each member of this list must be '*' or a DNS-1123 label; ";
        out.extend(
            errors
                .iter()
                .map(|why| FieldError::invalid(at.index(i), *name, &format!("{intro}{why}"))),
        );
    }
}

fn url_path(path: &str) -> Option<&'static str> {
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        path if !path.starts_with('/') => Some("must start with slash"),
        path if path.contains(' ') => Some("must not contain white-space"),
        path if path.contains("//") => Some("must not contain double slash"),
        path if path.matches('*').count() > 1 || (path.contains('*') && !path.ends_with("/*")) => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

fn default_level(level: &mut Object) {
    let spec = level.section("spec");
    for (kind, shares) in [("exempt", 0), ("limited", 30)] {
        let Some(settings) = spec.map_mut(kind) else {
            continue;
        };
        settings.default_to("nominalConcurrencyShares", shares);
        settings.default_to("lendablePercent", 0);
        let queuing = settings
            .map_mut("limitResponse")
            .and_then(|response| response.map_mut("queuing"));
        for queuing in queuing.into_iter() {
            queuing.default_number("handSize", 8);
            queuing.default_number("queues", 64);
            queuing.default_number("queueLengthLimit", 50);
        }
    }
    level.section("status");
}

fn validate_level(level: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = level.body.field("spec");
    let kind = spec.text("type");
    if (level.meta.name == "exempt") != (kind == "Exempt") {
        out.push(FieldError::invalid(
            at.child("type"),
            kind,
            "must be 'Exempt' if and only if `name` is 'exempt'",
        ));
    }
    let exempt = spec.get_set("exempt");
    let limited = spec.get_set("limited");
    match kind {
        "Exempt" => {
            if limited.is_some() {
                out.push(FieldError::forbidden(
                    at.child("limited"),
                    "must be nil if the type is not Limited",
                ));
            }
            exempt
                .into_iter()
                .for_each(|settings| shares(&at.child("exempt"), settings, out));
        }
        "Limited" => {
            if exempt.is_some() {
                out.push(FieldError::forbidden(
                    at.child("exempt"),
                    "must be nil if the type is Limited",
                ));
            }
            match limited {
                None => out.push(FieldError::required(
                    at.child("limited"),
                    "must not be empty when type is Limited",
                )),
                Some(settings) => validate_limited(&at.child("limited"), settings, out),
            }
        }
        "" => out.push(FieldError::required(at.child("type"), "")),
        other => out.push(FieldError::not_supported(
            at.child("type"),
            other,
            &["Exempt", "Limited"],
        )),
    }
    let rule = match kind {
        "Exempt" => "except the 'spec.exempt' field must equal the fixed value",
        _ => "must equal the fixed value",
    };
    validate_mandatory(level, rule, out);
}

fn shares(at: &Path, settings: &Value, out: &mut Vec<FieldError>) {
    if let Some(shares) = settings
        .int("nominalConcurrencyShares")
        .filter(|shares| *shares < 0)
    {
        out.push(FieldError::invalid(
            at.child("nominalConcurrencyShares"),
            shares,
            "must be a non-negative integer",
        ));
    }
    lendable(at, settings, out);
}

fn lendable(at: &Path, settings: &Value, out: &mut Vec<FieldError>) {
    if let Some(percent) = settings
        .int("lendablePercent")
        .filter(|percent| !(0..=100).contains(percent))
    {
        out.push(FieldError::invalid(
            at.child("lendablePercent"),
            percent,
            "must be between 0 and 100, inclusive",
        ));
    }
}

fn validate_limited(at: &Path, settings: &Value, out: &mut Vec<FieldError>) {
    if let Some(shares) = settings
        .int("nominalConcurrencyShares")
        .filter(|shares| *shares < 0)
    {
        out.push(FieldError::invalid(
            at.child("nominalConcurrencyShares"),
            shares,
            "must be a non-negative integer",
        ));
    }
    let place = at.child("limitResponse");
    let response = settings.field("limitResponse");
    match (response.text("type"), response.get_set("queuing")) {
        ("Reject", Some(_)) => {
            out.push(FieldError::forbidden(
                place.child("queuing"),
                "must be nil if limited.limitResponse.type is not Limited",
            ));
        }
        ("Reject", None) => {}
        ("Queue", None) => {
            out.push(FieldError::required(
                place.child("queuing"),
                "must not be empty if limited.limitResponse.type is Limited",
            ));
        }
        ("Queue", Some(queuing)) => validate_queuing(&place.child("queuing"), queuing, out),
        ("", _) => out.push(FieldError::required(place.child("type"), "")),
        (other, _) => out.push(FieldError::not_supported(
            place.child("type"),
            other,
            &["Queue", "Reject"],
        )),
    }
    lendable(at, settings, out);
    if let Some(percent) = settings
        .int("borrowingLimitPercent")
        .filter(|percent| *percent < 0)
    {
        out.push(FieldError::invalid(
            at.child("borrowingLimitPercent"),
            percent,
            "if specified, must be a non-negative integer",
        ));
    }
}

fn validate_queuing(at: &Path, queuing: &Value, out: &mut Vec<FieldError>) {
    let length = queuing.number("queueLengthLimit");
    let queues = queuing.number("queues");
    let hand = queuing.number("handSize");
    for (name, value) in [("queueLengthLimit", length), ("queues", queues)] {
        if value <= 0 {
            out.push(FieldError::invalid(
                at.child(name),
                value,
                "must be positive",
            ));
        }
    }
    if queues > QUEUES_MAX {
        out.push(FieldError::invalid(
            at.child("queues"),
            queues,
            &format!("must not be greater than {QUEUES_MAX}"),
        ));
    }
    if hand <= 0 {
        out.push(FieldError::invalid(
            at.child("handSize"),
            hand,
            "must be positive",
        ));
    } else if hand > queues {
        out.push(FieldError::invalid(
            at.child("handSize"),
            hand,
            &format!("should not be greater than queues ({queues})"),
        ));
    } else if let (Ok(deck), Ok(size)) = (u32::try_from(queues), u32::try_from(hand))
        && required_bits(deck, size) > HASH_BITS_MAX
    {
        let needed = format!("required entropy bits of deckSize {queues} and handSize {hand}");
        out.push(FieldError::invalid(
            at.child("handSize"),
            hand,
            &format!("{needed} should not be greater than {HASH_BITS_MAX}"),
        ));
    }
}

fn conditions(new: &Object, _: &Object, out: &mut Vec<FieldError>) {
    let all = Path::field("status.conditions");
    let mut seen = BTreeSet::new();
    for (i, condition) in new
        .body
        .field("status")
        .list("conditions")
        .iter()
        .enumerate()
    {
        let at = all.index(i);
        let kind = condition.text("type");
        if !seen.insert(kind) {
            out.push(FieldError::duplicate(at.child("type"), kind));
        }
        validation::required(&at.child("type"), kind, out);
    }
}

/// The hash values that dealing may use up, in bits; kube-apiserver has the same limit.
pub const HASH_BITS_MAX: u32 = 60;

/// How many bits of a hash are used up by dealing a hand from this many queues; mirrors
/// `RequiredEntropyBits`.
pub fn required_bits(queues: u32, hand_size: u32) -> u32 {
    (f64::from(queues).log2() * f64::from(hand_size)).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused};

    #[test]
    fn schema_needs_a_level_and_subjects() {
        refused(
            &FLOW_SCHEMA,
            json!({"metadata": {"name": "a"}, "spec": {"matchingPrecedence": 1, "rules": [{"resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}]}}),
            &[
                "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
                "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
                "spec.rules[0].subjects: Required value: subjects must contain at least one value",
                "spec.rules[0].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace",
            ],
        );
    }

    #[test]
    fn mandatory_objects_cannot_be_changed() {
        let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 7}});
        let (_, errors) = create(
            &PRIORITY_LEVEL,
            json!({"kind": "PriorityLevelConfiguration", "metadata": {"name": "exempt"}, "spec": exempt}),
        );
        assert_eq!(
            errors, [""; 0],
            "seats of the exempt level are free to choose"
        );
        let (_, errors) = create(
            &PRIORITY_LEVEL,
            json!({"kind": "PriorityLevelConfiguration", "metadata": {"name": "catch-all"},
                   "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}}),
        );
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].ends_with("spec of 'catch-all' must equal the fixed value"),
            "{errors:?}"
        );
    }

    #[test]
    fn hand_that_a_hash_cannot_supply_is_refused() {
        refused(
            &PRIORITY_LEVEL,
            json!({"metadata": {"name": "a"}, "spec": {"type": "Limited", "limited": {"limitResponse": {
                "type": "Queue", "queuing": {"queues": 1024, "handSize": 7}}}}}),
            &[
                "spec.limited.limitResponse.queuing.handSize: Invalid value: 7: required entropy bits of deckSize 1024 and handSize 7 should not be greater than 60",
            ],
        );
    }

    #[test]
    fn limited_level_is_completed() {
        let (level, errors) = create(
            &PRIORITY_LEVEL,
            json!({"metadata": {"name": "a"}, "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}}),
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            level.at("spec.limited"),
            Some(
                &json!({"nominalConcurrencyShares": 30, "lendablePercent": 0, "limitResponse": {"type": "Queue", "queuing": {"handSize": 8, "queues": 64, "queueLengthLimit": 50}}})
            )
        );
        refused(
            &PRIORITY_LEVEL,
            json!({"metadata": {"name": "a"}, "spec": {"type": "Limited"}}),
            &["spec.limited: Required value: must not be empty when type is Limited"],
        );
    }
}
