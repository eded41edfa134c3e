//! APIServices: which server serves a version of a group.
//! Mirrors `ValidateAPIService` in `kube-aggregator/pkg/apis/apiregistration/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{
    Effect, Generation, STATUS_RESETS_METADATA, Strategy, config_map::decoded, validation,
};

/// The strategy of APIServices. Mirrors `kube-aggregator/pkg/registry/apiservice`.
pub const API_SERVICE: Strategy = Strategy {
    reset_fields: STATUS_RESETS_METADATA,
    default: |service| {
        let target = service.section("spec").map_mut("service").into_iter();
        target.for_each(|target| target.default_to("port", 443));
        service.section("status");
    },
    prepare_create,
    validate,
    validate_status,
    name: names::path_segment,
    generation: Generation::None,
    effect: Effect::ApiService,
    unconditional_update: false,
    ..Strategy::WITH_STATUS
};

/// A service of this server itself is available immediately.
fn prepare_create(service: &mut Object) {
    let local = service.body.field("spec").get_set("service").is_none();
    let status = if local {
        json!({"conditions": [{"type": "Available", "status": "True", "reason": "Local", "message": "Local APIServices are always available"}]})
    } else {
        json!({})
    };
    service.body.insert("status".into(), status);
}

fn validate(service: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = service.body.field("spec");
    let group = spec.text("group");
    let version = spec.text("version");
    let name = format!("{version}.{group}");
    if service.meta.name != name && names::path_segment(&service.meta.name).is_empty() {
        let why = format!("must be `spec.version+\".\"+spec.group`: {name:?}");
        out.push(FieldError::invalid(
            "metadata.name",
            &service.meta.name,
            &why,
        ));
    }
    if group.is_empty() && version != "v1" {
        out.push(FieldError::required(
            at.child("group"),
            "only v1 may have an empty group and it better be legacy kube",
        ));
    } else if !group.is_empty() {
        validation::named(&at.child("group"), group, names::dns_subdomain(group), out);
    }
    validation::named(
        &at.child("version"),
        version,
        names::dns_1035_label(version),
        out,
    );
    for (field, max) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let priority = spec.int(field).unwrap_or_default();
        if priority <= 0 || priority > max {
            out.push(FieldError::invalid(
                at.child(field),
                priority,
                &format!("must be positive and less than {max}"),
            ));
        }
    }
    let insecure = spec.is_true("insecureSkipTLSVerify");
    let bundle = decoded(spec.field("caBundle")).len();
    match spec.get_set("service") {
        None => local(&at, insecure, bundle, out),
        Some(target) => remote(&at, target, insecure && bundle > 0, out),
    }
}

fn local(at: &Path, insecure: bool, bundle: usize, out: &mut Vec<FieldError>) {
    if bundle > 0 {
        let shown = format!("{bundle} bytes");
        out.push(FieldError::invalid(
            at.child("caBundle"),
            &shown,
            "local APIServices may not have a caBundle",
        ));
    }
    if insecure {
        out.push(FieldError::invalid(
            at.child("insecureSkipTLSVerify"),
            true,
            "local APIServices may not have insecureSkipTLSVerify",
        ));
    }
}

fn remote(at: &Path, target: &Value, insecure_with_bundle: bool, out: &mut Vec<FieldError>) {
    let place = at.child("service");
    validation::required(&place.child("namespace"), target.text("namespace"), out);
    validation::required(&place.child("name"), target.text("name"), out);
    let port = target.int("port").unwrap_or_default();
    if !(1..=65535).contains(&port) {
        out.push(FieldError::invalid(
            place.child("port"),
            port,
            "port is not valid: must be between 1 and 65535, inclusive",
        ));
    }
    if insecure_with_bundle {
        out.push(FieldError::invalid(
            at.child("insecureSkipTLSVerify"),
            true,
            "may not be true if caBundle is present",
        ));
    }
}

fn validate_status(new: &Object, _: &Object, out: &mut Vec<FieldError>) {
    let all = Path::field("status.conditions");
    for (i, condition) in new
        .body
        .field("status")
        .list("conditions")
        .iter()
        .enumerate()
    {
        validation::one_of(
            &all.index(i).child("status"),
            condition.text("status"),
            &["True", "False", "Unknown"],
            out,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused};

    #[test]
    fn service_is_named_by_its_version_and_group() {
        let spec = json!({"group": "x.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10, "service": {"name": "ext", "namespace": "n"}, "insecureSkipTLSVerify": true});
        let (stored, errors) = create(
            &API_SERVICE,
            json!({"metadata": {"name": "v1.x.example.com"}, "spec": spec}),
        );
        assert_eq!(errors.len(), 0);
        assert_eq!(stored.at("spec.service.port"), Some(&json!(443)));
        assert_eq!(&stored.body["status"], &json!({}));
        refused(
            &API_SERVICE,
            json!({"metadata": {"name": "other"}, "spec": {"group": "x.example.com", "version": "v1", "groupPriorityMinimum": 0, "versionPriority": 2000}}),
            &[
                "metadata.name: Invalid value: \"other\": must be `spec.version+\".\"+spec.group`: \"v1.x.example.com\"",
                "spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000",
                "spec.versionPriority: Invalid value: 2000: must be positive and less than 1000",
            ],
        );
    }
}
