//! The checks of the baseline level: no known privilege escalations.

use std::collections::BTreeSet;

use bellerophon_apimachinery::json_ext::JsonExt;
use serde_json::Value;

use super::subject::{Check, Subject, Violation, named, plural, quoted, set_of, uses};

/// In the order in which violations are reported.
pub(super) const CHECKS: [Check; 12] = [
    Check::new("appArmorProfile", app_armor),
    Check::new("capabilities", capabilities),
    Check::new("hostNamespaces", host_namespaces),
    Check::new("hostPathVolumes", host_paths),
    Check::new("hostPorts", host_ports),
    Check::new("hostProbes", |subject, minor| {
        if minor >= 34 {
            probe_hosts(subject)
        } else {
            None
        }
    }),
    Check::new("privileged", privileged),
    Check::new("procMount", |subject, minor| {
        if minor >= 35 && subject.has_own_users() {
            None
        } else {
            proc_mount(subject)
        }
    }),
    Check::new("seLinuxOptions", se_linux),
    Check::new("seccompProfile", seccomp),
    Check::new("sysctls", sysctls),
    Check::new("windowsHostProcess", host_process),
];

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Harmless kernel settings, with the minor version that found them so.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// The security context of a container.
fn context(container: &Value) -> &Value {
    container.field("securityContext")
}

fn app_armor(subject: &Subject<'_>, _: u32) -> Option<Violation> {
    let bad = |context: &Value| {
        context
            .get_set("appArmorProfile")
            .is_some_and(|p| !["RuntimeDefault", "Localhost"].contains(&p.text("type")))
    };
    let pod = bad(subject.context());
    let containers = subject.containers_that(|c| bad(context(c)));
    let contexts = std::iter::once(subject.context())
        .chain(subject.containers().map(context))
        .filter(|c| bad(c));
    let mut values: Vec<String> = set_of(contexts.map(|c| c.field("appArmorProfile").text("type")))
        .into_iter()
        .collect();
    let fine = |profile: &str| {
        profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")
    };
    let annotations: Vec<String> = subject
        .meta
        .annotations
        .iter()
        .filter(|(key, profile)| key.starts_with(APP_ARMOR) && !fine(profile))
        .map(|(key, profile)| format!("{key}={profile:?}"))
        .collect();
    let mut setters = vec![subject.setters(pod, &containers)];
    if !annotations.is_empty() {
        setters.push(plural("annotation", annotations.len()));
        values.extend(annotations);
    }
    setters.retain(|s| !s.is_empty());
    if setters.is_empty() {
        return None;
    }
    let detail = format!(
        "{} must not set AppArmor profile type to {}",
        setters.join(" and "),
        quoted(&values)
    );
    Violation::new(&plural("forbidden AppArmor profile", values.len()), detail)
}

fn capabilities(subject: &Subject<'_>, _: u32) -> Option<Violation> {
    fn added(container: &Value) -> impl Iterator<Item = &str> {
        context(container)
            .field("capabilities")
            .texts("add")
            .filter(|c| !CAPABILITIES.contains(c))
    }
    let containers = subject.containers_that(|c| added(c).next().is_some());
    let bad = set_of(subject.containers().flat_map(added));
    if containers.is_empty() {
        return None;
    }
    let detail = format!(
        "{} must not include {} in securityContext.capabilities.add",
        named("container", &containers),
        quoted(&bad)
    );
    Violation::new("non-default capabilities", detail)
}

fn host_namespaces(subject: &Subject<'_>, _: u32) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|n| subject.spec.is_true(n))
        .map(|n| format!("{n}=true"))
        .collect();
    if shared.is_empty() {
        None
    } else {
        Violation::new("host namespaces", shared.join(", "))
    }
}

