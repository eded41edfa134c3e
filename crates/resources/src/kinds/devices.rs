//! The kinds of resource.k8s.io: claims on devices, device classes, and slices of drivers.
//! Guarantees: the spec of a claim is immutable. Mirrors `ValidateResourceClaim`,
//! `ValidateDeviceClass` and `ValidateResourceSlice` in `pkg/apis/resource/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{
    DeleteAnswer, Generation, STATUS_RESETS_METADATA, Strategy, persistent_volume::driver_name,
    validation,
};

const ANSWERED: Strategy = Strategy {
    delete_answer: DeleteAnswer::Object,
    ..Strategy::PLAIN
};

/// The strategy of ResourceClaims. Mirrors `pkg/registry/resource/resourceclaim`.
pub const RESOURCE_CLAIM: Strategy = Strategy {
    reset_fields: STATUS_RESETS_METADATA,
    default: |claim| {
        default_spec(claim.section("spec"));
        claim.section("status");
    },
    prepare_create: |claim| {
        claim.body.insert("status".into(), json!({}));
    },
    validate_create: |claim, out| {
        validate_claim(
            &Path::field("spec.devices"),
            claim.body.field("spec").field("devices"),
            out,
        )
    },
    validate_update: |new, old, out| fixed_spec("resource.ResourceClaimSpec", new, old, out),
    generation: Generation::None,
    delete_answer: DeleteAnswer::Object,
    ..Strategy::WITH_STATUS
};

/// The strategy of ResourceClaimTemplates. Mirrors `pkg/registry/resource/resourceclaimtemplate`.
pub const RESOURCE_CLAIM_TEMPLATE: Strategy = Strategy {
    default: |template| {
        let inner = template.section("spec").map_at("spec");
        default_spec(inner);
    },
    validate_create: |template, out| {
        validate_claim(
            &Path::field("spec.spec.devices"),
            template.body.field("spec").field("spec").field("devices"),
            out,
        );
    },
    validate_update: |new, old, out| {
        fixed_spec("resource.ResourceClaimTemplateSpec", new, old, out)
    },
    ..ANSWERED
};

/// The strategy of DeviceClasses. Mirrors `pkg/registry/resource/deviceclass`.
pub const DEVICE_CLASS: Strategy = Strategy {
    default: |class| {
        class.section("spec");
    },
    validate: |class, out| {
        selectors(
            &Path::field("spec.selectors"),
            class.body.field("spec").list("selectors"),
            out,
        )
    },
    generation: Generation::Spec,
    ..ANSWERED
};

/// The strategy of ResourceSlices. Mirrors `pkg/registry/resource/resourceslice`.
pub const RESOURCE_SLICE: Strategy = Strategy {
    validate: validate_slice,
    validate_update: |new, old, out| {
        let at = Path::field("spec");
        let before = old.body.field("spec");
        let spec = new.body.field("spec");
        validation::immutable(
            &at.child("pool").child("name"),
            spec.field("pool").field("name"),
            before.field("pool").field("name"),
            out,
        );
        validation::immutable(
            &at.child("driver"),
            spec.field("driver"),
            before.field("driver"),
            out,
        );
        validation::immutable(
            &at.child("nodeName"),
            spec.field("nodeName"),
            before.field("nodeName"),
            out,
        );
    },
    generation: Generation::Spec,
    ..ANSWERED
};

const LIST_MAX: usize = 32;
const SUB_REQUESTS_MAX: usize = 8;
const EXPRESSION_MAX: usize = 10 * 1024;
const POOL_NAME_MAX: usize = 253;

fn default_spec(spec: &mut Map<String, Value>) {
    for request in spec.map_at("devices").maps_mut("requests") {
        if let Some(exactly) = request.map_mut("exactly") {
            default_request(exactly);
        }
        request.maps_mut("firstAvailable").for_each(default_request);
    }
}

fn default_request(request: &mut Map<String, Value>) {
    request.default_text("allocationMode", "ExactCount");
    if request.text("allocationMode") == "ExactCount" {
        request.default_number("count", 1);
    }
}

