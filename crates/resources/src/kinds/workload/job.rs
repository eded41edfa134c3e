//! Jobs: pods that run until enough of them succeeded.
//! Mirrors `ValidateJob` in `pkg/apis/batch/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{
    super::{
        Strategy,
        pod::{defaults::default_template, warnings},
        selector::{self, Selector},
        validation,
    },
    job_policy, job_status, job_update, template,
};

/// A Job.
pub const JOB: Strategy = Strategy {
    delete_warning: Some(
        "child pods are preserved by default when jobs are deleted; \
         set propagationPolicy=Background to remove them \
         or set propagationPolicy=Orphan to suppress this warning",
    ),
    default,
    prepare_create,
    validate: |object, out| {
        validate_generated(object, out);
        validate_spec(object.body.field("spec"), &Path::field("spec"), out);
        validate_host_name(object, out);
    },
    validate_update: job_update::validate,
    validate_status: job_status::validate,
    // kube-apiserver lets a job without labels share those of its pods before it generates more for
    // them.
    tracked: |job| {
        let shares = job.meta.labels.is_empty()
            && !job
                .body
                .field("spec")
                .field("template")
                .field("metadata")
                .is_empty_at("labels");
        shares.then(|| {
            let mut job = job.clone();
            inherit_labels(&mut job);
            job
        })
    },
    warnings: |new, old| {
        let mut out = Vec::new();
        if old.is_none() {
            warnings::of_name(new, &mut out);
        }
        if old.is_none_or(|old| old.body.field("spec") != new.body.field("spec")) {
            out.extend(warnings_of_spec(
                new.body.field("spec"),
                &Path::field("spec"),
            ));
        }
        out
    },
    orphans: true,
    ..Strategy::WITH_STATUS
};

const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";
/// The same two without a domain, as they were once.
const OLD_UID_LABEL: &str = "controller-uid";
const OLD_NAME_LABEL: &str = "job-name";

