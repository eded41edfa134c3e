//! ServiceCIDRs, and the IPAddresses allocated from them.
//! Mirrors `ValidateServiceCIDR` and `ValidateIPAddress` in `pkg/apis/networking/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Value, json};

use super::{Generation, STATUS_RESETS_METADATA, Strategy, validation};

/// The strategy of ServiceCIDRs. Mirrors `pkg/registry/networking/servicecidr`.
pub const SERVICE_CIDR: Strategy = Strategy {
    reset_fields: STATUS_RESETS_METADATA,
    default: |range| {
        range.section("spec");
        range.section("status");
    },
    prepare_create: |range| {
        range.body.insert("status".into(), json!({}));
    },
    validate: validate_range,
    validate_update: grown_range,
    generation: Generation::None,
    ..Strategy::WITH_STATUS
};

/// The strategy of IPAddresses. Mirrors `pkg/registry/networking/ipaddress`.
pub const IP_ADDRESS: Strategy = Strategy {
    validate: validate_address,
    validate_update: |new, old, out| {
        let parent = new.body.field("spec").field("parentRef");
        let before = old.body.field("spec").field("parentRef");
        validation::immutable_struct(
            &Path::field("spec.parentRef"),
            "networking.ParentReference",
            parent,
            before,
            out,
        );
    },
    name: address_name,
    ..Strategy::PLAIN
};

fn validate_range(range: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec.cidrs");
    let cidrs = range.body.field("spec").list("cidrs");
    match cidrs.len() {
        0 => out.push(FieldError::required(at, "at least one CIDR required")),
        1 | 2 => {
            for (i, cidr) in cidrs.iter().filter_map(Value::as_str).enumerate() {
                canonical_cidr(&at.index(i), cidr, out);
            }
            let families: Vec<bool> = cidrs
                .iter()
                .filter_map(|c| validation::parse_cidr(c.as_str()?))
                .map(|(ip, _)| ip.is_ipv4())
                .collect();
            if matches!(families[..], [a, b] if a == b) {
                let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
                out.push(FieldError::invalid(
                    at,
                    range.body.field("spec").field("cidrs"),
                    why,
                ));
            }
        }
        _ => {
            let shown = Internal::one("networking.ServiceCIDRSpec", range.body.field("spec"));
            out.push(FieldError::invalid(
                at,
                shown,
                "may only hold up to 2 values",
            ));
        }
    }
}

fn canonical_cidr(at: &Path, text: &str, out: &mut Vec<FieldError>) {
    let before = out.len();
    validation::cidr(at, text, out);
    if out.len() > before {
        return;
    }
    let (ip, length) = validation::parse_cidr(text).expect("checked above");
    let canonical = format!("{ip}/{length}");
    if canonical != text {
        out.push(FieldError::invalid(
            at,
            text,
            &format!("must be in canonical form ({canonical:?})"),
        ));
    }
}

/// A range may only gain its second family.
fn grown_range(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let all = Path::field("spec.cidrs");
    let now = new.body.field("spec").list("cidrs");
    let before = old.body.field("spec").list("cidrs");
    match (before.len(), now.len()) {
        (a, b) if a == b => {
            for (i, (now, before)) in now.iter().zip(before).enumerate() {
                validation::immutable(&all.index(i), now, before, out);
            }
        }
        (1, 2) => validation::immutable(&all.index(0), &now[0], &before[0], out),
        _ => out.push(FieldError::invalid(
            all,
            new.body.field("spec").field("cidrs"),
            validation::IMMUTABLE,
        )),
    }
}

fn address_name(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    validation::ip(&Path::ROOT, name, &mut out);
    if let Some(error) = out.first() {
        let head = format!("Invalid value: {name:?}: ");
        return vec![
            error
                .message
                .strip_prefix(&head)
                .unwrap_or(&error.message)
                .to_owned(),
        ];
    }
    let canonical = validation::parse_ip(name)
        .map(|ip| ip.to_string())
        .unwrap_or_default();
    if canonical == name {
        Vec::new()
    } else {
        vec![format!("must be in canonical form ({canonical:?})")]
    }
}

fn validate_address(address: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec.parentRef");
    let Some(parent) = address.body.field("spec").get_set("parentRef") else {
        out.push(FieldError::required(at, ""));
        return;
    };
    let group = parent.text("group");
    if !group.is_empty() {
        validation::named(&at.child("group"), group, names::dns_subdomain(group), out);
    }
    for field in ["resource", "name"] {
        match parent.text(field) {
            "" => out.push(FieldError::required(at.child(field), "")),
            text => validation::named(&at.child(field), text, names::path_segment(text), out),
        }
    }
    let namespace = parent.text("namespace");
    validation::named(
        &at.child("namespace"),
        namespace,
        names::path_segment(namespace),
        out,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn range_is_canonical_and_only_gains_a_family() {
        refused(
            &SERVICE_CIDR,
            json!({"spec": {}}),
            &["spec.cidrs: Required value: at least one CIDR required"],
        );
        refused(
            &SERVICE_CIDR,
            json!({"spec": {"cidrs": ["2001:DB8::/64"]}}),
            &[
                "spec.cidrs[0]: Invalid value: \"2001:DB8::/64\": must be in canonical form (\"2001:db8::/64\")",
            ],
        );
        let (range, _) = create(&SERVICE_CIDR, json!({"spec": {"cidrs": ["10.1.0.0/24"]}}));
        let (_, error) = update(
            &SERVICE_CIDR,
            &range,
            json!({"spec": {"cidrs": ["10.1.0.0/24", "2001:db8::/64"]}}),
        );
        assert_eq!(error, [""; 0]);
        let (_, error) = update(
            &SERVICE_CIDR,
            &range,
            json!({"spec": {"cidrs": ["10.2.0.0/24"]}}),
        );
        assert_eq!(
            error,
            ["spec.cidrs[0]: Invalid value: \"10.2.0.0/24\": field is immutable"]
        );
    }

    #[test]
    fn address_is_named_by_itself() {
        assert_eq!(address_name("10.0.0.1"), [""; 0]);
        assert_eq!(
            address_name("x"),
            ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]
        );
        refused(&IP_ADDRESS, json!({}), &["spec.parentRef: Required value"]);
    }
}