fn fixed_spec(name: &'static str, new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    validation::immutable_struct(
        &Path::field("spec"),
        name,
        new.body.field("spec"),
        old.body.field("spec"),
        out,
    );
}

fn validate_claim(at: &Path, devices: &Value, out: &mut Vec<FieldError>) {
    let all = at.child("requests");
    let requests = devices.list("requests");
    at_most(&all, requests.len(), LIST_MAX, out);
    let mut seen = BTreeSet::new();
    for (i, request) in requests.iter().enumerate() {
        validate_request(&all.index(i), request, out);
        if !seen.insert(request.text("name")) {
            out.push(FieldError::duplicate(all.index(i), request.text("name")));
        }
    }
    for list in ["constraints", "config"] {
        let all = at.child(list);
        at_most(&all, devices.list(list).len(), LIST_MAX, out);
        for (i, item) in devices.list(list).iter().enumerate() {
            known_requests(&all.index(i), item, requests, out);
        }
    }
}

fn at_most(at: &Path, count: usize, max: usize, out: &mut Vec<FieldError>) {
    if count > max {
        out.push(FieldError::too_many(at, count, max));
    }
}

fn validate_request(at: &Path, request: &Value, out: &mut Vec<FieldError>) {
    request_name(&at.child("name"), request.text("name"), out);
    match (request.get_set("exactly"), request.list("firstAvailable")) {
        (None, []) => out.push(FieldError::required(
            at,
            "exactly one of `exactly` or `firstAvailable` is required",
        )),
        (Some(_), [_, ..]) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            out.push(FieldError::invalid(at, validation::NULL, why));
        }
        (Some(exactly), []) => validate_devices(&at.child("exactly"), exactly, out),
        (None, choices) => {
            let all = at.child("firstAvailable");
            at_most(&all, choices.len(), SUB_REQUESTS_MAX, out);
            let mut seen = BTreeSet::new();
            for (i, choice) in choices.iter().enumerate() {
                request_name(&all.index(i).child("name"), choice.text("name"), out);
                validate_devices(&all.index(i), choice, out);
                if !seen.insert(choice.text("name")) {
                    out.push(FieldError::duplicate(all.index(i), choice.text("name")));
                }
            }
        }
    }
}

fn request_name(at: &Path, name: &str, out: &mut Vec<FieldError>) {
    match name {
        "" => out.push(FieldError::required(at, "")),
        name => validation::named(at, name, names::dns_label(name), out),
    }
}

fn validate_devices(at: &Path, request: &Value, out: &mut Vec<FieldError>) {
    match request.text("deviceClassName") {
        "" => out.push(FieldError::required(at.child("deviceClassName"), "")),
        class => validation::named(
            &at.child("deviceClassName"),
            class,
            names::dns_subdomain(class),
            out,
        ),
    }
    selectors(&at.child("selectors"), request.list("selectors"), out);
    let count = request.number("count");
    match request.text("allocationMode") {
        "All" if count != 0 => out.push(FieldError::invalid(
            at.child("count"),
            count,
            "must not be specified when allocationMode is 'All'",
        )),
        "ExactCount" if count <= 0 => out.push(FieldError::invalid(
            at.child("count"),
            count,
            "must be greater than zero",
        )),
        "All" | "ExactCount" => {}
        other => out.push(FieldError::not_supported(
            at.child("allocationMode"),
            other,
            &["All", "ExactCount"],
        )),
    }
}

fn selectors(all: &Path, selectors: &[Value], out: &mut Vec<FieldError>) {
    at_most(all, selectors.len(), LIST_MAX, out);
    for (i, selector) in selectors.iter().enumerate() {
        let at = all.index(i);
        match selector.get_set("cel") {
            None => out.push(FieldError::required(at.child("cel"), "")),
            Some(cel) if cel.text("expression").len() > EXPRESSION_MAX => {
                out.push(FieldError::too_long(
                    at.child("cel").child("expression"),
                    EXPRESSION_MAX,
                ));
            }
            Some(_) => {}
        }
    }
}