fn default(object: &mut Object) {
    let spec = object.section("spec");
    default_spec(spec);
    if !spec.has("completions") && !spec.has("parallelism") {
        spec.insert("completions".into(), 1.into());
    }
    spec.default_to("parallelism", 1);
    let limit = if spec.has("backoffLimitPerIndex") {
        i64::from(i32::MAX)
    } else {
        6
    };
    spec.default_to("backoffLimit", limit);
    spec.default_to("completionMode", "NonIndexed");
    spec.default_to("suspend", false);
    let policy = if spec.has("podFailurePolicy") {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    spec.default_to("podReplacementPolicy", policy);
    spec.default_to("manualSelector", false);
    let labels = spec.field("template").field("metadata").field("labels");
    if spec.is_true("manualSelector") || labels.has(UID_LABEL) {
        inherit_labels(object);
    }
}

/// Completes what a job and the template of a CronJob have in common.
pub(super) fn default_spec(spec: &mut Map<String, Value>) {
    default_template(spec.map_at("template"));
    if let Some(policy) = spec.map_mut("podFailurePolicy") {
        for rule in policy.maps_mut("rules") {
            rule.maps_mut("onPodConditions")
                .for_each(|pattern| pattern.default_text("status", "True"));
        }
    }
}

/// A job without labels has those of its pods, the generated ones included.
fn inherit_labels(job: &mut Object) {
    if job.meta.labels.is_empty() {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let spec = job.body.field("spec");
        job.meta.labels = spec
            .field("template")
            .field("metadata")
            .entries("labels")
            .map(|(k, v)| (k.clone(), text(v)))
            .collect();
    }
}

fn prepare_create(job: &mut Object) {
    job.body.insert("status".into(), json!({}));
    if !job.body.field("spec").is_true("manualSelector") {
        generate_selector(job);
    }
    inherit_labels(job);
}

/// Marks the pods of this job by its uid and looks for that mark.
fn generate_selector(job: &mut Object) {
    let uid = job.meta.uid.clone();
    let name = job.meta.name.clone();
    let spec = job.section("spec");
    let labels = spec.map_at("template").map_at("metadata").map_at("labels");
    for (label, value) in [
        (OLD_NAME_LABEL, &name),
        (NAME_LABEL, &name),
        (OLD_UID_LABEL, &uid),
        (UID_LABEL, &uid),
    ] {
        labels.entry(label).or_insert_with(|| value.clone().into());
    }
    spec.map_at("selector")
        .map_at("matchLabels")
        .entry(UID_LABEL)
        .or_insert_with(|| uid.into());
}

/// A selector without `manualSelector` must be the generated one.
fn validate_generated(job: &Object, out: &mut Vec<FieldError>) {
    let spec = job.body.field("spec");
    if spec.is_true("manualSelector") || !spec.has("selector") {
        return;
    }
    if job.meta.uid.is_empty() {
        out.push(FieldError::required("metadata.uid", ""));
    }
    let wanted = [
        (OLD_UID_LABEL, job.meta.uid.as_str()),
        (OLD_NAME_LABEL, job.meta.name.as_str()),
        (UID_LABEL, job.meta.uid.as_str()),
        (NAME_LABEL, job.meta.name.as_str()),
    ];
    let labels = spec.field("template").field("metadata").field("labels");
    let at = Path::field("spec.template.metadata.labels");
    for (label, value) in wanted {
        let detail = format!("must be '{value}'");
        match labels.field(label).as_str() {
            None => out.push(FieldError::required(at.key(label), &detail)),
            Some(found) if found != value => {
                out.push(FieldError::invalid(at.key(label), labels, &detail))
            }
            Some(_) => {}
        }
    }
    let expected: Map<String, Value> = wanted
        .iter()
        .map(|(k, v)| ((*k).to_owned(), Value::from(*v)))
        .collect();
    if Selector::read(spec.get_set("selector")).is_some_and(|s| !s.matches(Some(&expected))) {
        out.push(selector::invalid(
            spec.get_set("selector"),
            Path::field("spec.selector"),
            "`selector` not auto-generated",
        ));
    }
}

/// The errors of the spec of a job.
pub(super) fn validate_spec(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validate_template_spec(spec, at, out);
    match spec.get_set("selector") {
        None => out.push(FieldError::required(at.child("selector"), "")),
        Some(selector) => validation::label_selector(&at.child("selector"), selector, out),
    }
    if let Some(selector) = Selector::read(spec.get_set("selector")) {
        template::validate_fits(
            &selector,
            spec.field("template"),
            &at.child("template"),
            out,
        );
    }
}

/// The errors of the spec of a job but for its selector, which the jobs of a CronJob get later.
pub(super) fn validate_template_spec(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
    ] {
        validation::not_negative(&at.child(field), spec.number(field), out);
    }
    if let Some(count) = spec.int("maxFailedIndexes") {
        validation::not_negative(&at.child("maxFailedIndexes"), count, out);
        if !spec.has("backoffLimitPerIndex") {
            out.push(FieldError::required(
                at.child("backoffLimitPerIndex"),
                "when maxFailedIndexes is specified",
            ));
        }
    }
    if let Some(manager) = spec.field("managedBy").as_str() {
        validate_manager(manager, &at.child("managedBy"), out);
    }
    validate_mode(spec, at, out);
    job_policy::validate(spec, at, out);
    template::validate(spec.field("template"), &at.child("template"), out);
    validate_restart_policy(spec, &at.child("template.spec.restartPolicy"), out);
}

const MANAGER_MAX: usize = 63;

fn validate_manager(manager: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    const PATH: &str = "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+";
    match manager.split_once('/') {
        _ if manager.is_empty() => out.push(FieldError::required(at, "")),
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            validation::named(at, host, names::dns_subdomain(host), out);
            if !path
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c))
            {
                out.push(FieldError::invalid(
                    at,
                    path,
                    &format!("Invalid path (regex used for validation is '{PATH}')"),
                ));
            }
        }
        _ => out.push(FieldError::invalid(
            at,
            manager,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        )),
    }
    if manager.len() > MANAGER_MAX {
        out.push(FieldError::too_long(at, MANAGER_MAX));
    }
}

const INDEXED_PARALLELISM_MAX: i64 = 100_000;
const FAILED_INDEXES_MAX: i64 = 100_000;
/// Above this many completions, the next two bounds hold.
const MANY_COMPLETIONS: i64 = 100_000;
const MANY_PARALLELISM_MAX: i64 = 10_000;
const MANY_FAILED_INDEXES_MAX: i64 = 10_000;

