//! CertificateSigningRequests: the requesting user, approval and the issued certificate.
//! Guarantees: the spec never changes; approvals come only through `approval`, certificates only
//! through `status`. Mirrors `ValidateCertificateSigningRequestCreate` and its updates in
//! `pkg/apis/certificates/validation`.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt, same},
    names,
    time::Time,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};
use x509_parser::{certification_request::X509CertificationRequest, pem::Pem, prelude::FromDer};

use super::{Generation, Strategy, config_map::decoded, strategy::keep_all_but_status, validation};

/// The strategy of CertificateSigningRequests. Mirrors `pkg/registry/certificates/certificates`.
pub const SIGNING_REQUEST: Strategy = Strategy {
    reset_fields: &[
        ("", &[&["spec"], &["status"]]),
        ("status", &[&["spec"], &["status", "conditions"]]),
        ("approval", &[&["spec"], &["status", "certificate"]]),
    ],
    default: |request| {
        request.section("status");
    },
    prepare_create: |request| {
        request.body.insert("status".into(), json!({}));
    },
    prepare_update: |new, old| {
        new.body = old.body.clone();
    },
    prepare_status,
    stamp,
    validate: validate_spec,
    validate_status: |new, old, out| {
        validate_spec(new, out);
        validate_change(new, old, Allowed::Certificate, out);
    },
    name: |_| Vec::new(),
    generation: Generation::None,
    ..Strategy::WITH_STATUS
};

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
const SECONDS_MIN: i64 = 600;
const APPROVALS: [&str; 2] = ["Approved", "Denied"];

/// The fields that a write may change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Allowed {
    Approval,
    Certificate,
}

/// Records the requesting user, whatever the request contains.
pub fn record_requester(request: &mut Object, user_info: &Value) {
    let spec = request.section("spec");
    for field in ["username", "uid", "groups", "extra"] {
        match user_info.get_set(field) {
            Some(value) => spec.insert(field.into(), value.clone()),
            None => spec.remove(field),
        };
    }
}

/// A write to `approval`: the conditions of the request, all other fields as stored.
pub fn prepare_approval(new: &mut Object, old: &Object) {
    let conditions = new.body.field("status").list("conditions").to_vec();
    keep_all_but_status(new, old);
    let mut status = old
        .body
        .field("status")
        .as_object()
        .cloned()
        .unwrap_or_default();
    status.insert("conditions".into(), conditions.into());
    new.body.insert("status".into(), status.into());
}

/// The errors of a write to `approval`.
pub fn validate_approval(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    validate_spec(new, out);
    validate_change(new, old, Allowed::Approval, out);
}

/// A status write keeps approvals and denials unchanged, as long as it contains them.
fn prepare_status(new: &mut Object, old: &Object) {
    keep_all_but_status(new, old);
    let before = old.body.field("status").list("conditions").to_vec();
    for kind in APPROVALS {
        let held: Vec<&Value> = before.iter().filter(|c| c.text("type") == kind).collect();
        let status = new.section("status");
        let given: Vec<&mut Map<String, Value>> = status
            .maps_mut("conditions")
            .filter(|c| c.text("type") == kind)
            .collect();
        if given.len() == held.len() {
            for (given, held) in given.into_iter().zip(held) {
                *given = held.as_object().cloned().unwrap_or_default();
            }
        }
    }
}

/// Dates new conditions.
fn stamp(new: &mut Object, old: Option<&Object>, now: Time) {
    let before = old.map_or(&[][..], |old| old.body.field("status").list("conditions"));
    // By type and status; of equal ones the first counts.
    let mut transitions: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for condition in before {
        transitions
            .entry((condition.text("type"), condition.text("status")))
            .or_insert(condition.text("lastTransitionTime"));
    }
    for condition in new.section("status").maps_mut("conditions") {
        condition.default_to("lastUpdateTime", now.to_string());
        let since = transitions
            .get(&(condition.text("type"), condition.text("status")))
            .copied()
            .filter(|since| !since.is_empty());
        let since = since.map_or_else(|| now.to_string(), str::to_owned);
        condition.default_to("lastTransitionTime", since);
    }
}

