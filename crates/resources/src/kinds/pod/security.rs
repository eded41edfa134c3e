//! Security contexts of pods and containers, and fields that an operating system does not allow.
//! In: fields of a pod spec. Out: their errors. Mirrors `ValidatePodSecurityContext` and
//! `ValidateSecurityContext` in `pkg/apis/core/validation`.

use std::{collections::BTreeSet, sync::LazyLock};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
};
use bellerophon_codec::types::Internal;
use regex::Regex;
use serde_json::Value;

use super::{super::validation, mount::validate_descending, spec::visit};

/// The errors of the security context of a pod.
pub(super) fn validate_pod(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let context = spec.field("securityContext");
    validate_ids(context, &["fsGroup", "runAsUser", "runAsGroup"], at, out);
    let groups_at = at.child("supplementalGroups");
    for (i, group) in context.list("supplementalGroups").iter().enumerate() {
        validate_id(group.as_i64(), &groups_at.index(i), out);
    }
    if spec.is_true("hostPID") && spec.is_true("shareProcessNamespace") {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        out.push(FieldError::invalid(
            at.child("shareProcessNamespace"),
            true,
            detail,
        ));
    }
    validate_sysctls(context, &at.child("sysctls"), out);
    validate_choice(
        context,
        "fsGroupChangePolicy",
        &["Always", "OnRootMismatch"],
        at,
        out,
    );
    validate_seccomp(
        context.field("seccompProfile"),
        &at.child("seccompProfile"),
        out,
    );
    validate_apparmor(
        context.field("appArmorProfile"),
        &at.child("appArmorProfile"),
        out,
    );
    validate_choice(
        context,
        "supplementalGroupsPolicy",
        &["Merge", "Strict"],
        at,
        out,
    );
    validate_choice(
        context,
        "seLinuxChangePolicy",
        &["MountOption", "Recursive"],
        at,
        out,
    );
}

fn validate_choice(
    context: &Value,
    field: &str,
    supported: &[&str],
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    if let Some(value) = context.field(field).as_str() {
        validation::one_of(&at.child(field), value, supported, out);
    }
}

fn validate_ids(context: &Value, fields: &[&str], at: &Path<'_>, out: &mut Vec<FieldError>) {
    for field in fields {
        validate_id(context.int(field), &at.child(field), out);
    }
}

/// A number of a user or group.
fn validate_id(id: Option<i64>, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        out.push(FieldError::invalid(
            at,
            id,
            "must be between 0 and 2147483647, inclusive",
        ));
    }
}

const SYSCTL: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
static SYSCTL_RE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(SYSCTL).expect("a constant pattern"));

fn validate_sysctls(context: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for (i, sysctl) in context.list("sysctls").iter().enumerate() {
        let item = at.index(i);
        let at = item.child("name");
        let name = sysctl.text("name");
        if name.is_empty() {
            out.push(FieldError::required(at, ""));
        } else if name.len() > 253 || !SYSCTL_RE.is_match(name) {
            out.push(FieldError::invalid(
                at,
                name,
                &format!("must have at most 253 characters and match regex {SYSCTL}"),
            ));
        } else if seen.contains(name) {
            out.push(FieldError::duplicate(at, name));
        }
        seen.insert(name);
    }
}