fn validate_mode(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let mode = spec.field("completionMode").as_str();
    if let Some(mode) = mode {
        validation::one_of(
            &at.child("completionMode"),
            mode,
            &["NonIndexed", "Indexed"],
            out,
        );
    }
    match mode {
        Some("Indexed") => validate_indexed(spec, at, out),
        None | Some("NonIndexed") => {
            for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
                if let Some(value) = spec.int(field) {
                    out.push(FieldError::invalid(
                        at.child(field),
                        value,
                        "requires indexed completion mode",
                    ));
                }
            }
        }
        Some(_) => {}
    }
}

fn validate_indexed(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let completions = spec.int("completions");
    let parallelism = spec.int("parallelism");
    let failed = spec.int("maxFailedIndexes");
    if completions.is_none() {
        out.push(FieldError::required(
            at.child("completions"),
            "when completion mode is Indexed",
        ));
    }
    validate_max(
        &at.child("parallelism"),
        parallelism,
        (INDEXED_PARALLELISM_MAX, " when completion mode is Indexed"),
        out,
    );
    if let (Some(completions), Some(failed)) = (completions, failed)
        && failed > completions
    {
        out.push(FieldError::invalid(
            at.child("maxFailedIndexes"),
            failed,
            "must be less than or equal to completions",
        ));
    }
    validate_max(
        &at.child("maxFailedIndexes"),
        failed,
        (FAILED_INDEXES_MAX, ""),
        out,
    );
    if completions.is_some_and(|c| c > MANY_COMPLETIONS) && spec.has("backoffLimitPerIndex") {
        let rest = format!(
            " when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
        );
        if failed.is_none() {
            let detail = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            out.push(FieldError::required(at.child("maxFailedIndexes"), &detail));
        }
        validate_max(
            &at.child("parallelism"),
            parallelism,
            (MANY_PARALLELISM_MAX, &rest),
            out,
        );
        validate_max(
            &at.child("maxFailedIndexes"),
            failed,
            (MANY_FAILED_INDEXES_MAX, &rest),
            out,
        );
    }
}

fn validate_max(
    at: &Path<'_>,
    value: Option<i64>,
    (max, rest): (i64, &str),
    out: &mut Vec<FieldError>,
) {
    if let Some(value) = value.filter(|v| *v > max) {
        out.push(FieldError::invalid(
            at,
            value,
            &format!("must be less than or equal to {max}{rest}"),
        ));
    }
}

fn validate_restart_policy(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    match spec.field("template").field("spec").text("restartPolicy") {
        "" | "Always" => out.push(FieldError::required(
            at,
            "valid values: \"OnFailure\", \"Never\"",
        )),
        "Never" => {}
        "OnFailure" if !spec.has("podFailurePolicy") => {}
        policy @ "OnFailure" => {
            out.push(FieldError::invalid(
                at,
                policy,
                "only \"Never\" is supported when podFailurePolicy is specified",
            ));
        }
        other => out.push(FieldError::not_supported(
            at,
            other,
            &["OnFailure", "Never"],
        )),
    }
}

/// Pods of an indexed job get host names that end in their index.
fn validate_host_name(job: &Object, out: &mut Vec<FieldError>) {
    let spec = job.body.field("spec");
    if spec.text("completionMode") != "Indexed" || spec.number("completions") <= 0 {
        return;
    }
    let last = format!("{}-{}", job.meta.name, spec.number("completions") - 1);
    if !names::dns_label(&last).is_empty() {
        let detail = format!("will not able to create pod with invalid DNS label: {last}");
        out.push(FieldError::invalid(
            "metadata.name",
            &job.meta.name,
            &detail,
        ));
    }
}

/// The warnings about the spec of a job.
pub(super) fn warnings_of_spec(spec: &Value, at: &Path<'_>) -> Vec<String> {
    let mut out = Vec::new();
    let many = spec.number("completions") > MANY_COMPLETIONS
        && spec.number("parallelism") > MANY_PARALLELISM_MAX;
    if spec.text("completionMode") == "Indexed" && many {
        out.push(format!("{at}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"));
    }
    warnings::of_template(spec.field("template"), &at.child("template"), &mut out);
    out
}