fn validate_spec(request: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = request.body.field("spec");
    if let Err(why) = parse_request(&decoded(spec.field("request"))) {
        out.push(FieldError::invalid(
            at.child("request"),
            spec.field("request"),
            &why,
        ));
    }
    let all = at.child("usages");
    let usages = spec.list("usages");
    if usages.is_empty() {
        out.push(FieldError::required(all, ""));
    }
    for (i, usage) in usages.iter().filter_map(Value::as_str).enumerate() {
        validation::one_of(&all.index(i), usage, USAGES, out);
    }
    let mut seen = BTreeSet::new();
    for (i, usage) in usages.iter().filter_map(Value::as_str).enumerate() {
        if !seen.insert(usage) {
            out.push(FieldError::duplicate(all.index(i), usage));
        }
    }
    signer_name(&at.child("signerName"), spec.text("signerName"), out);
    if let Some(seconds) = spec
        .int("expirationSeconds")
        .filter(|seconds| *seconds < SECONDS_MIN)
    {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        out.push(FieldError::invalid(
            at.child("expirationSeconds"),
            seconds,
            why,
        ));
    }
    conditions(request.body.field("status").list("conditions"), out);
}

fn parse_request(bytes: &[u8]) -> Result<(), String> {
    let block = Pem::iter_from_buffer(bytes)
        .next()
        .and_then(Result::ok)
        .filter(|block| block.label == "CERTIFICATE REQUEST");
    let block = block.ok_or("PEM block type must be CERTIFICATE REQUEST")?;
    X509CertificationRequest::from_der(&block.contents)
        .map(|_| ())
        .map_err(|_| "asn1: structure error: not a certificate request".into())
}

fn signer_name(at: &Path, name: &str, out: &mut Vec<FieldError>) {
    match name {
        "" => return out.push(FieldError::required(at, "")),
        "kubernetes.io/legacy-unknown" => {
            return out.push(FieldError::invalid(
                at,
                name,
                "the legacy signerName is not allowed via this API version",
            ));
        }
        _ => {}
    }
    let [domain, path] = name.split('/').collect::<Vec<_>>()[..] else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return out.push(FieldError::invalid(at, name, why));
    };
    let labels: Vec<&str> = domain.split('.').collect();
    if let Some((label, errors)) = labels
        .iter()
        .map(|label| (label, names::dns_label(label)))
        .find(|(_, errors)| !errors.is_empty())
    {
        out.extend(errors.iter().map(|why| {
            FieldError::invalid(at, domain, &format!("validating label {label:?}: {why}"))
        }));
    }
    if labels.len() < 2 {
        out.push(FieldError::invalid(
            at,
            domain,
            "should be a domain with at least two segments separated by dots",
        ));
    }
    let errors = names::dns_subdomain(path);
    out.extend(
        errors
            .iter()
            .map(|why| FieldError::invalid(at, path, &format!("validating label {path:?}: {why}"))),
    );
}

fn conditions(conditions: &[Value], out: &mut Vec<FieldError>) {
    let all = Path::field("status.conditions");
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let at = all.index(i);
        let kind = condition.text("type");
        let status = condition.text("status");
        validation::required(&at.child("type"), kind, out);
        let allowed: &[&str] = if ["Approved", "Denied", "Failed"].contains(&kind) {
            &["True"]
        } else {
            &["False", "True", "Unknown"]
        };
        match status {
            "" => out.push(FieldError::required(at.child("status"), "")),
            status => validation::one_of(&at.child("status"), status, allowed, out),
        }
        let opposite = APPROVALS
            .iter()
            .find(|other| APPROVALS.contains(&kind) && **other != kind);
        if opposite.is_some_and(|other| seen.contains(other)) {
            out.push(FieldError::invalid(
                all,
                kind,
                "Approved and Denied conditions are mutually exclusive",
            ));
        }
        if !seen.insert(kind) {
            out.push(FieldError::duplicate(at.child("type"), kind));
        }
    }
}

fn validate_change(new: &Object, old: &Object, allowed: Allowed, out: &mut Vec<FieldError>) {
    let of = |request: &Object, kind: &str| -> Vec<Value> {
        request
            .body
            .field("status")
            .list("conditions")
            .iter()
            .filter(|c| c.text("type") == kind)
            .cloned()
            .collect()
    };
    let certificate =
        |request: &Object| request.body.field("status").text("certificate").to_owned();
    if certificate(new) != certificate(old)
        && let Err(why) =
            validate_certificate(&decoded(new.body.field("status").field("certificate")))
    {
        out.push(FieldError::invalid(
            "status.certificate",
            "<certificate data>",
            &why,
        ));
    }
    for kind in ["Approved", "Denied", "Failed"] {
        if of(new, kind).len() < of(old, kind).len() {
            out.push(FieldError::forbidden(
                "status.conditions",
                &format!("updates may not remove a condition of type {kind:?}"),
            ));
        }
    }
    if allowed != Allowed::Approval {
        for kind in APPROVALS {
            let now = of(new, kind);
            let before = of(old, kind);
            if now.len() > before.len() {
                out.push(FieldError::forbidden(
                    "status.conditions",
                    &format!("updates may not add a condition of type {kind:?}"),
                ));
            } else if now.len() == before.len() && !now.iter().zip(&before).all(|(a, b)| same(a, b))
            {
                // Kubernetes adds a diff of its Go structs here.
                out.push(FieldError::forbidden(
                    "status.conditions",
                    &format!("updates may not modify a condition of type {kind:?}"),
                ));
            }
        }
    }
    if certificate(new) != certificate(old) {
        if allowed != Allowed::Certificate {
            out.push(FieldError::forbidden(
                "status.certificate",
                "updates may not set certificate content",
            ));
        } else if !certificate(old).is_empty() {
            out.push(FieldError::forbidden(
                "status.certificate",
                "updates may not modify existing certificate content",
            ));
        }
    }
}

