//! Leases: their holder and duration.
//! Mirrors `ValidateLease` in `pkg/apis/coordination/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use bellerophon_codec::object::Object;

use super::{Strategy, validation};

/// The strategy of Leases. Mirrors `pkg/registry/coordination/lease`.
pub const LEASE: Strategy = Strategy {
    default: |lease| {
        lease.section("spec");
    },
    validate,
    unconditional_update: false,
    create_on_update: true,
    ..Strategy::PLAIN
};

fn validate(lease: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = lease.body.field("spec");
    if let Some(seconds) = spec.int("leaseDurationSeconds") {
        validation::positive(&at.child("leaseDurationSeconds"), seconds, out);
    }
    if let Some(transitions) = spec.int("leaseTransitions") {
        validation::not_negative(&at.child("leaseTransitions"), transitions, out);
    }
    if let Some(strategy) = spec.field("strategy").as_str() {
        // The doubled word is Kubernetes' own.
        let at = at.child("strategy");
        let at = at.child("strategy");
        match strategy.contains('/') {
            true => validation::named(&at, strategy, names::qualified_name(strategy), out),
            false => validation::one_of(&at, strategy, &["OldestEmulationVersion"], out),
        }
    }
    if !spec.is_empty_at("preferredHolder") && spec.is_empty_at("strategy") {
        out.push(FieldError::forbidden(
            at.child("preferredHolder"),
            "may only be specified if `strategy` is defined",
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::refused;

    #[test]
    fn durations_and_strategies_are_checked() {
        refused(
            &LEASE,
            json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1, "preferredHolder": "a"}}),
            &[
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
                "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
            ],
        );
        refused(
            &LEASE,
            json!({"spec": {"strategy": "Mine"}}),
            &[
                "spec.strategy.strategy: Unsupported value: \"Mine\": supported values: \"OldestEmulationVersion\"",
            ],
        );
    }
}