/// Constraints and configurations name requests of the same claim, or `request/choice`.
fn known_requests(at: &Path, item: &Value, requests: &[Value], out: &mut Vec<FieldError>) {
    let all = at.child("requests");
    for (i, name) in item
        .list("requests")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        let (main, sub) = name
            .split_once('/')
            .map_or((name, None), |(main, sub)| (main, Some(sub)));
        let known = requests
            .iter()
            .filter(|request| request.text("name") == main)
            .any(|request| {
                sub.is_none_or(|sub| {
                    request
                        .list("firstAvailable")
                        .iter()
                        .any(|choice| choice.text("name") == sub)
                })
            });
        if !known {
            let why = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
            out.push(FieldError::invalid(all.index(i), name, why));
        }
    }
}

fn validate_slice(slice: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = slice.body.field("spec");
    validation::required(&at.child("driver"), spec.text("driver"), out);
    driver_name(&at.child("driver"), spec.text("driver"), out);
    let at_pool = at.child("pool");
    let pool = spec.field("pool");
    let name = pool.text("name");
    validation::required(&at_pool.child("name"), name, out);
    if name.len() > POOL_NAME_MAX {
        out.push(FieldError::too_long(at_pool.child("name"), POOL_NAME_MAX));
    }
    for part in name.split('/').filter(|_| !name.is_empty()) {
        validation::named(
            &at_pool.child("name"),
            part,
            names::dns_subdomain(part),
            out,
        );
    }
    if pool.number("resourceSliceCount") <= 0 {
        out.push(FieldError::invalid(
            at_pool.child("resourceSliceCount"),
            pool.number("resourceSliceCount"),
            "must be greater than zero",
        ));
    }
    if pool.number("generation") < 0 {
        let why = "must be greater than or equal to zero";
        out.push(FieldError::invalid(
            at_pool.child("generation"),
            pool.number("generation"),
            why,
        ));
    }
    if let Some(node) = spec.field("nodeName").as_str() {
        match node {
            "" => out.push(FieldError::invalid(
                at.child("nodeName"),
                "",
                "must be either unset or set to a non-empty string",
            )),
            node => validation::named(&at.child("nodeName"), node, names::dns_subdomain(node), out),
        }
    }
    let mut seen = BTreeSet::new();
    let all = at.child("devices");
    for (i, device) in spec.list("devices").iter().enumerate() {
        let name = device.text("name");
        request_name(&all.index(i).child("name"), name, out);
        if !seen.insert(name) {
            out.push(FieldError::duplicate(all.index(i), name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    fn claim(class: &str) -> Value {
        json!({"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": class}}]}}})
    }

    #[test]
    fn claim_requests_one_device_and_is_immutable() {
        let (stored, errors) = create(&RESOURCE_CLAIM, claim("gpu.example.com"));
        assert_eq!(errors, [""; 0]);
        let request = &stored.body["spec"]["devices"]["requests"][0]["exactly"];
        assert_eq!(
            request,
            &json!({"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1})
        );
        let (_, errors) = update(&RESOURCE_CLAIM, &stored, claim("other.example.com"));
        assert!(
            errors.len() == 1 && errors[0].ends_with("field is immutable"),
            "{errors:?}"
        );
    }

    #[test]
    fn requests_are_checked() {
        refused(
            &RESOURCE_CLAIM,
            json!({"spec": {"devices": {"requests": [{"name": ""}, {"name": "a", "exactly": {"allocationMode": "Some"}}], "constraints": [{"requests": ["b"]}]}}}),
            &[
                "spec.devices.requests[0].name: Required value",
                "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
                "spec.devices.requests[1].exactly.deviceClassName: Required value",
                r#"spec.devices.requests[1].exactly.allocationMode: Unsupported value: "Some": supported values: "All", "ExactCount""#,
                r#"spec.devices.constraints[0].requests[0]: Invalid value: "b": must be the name of a request…"#,
            ],
        );
    }

    #[test]
    fn slice_keeps_its_pool() {
        let slice = |pool: &str| json!({"spec": {"driver": "gpu.example.com", "nodeName": "n1", "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}});
        let (stored, errors) = create(&RESOURCE_SLICE, slice("a"));
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            update(&RESOURCE_SLICE, &stored, slice("b")).1,
            ["spec.pool.name: Invalid value: \"b\": field is immutable"]
        );
    }
}