fn host_paths(subject: &Subject<'_>, _: u32) -> Option<Violation> {
    let volumes = subject
        .spec
        .list("volumes")
        .iter()
        .filter(|v| v.has("hostPath"));
    let volumes: Vec<String> = volumes.map(|v| v.text("name").to_owned()).collect();
    if volumes.is_empty() {
        None
    } else {
        Violation::new("hostPath volumes", named("volume", &volumes))
    }
}

fn host_ports(subject: &Subject<'_>, _: u32) -> Option<Violation> {
    let ports = |c: &Value| {
        c.list("ports")
            .iter()
            .map(|p| p.number("hostPort"))
            .filter(|p| *p != 0)
            .map(|p| p.to_string())
            .collect::<Vec<_>>()
    };
    let containers = subject.containers_that(|c| !ports(c).is_empty());
    let all: BTreeSet<String> = subject.containers().flat_map(ports).collect();
    if containers.is_empty() {
        return None;
    }
    let list = all.iter().cloned().collect::<Vec<_>>().join(", ");
    let who = named("container", &containers);
    let how = uses(containers.len());
    Violation::new(
        "hostPort",
        format!("{who} {how} {} {list}", plural("hostPort", all.len())),
    )
}

fn probe_hosts(subject: &Subject<'_>) -> Option<Violation> {
    fn hosts(container: &Value) -> impl Iterator<Item = &str> {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"]
            .into_iter()
            .map(|probe| container.field(probe));
        let hooks = ["postStart", "preStop"]
            .into_iter()
            .map(|hook| container.field("lifecycle").field(hook));
        let actions = probes
            .chain(hooks)
            .flat_map(|handler| [handler.field("httpGet"), handler.field("tcpSocket")]);
        actions
            .map(|action| action.text("host"))
            .filter(|host| !host.is_empty())
    }
    let containers: Vec<String> = subject.containers_that(|c| hosts(c).next().is_some());
    let containers: Vec<String> = set_of(containers.iter().map(String::as_str))
        .into_iter()
        .collect();
    let all = set_of(subject.containers().flat_map(hosts));
    if containers.is_empty() {
        return None;
    }
    let who = named("container", &containers);
    let how = uses(containers.len());
    Violation::new(
        "probe or lifecycle host",
        format!(
            "{who} {how} {} {}",
            plural("probe or lifecycle host", all.len()),
            quoted(&all)
        ),
    )
}

fn privileged(subject: &Subject<'_>, _: u32) -> Option<Violation> {
    let containers = subject.containers_that(|c| context(c).is_true("privileged"));
    if containers.is_empty() {
        return None;
    }
    Violation::new(
        "privileged",
        format!(
            "{} must not set securityContext.privileged=true",
            named("container", &containers)
        ),
    )
}

/// No container sees more of `/proc` than is usual.
pub(super) fn proc_mount(subject: &Subject<'_>) -> Option<Violation> {
    let kind = |c: &Value| {
        context(c)
            .field("procMount")
            .as_str()
            .filter(|kind| *kind != "Default")
            .map(str::to_owned)
    };
    let containers = subject.containers_that(|c| kind(c).is_some());
    let kinds: BTreeSet<String> = subject.containers().filter_map(kind).collect();
    if containers.is_empty() {
        return None;
    }
    Violation::new(
        "procMount",
        format!(
            "{} must not set securityContext.procMount to {}",
            named("container", &containers),
            quoted(&kinds)
        ),
    )
}