fn validate_certificate(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Ok(());
    }
    let blocks: Vec<Pem> = Pem::iter_from_buffer(bytes)
        .filter_map(Result::ok)
        .collect();
    if blocks.is_empty() {
        return Err("must contain at least one CERTIFICATE PEM block".into());
    }
    for block in &blocks {
        if block.label != "CERTIFICATE" {
            return Err(format!(
                "only CERTIFICATE PEM blocks are allowed, found {:?}",
                block.label
            ));
        }
        block
            .parse_x509()
            .map_err(|_| "x509: malformed certificate".to_owned())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    use super::*;
    use crate::kinds::test_support::{NOW, assert_lines, create, object, update, update_status};

    fn request() -> Value {
        let key = rcgen::KeyPair::generate().expect("a key");
        let pem = rcgen::CertificateParams::new(vec!["jane".into()])
            .and_then(|p| p.serialize_request(&key))
            .and_then(|r| r.pem())
            .expect("a request");
        json!({"metadata": {"name": "csr"}, "spec": {"request": STANDARD.encode(pem), "signerName": "example.com/internal", "usages": ["client auth"], "username": "forged"}})
    }

    fn approve(old: &Object, conditions: Value) -> (Object, Vec<String>) {
        let mut new =
            object(json!({"metadata": {"name": "csr"}, "status": {"conditions": conditions}}));
        prepare_approval(&mut new, old);
        stamp(&mut new, Some(old), Time::parse(NOW).expect("a constant"));
        let mut out = Vec::new();
        validate_approval(&new, old, &mut out);
        (new, out.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn request_records_the_requesting_user() {
        let (mut stored, errors) = create(&SIGNING_REQUEST, request());
        assert_eq!(errors.len(), 0);
        assert_eq!(stored.str_at("spec.username"), "forged");
        record_requester(&mut stored, &json!({"username": "jane", "groups": ["dev"]}));
        assert_eq!(stored.str_at("spec.username"), "jane");
        assert_eq!(stored.at("spec.groups"), Some(&json!(["dev"])));
    }

    #[test]
    fn approval_is_set_once() {
        let (stored, _) = create(&SIGNING_REQUEST, request());
        let (sneaky, _) = update(
            &SIGNING_REQUEST,
            &stored,
            json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}}),
        );
        assert_eq!(sneaky.body, stored.body);
        let (approved, errors) = approve(
            &stored,
            json!([{"type": "Approved", "status": "True", "reason": "Checked"}]),
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            approved.body["status"]["conditions"][0]["lastTransitionTime"],
            NOW
        );
        let (_, errors) = approve(&approved, json!([{"type": "Denied", "status": "True"}]));
        assert_eq!(
            errors,
            [
                "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""
            ]
        );
    }

    #[test]
    fn certificate_is_set_through_status() {
        let (stored, _) = create(&SIGNING_REQUEST, request());
        let (_, errors) = update_status(
            &SIGNING_REQUEST,
            &stored,
            json!({"status": {"certificate": "bm90IGEgY2VydA=="}}),
        );
        assert_eq!(
            errors,
            [
                "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block"
            ]
        );
    }

    #[test]
    fn request_signer_and_usages_are_checked() {
        let (_, errors) = create(
            &SIGNING_REQUEST,
            json!({"spec": {"request": "eA==", "signerName": "nodomain", "usages": ["magic"], "expirationSeconds": 5}}),
        );
        assert_lines(
            &errors,
            &[
                "spec.request: Invalid value: \"eA==\": PEM block type must be CERTIFICATE REQUEST",
                "spec.usages[0]: Unsupported value: \"magic\": supported values: \"any\"…",
                "spec.signerName: Invalid value: \"nodomain\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
                "spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 minutes)",
            ],
            "request",
        );
    }
}
