//! Projected volumes: several sources in one directory.
//! In: the sources of a projected volume, the files of a downward one. Out: their errors.
//! Mirrors `validateProjectionSources` in `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use serde_json::Value;

use super::{
    super::validation,
    env::{FILE_FIELDS, validate_divisor, validate_field_ref, validate_resource_ref},
    mount::validate_not_reserved,
    volume::{validate_item, validate_mode},
};

/// A file with a field of the pod or a resource of a container in it.
pub(super) fn validate_file(file: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validation::required(&at.child("path"), file.text("path"), out);
    validate_not_reserved(file.text("path"), &at.child("path"), out);
    match (file.get_set("fieldRef"), file.get_set("resourceFieldRef")) {
        (Some(field), resource) => {
            validate_field_ref(field, &FILE_FIELDS, &at.child("fieldRef"), out);
            if resource.is_some() {
                out.push(FieldError::invalid(
                    at,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                ));
            }
        }
        (None, Some(resource)) => {
            let at = at.child("resourceFieldRef");
            if resource.text("containerName").is_empty() {
                out.push(FieldError::required(at.child("containerName"), ""));
                validate_divisor(
                    resource,
                    resource.text("resource"),
                    &at.child("divisor"),
                    out,
                );
            } else {
                validate_resource_ref(resource, &at, out);
            }
        }
        (None, None) => out.push(FieldError::required(
            at,
            "one of fieldRef and resourceFieldRef is required",
        )),
    }
    validate_mode(file, "mode", at, out);
}

/// Paths taken so far in one volume.
struct Paths<'a, 'p> {
    taken: BTreeSet<&'a str>,
    at: &'p Path<'p>,
}

impl<'a> Paths<'a, '_> {
    /// Takes a path; a second taker is blamed under the name `shown`.
    fn take(&mut self, path: &'a str, shown: &str, out: &mut Vec<FieldError>) {
        if !self.taken.insert(path) {
            out.push(FieldError::invalid(
                self.at,
                shown,
                "conflicting duplicate paths",
            ));
        }
    }
}

/// The errors of the sources of a projected volume at `at`.
pub(super) fn validate_sources(sources: &[Value], at: &Path<'_>, out: &mut Vec<FieldError>) {
    let list_at = at.child("sources");
    let mut paths = Paths {
        taken: BTreeSet::new(),
        at,
    };
    for (i, source) in sources.iter().enumerate() {
        let here = list_at.index(i);
        let mut found = 0;
        for name in [
            "secret",
            "configMap",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ] {
            let Some(part) = source.get_set(name) else {
                continue;
            };
            found += 1;
            let here = here.child(name);
            match name {
                "secret" | "configMap" => validate_keys(part, &here, &mut paths, out),
                "downwardAPI" => validate_files(part, &here, &mut paths, out),
                "serviceAccountToken" => validate_token(part, at, &here, out),
                "clusterTrustBundle" => validate_trust_bundle(part, &here, &mut paths, out),
                _ => validate_certificate(part, &here, &mut paths, out),
            }
        }
        if found > 1 {
            out.push(FieldError::forbidden(
                here,
                "may not specify more than 1 volume type per source",
            ));
        }
    }
}

fn validate_keys<'a>(
    source: &'a Value,
    at: &Path<'_>,
    paths: &mut Paths<'a, '_>,
    out: &mut Vec<FieldError>,
) {
    validation::required(&at.child("name"), source.text("name"), out);
    let items_at = at.child("items");
    for (i, item) in source.list("items").iter().enumerate() {
        validate_item(item, &items_at.index(i), out);
        if !item.text("path").is_empty() {
            paths.take(item.text("path"), source.text("name"), out);
        }
    }
}

fn validate_files<'a>(
    source: &'a Value,
    at: &Path<'_>,
    paths: &mut Paths<'a, '_>,
    out: &mut Vec<FieldError>,
) {
    for file in source.list("items") {
        validate_file(file, at, out);
        let path = file.text("path");
        if !path.is_empty() {
            paths.take(path, path, out);
        }
    }
}