/// The errors of the security context of a container, which may be null.
pub(super) fn validate_container(
    context: &Value,
    host_users: bool,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    validate_ids(context, &["runAsUser", "runAsGroup"], at, out);
    if let Some(mount) = context.field("procMount").as_str() {
        validation::one_of(&at.child("procMount"), mount, &["Default", "Unmasked"], out);
        if host_users && mount == "Unmasked" {
            out.push(FieldError::invalid(
                at.child("procMount"),
                mount,
                "`hostUsers` must be false to use `Unmasked`",
            ));
        }
    }
    validate_seccomp(
        context.field("seccompProfile"),
        &at.child("seccompProfile"),
        out,
    );
    if context.field("allowPrivilegeEscalation") == &Value::Bool(false) {
        let mut refuse = |what: &str| {
            let detail = format!("cannot set `allowPrivilegeEscalation` to false and {what}");
            out.push(FieldError::invalid(
                at,
                Internal::one("core.SecurityContext", context),
                &detail,
            ));
        };
        if context.is_true("privileged") {
            refuse("`privileged` to true");
        }
        if context
            .field("capabilities")
            .texts("add")
            .any(|c| c == "CAP_SYS_ADMIN")
        {
            refuse("`capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    validate_apparmor(
        context.field("appArmorProfile"),
        &at.child("appArmorProfile"),
        out,
    );
}

fn validate_seccomp(profile: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if profile.is_null() {
        return;
    }
    let kind = profile.text("type");
    if kind.is_empty() {
        out.push(FieldError::required(
            at.child("type"),
            "type is required when seccompProfile is set",
        ));
    } else {
        validation::one_of(
            &at.child("type"),
            kind,
            &["Localhost", "RuntimeDefault", "Unconfined"],
            out,
        );
    }
    let file_at = at.child("localhostProfile");
    match (kind, profile.field("localhostProfile").as_str()) {
        ("Localhost", None) => out.push(FieldError::required(
            file_at,
            "must be set when seccomp type is Localhost",
        )),
        ("Localhost", Some(file)) => validate_descending(file, &file_at, out),
        (_, Some(_)) => {
            let shown = Internal::one("core.SeccompProfile", profile);
            out.push(FieldError::invalid(
                file_at,
                shown,
                "can only be set when seccomp type is Localhost",
            ));
        }
        (_, None) => {}
    }
}

const APPARMOR_PROFILE_MAX: usize = 4095;

fn validate_apparmor(profile: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if profile.is_null() {
        return;
    }
    let file_at = at.child("localhostProfile");
    match (
        profile.text("type"),
        profile.field("localhostProfile").as_str(),
    ) {
        ("Localhost", None) => out.push(FieldError::required(
            file_at,
            "must be set when AppArmor type is Localhost",
        )),
        ("Localhost", Some(file)) => {
            if file.trim() != file {
                out.push(FieldError::invalid(
                    file_at,
                    file,
                    "must not be padded with whitespace",
                ));
            } else if file.is_empty() {
                out.push(FieldError::required(
                    file_at,
                    "must be set when AppArmor type is Localhost",
                ));
            }
            if file.len() > APPARMOR_PROFILE_MAX {
                out.push(FieldError::too_long(file_at, APPARMOR_PROFILE_MAX));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(file)) => {
            out.push(FieldError::invalid(
                file_at,
                file,
                "can only be set when AppArmor type is Localhost",
            ));
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => out.push(FieldError::required(
            at.child("type"),
            "type is required when appArmorProfile is set",
        )),
        (other, _) => out.push(FieldError::not_supported(
            at.child("type"),
            other,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        )),
    }
}

/// Windows containers that act on the host do so all together, on the host's network.
pub(super) fn validate_host_process(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let own = |context: &Value| {
        context
            .field("windowsOptions")
            .field("hostProcess")
            .as_bool()
    };
    let pod = own(spec.field("securityContext"));
    let mut all = 0;
    let mut acting = 0;
    visit(spec, at, |container, at| {
        all += 1;
        let container = own(container.field("securityContext"));
        if let (Some(pod), Some(container)) = (pod, container)
            && pod != container
        {
            let context = at.child("securityContext");
            let options = "windowsOptions.hostProcess";
            let detail =
                format!("pod hostProcess value must be identical if both are specified, was {pod}");
            out.push(FieldError::invalid(
                context.child(options),
                container,
                &detail,
            ));
        }
        acting += usize::from(container.or(pod).unwrap_or_default());
    });
    if acting > 0 && acting != all {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        out.push(FieldError::invalid(at, "", detail));
    }
    if acting > 0 && !spec.is_true("hostNetwork") {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        out.push(FieldError::invalid(at.child("hostNetwork"), false, detail));
    }
}

/// Fields of the pod's security context that Windows does not support.
const NOT_WINDOWS_CONTEXT: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
/// Fields of the pod that Windows does not support.
const NOT_WINDOWS_POD: [&str; 4] = ["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"];
/// Fields of a container's security context that Windows does not support.
const NOT_WINDOWS_CONTAINER: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Rejects fields that the operating system of a pod does not support.
pub(super) fn validate_os(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    const LINUX: &str = "windows options cannot be set for a linux pod";
    const WINDOWS: &str = "cannot be set for a windows pod";
    let context_at = at.child("securityContext");
    let refuse = |holder: &Value,
                  fields: &[&str],
                  at: &Path<'_>,
                  detail: &str,
                  out: &mut Vec<FieldError>| {
        for field in fields.iter().filter(|f| holder.has(f)) {
            out.push(FieldError::forbidden(at.child(field), detail));
        }
    };
    match spec.field("os").text("name") {
        "" => out.push(FieldError::required(at.child("os").child("name"), "")),
        "linux" => {
            refuse(
                spec.field("securityContext"),
                &["windowsOptions"],
                &context_at,
                LINUX,
                out,
            );
            visit(spec, at, |c, at| {
                refuse(
                    c.field("securityContext"),
                    &["windowsOptions"],
                    &at.child("securityContext"),
                    LINUX,
                    out,
                )
            });
        }
        "windows" => {
            refuse(
                spec.field("securityContext"),
                &NOT_WINDOWS_CONTEXT,
                &context_at,
                WINDOWS,
                out,
            );
            refuse(spec, &NOT_WINDOWS_POD, at, WINDOWS, out);
            visit(spec, at, |c, at| {
                refuse(
                    c.field("securityContext"),
                    &NOT_WINDOWS_CONTAINER,
                    &at.child("securityContext"),
                    WINDOWS,
                    out,
                );
            });
        }
        other => out.push(FieldError::not_supported(
            at.child("os"),
            other,
            &["linux", "windows"],
        )),
    }
}