fn se_linux(subject: &Subject<'_>, minor: u32) -> Option<Violation> {
    let engine = if minor >= 31 {
        "container_engine_t"
    } else {
        ""
    };
    let allowed = [
        "",
        "container_t",
        "container_init_t",
        "container_kvm_t",
        engine,
    ];
    let bad_type = |o: &Value| !allowed.contains(&o.text("type"));
    let bad = |c: &Value| {
        let options = c.field("seLinuxOptions");
        bad_type(options) || !options.text("user").is_empty() || !options.text("role").is_empty()
    };
    let setters = subject.setters(
        bad(subject.context()),
        &subject.containers_that(|c| bad(context(c))),
    );
    if setters.is_empty() {
        return None;
    }
    let options = || {
        std::iter::once(subject.context())
            .chain(subject.containers().map(context))
            .map(|c| c.field("seLinuxOptions"))
    };
    let types = set_of(options().filter(|o| bad_type(o)).map(|o| o.text("type")));
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!(
            "{} {}",
            plural("type", types.len()),
            quoted(&types)
        ));
    }
    for field in ["user", "role"] {
        if options().any(|o| !o.text(field).is_empty()) {
            data.push(format!("{field} may not be set"));
        }
    }
    Violation::new(
        "seLinuxOptions",
        format!(
            "{setters} set forbidden securityContext.seLinuxOptions: {}",
            data.join("; ")
        ),
    )
}

fn seccomp(subject: &Subject<'_>, minor: u32) -> Option<Violation> {
    if minor < 19 {
        seccomp_annotations(subject)
    } else {
        bad_seccomp(subject)
    }
}

/// Before it was a field, the profile was an annotation.
fn seccomp_annotations(subject: &Subject<'_>) -> Option<Violation> {
    let fine =
        |v: &str| v == "runtime/default" || v == "docker/default" || v.starts_with("localhost/");
    let keys = subject
        .containers()
        .map(|c| format!("{SECCOMP_CONTAINER}{}", c.text("name")))
        .chain([SECCOMP_POD.to_owned()]);
    let bad: BTreeSet<String> = keys
        .filter_map(|key| {
            subject
                .meta
                .annotations
                .get(&key)
                .filter(|v| !fine(v))
                .map(|v| format!("{key}={v:?}"))
        })
        .collect();
    if bad.is_empty() {
        return None;
    }
    let list = bad.iter().cloned().collect::<Vec<_>>().join(", ");
    Violation::new(
        "seccompProfile",
        format!("forbidden {} {list}", plural("annotation", bad.len())),
    )
}

/// Whether a context sets a profile that is neither the runtime's nor the node's.
pub(super) fn sets_bad_seccomp(context: &Value) -> bool {
    context
        .get_set("seccompProfile")
        .is_some_and(|p| !["RuntimeDefault", "Localhost"].contains(&p.text("type")))
}

/// Seccomp profiles other than `RuntimeDefault` and `Localhost`.
pub(super) fn bad_seccomp(subject: &Subject<'_>) -> Option<Violation> {
    let setters = subject.setters(
        sets_bad_seccomp(subject.context()),
        &subject.containers_that(|c| sets_bad_seccomp(context(c))),
    );
    if setters.is_empty() {
        return None;
    }
    let contexts = std::iter::once(subject.context())
        .chain(subject.containers().map(context))
        .filter(|c| sets_bad_seccomp(c));
    let values = set_of(contexts.map(|c| c.field("seccompProfile").text("type")));
    Violation::new(
        "seccompProfile",
        format!(
            "{setters} must not set securityContext.seccompProfile.type to {}",
            quoted(&values)
        ),
    )
}

fn sysctls(subject: &Subject<'_>, minor: u32) -> Option<Violation> {
    let names = subject
        .context()
        .list("sysctls")
        .iter()
        .map(|s| s.text("name"));
    let bad: Vec<&str> = names
        .filter(|name| {
            !SYSCTLS
                .iter()
                .any(|(known, since)| known == name && *since <= minor)
        })
        .collect();
    if bad.is_empty() {
        None
    } else {
        Violation::new("forbidden sysctls", bad.join(", "))
    }
}

fn host_process(subject: &Subject<'_>, _: u32) -> Option<Violation> {
    let bad = |c: &Value| c.field("windowsOptions").is_true("hostProcess");
    let setters = subject.setters(
        bad(subject.context()),
        &subject.containers_that(|c| bad(context(c))),
    );
    if setters.is_empty() {
        return None;
    }
    Violation::new(
        "hostProcess",
        format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"),
    )
}