const TOKEN_SECONDS_MIN: i64 = 10 * 60;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

fn validate_token(token: &Value, volume: &Path<'_>, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let seconds = token.number("expirationSeconds");
    let seconds_at = at.child("expirationSeconds");
    if seconds < TOKEN_SECONDS_MIN {
        out.push(FieldError::invalid(
            seconds_at,
            seconds,
            "may not specify a duration less than 10 minutes",
        ));
    }
    if seconds > TOKEN_SECONDS_MAX {
        out.push(FieldError::invalid(
            seconds_at,
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        ));
    }
    // Kubernetes reports the path of a token at the volume.
    let path_at = volume.child("path");
    match token.text("path") {
        "" => out.push(FieldError::required(path_at, "")),
        path => validate_not_reserved(path, &path_at, out),
    }
}

fn validate_trust_bundle<'a>(
    bundle: &'a Value,
    at: &Path<'_>,
    paths: &mut Paths<'a, '_>,
    out: &mut Vec<FieldError>,
) {
    match (
        bundle.field("name").as_str(),
        bundle.field("signerName").as_str(),
    ) {
        (Some(_), Some(_)) => out.push(FieldError::invalid(
            at,
            bundle,
            "only one of name and signerName may be used",
        )),
        (Some(name), None) => {
            if name.is_empty() {
                out.push(FieldError::required(
                    at.child("name"),
                    "must be a valid object name",
                ));
            }
            let last = name.rsplit(':').next().unwrap_or(name);
            for why in names::dns_subdomain(last) {
                out.push(FieldError::invalid(
                    at.child("name"),
                    name,
                    &format!("not a valid clustertrustbundlename: {why}"),
                ));
            }
            if let Some(selector) = bundle.get_set("labelSelector") {
                out.push(FieldError::invalid(
                    at.child("labelSelector"),
                    selector,
                    "labelSelector must be unset if name is specified",
                ));
            }
        }
        (None, Some(signer)) => {
            if signer.is_empty() {
                out.push(FieldError::required(
                    at.child("signerName"),
                    "must be a valid signer name",
                ));
            }
            validation::label_selector(
                &at.child("labelSelector"),
                bundle.field("labelSelector"),
                out,
            );
        }
        (None, None) => out.push(FieldError::required(
            at,
            "either name or signerName must be specified",
        )),
    }
    let path = bundle.text("path");
    validation::required(&at.child("path"), path, out);
    validate_not_reserved(path, &at.child("path"), out);
    paths.take(path, path, out);
}

const KEY_TYPES: [&str; 6] = [
    "RSA3072",
    "RSA4096",
    "ECDSAP256",
    "ECDSAP384",
    "ECDSAP521",
    "ED25519",
];
const CERTIFICATE_SECONDS_MIN: i64 = 3600;

fn validate_certificate<'a>(
    certificate: &'a Value,
    at: &Path<'_>,
    paths: &mut Paths<'a, '_>,
    out: &mut Vec<FieldError>,
) {
    validation::required(&at.child("signerName"), certificate.text("signerName"), out);
    validation::one_of(
        &at.child("keyType"),
        certificate.text("keyType"),
        &KEY_TYPES,
        out,
    );
    if let Some(seconds) = certificate
        .int("maxExpirationSeconds")
        .filter(|s| *s < CERTIFICATE_SECONDS_MIN)
    {
        let detail = "if provided, maxExpirationSeconds must be >= 3600";
        out.push(FieldError::invalid(
            at.child("maxExpirationSeconds"),
            seconds,
            detail,
        ));
    }
    let mut found = false;
    for field in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let path = certificate.text(field);
        if !path.is_empty() {
            found = true;
            validate_not_reserved(path, &at.child(field), out);
            paths.take(path, path, out);
        }
    }
    if !found {
        out.push(FieldError::required(
            at,
            "specify at least one of credentialBundlePath, keyPath, and certificateChainPath",
        ));
    }
}
