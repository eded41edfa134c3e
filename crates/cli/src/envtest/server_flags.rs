//! The flags of kube-apiserver, as settings of the embedded API server.
//!
//! In: parsed flags. Out: an address and options, with the contents of the files that flags name.
//! What the server cannot do is a warning.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

use bellerophon_apiserver::{
    AuditOptions, AuditRotation, AuthorizationMode, RequestLimits, ServerOptions,
    ServiceAccountKeys, ServingCertificate, StaticToken,
};
use http::Uri;

use super::flags::{Flag, Flags};
use crate::error::CliError;

/// The default of `--secure-port`.
const PORT_DEFAULT: u16 = 6443;

/// Flags that test environments and public suites pass.
pub(super) const FLAGS: &[Flag] = &[
    Flag::text("bind-address"),
    Flag::text("secure-port"),
    Flag::text("cert-dir"),
    Flag::text("tls-cert-file"),
    Flag::text("tls-private-key-file"),
    Flag::text("client-ca-file"),
    Flag::text("service-account-issuer"),
    Flag::text("service-account-key-file"),
    Flag::text("service-account-signing-key-file"),
    Flag::text("api-audiences"),
    Flag::text("token-auth-file"),
    Flag::bool("anonymous-auth"),
    Flag::text("authorization-mode"),
    Flag::text("disable-admission-plugins"),
    Flag::text("enable-admission-plugins"),
    Flag::text("audit-log-maxage"),
    Flag::text("audit-log-maxbackup"),
    Flag::text("audit-log-maxsize"),
    Flag::text("audit-log-path"),
    Flag::text("audit-policy-file"),
    Flag::text("max-requests-inflight"),
    Flag::text("max-mutating-requests-inflight"),
    Flag::text("feature-gates"),
    Flag::text("runtime-config"),
    Flag::text("etcd-servers"),
    Flag::text("v"),
    Flag::bool("help"),
    Flag::bool("version"),
    Flag::bool("allow-privileged").meaningless(),
    Flag::text("advertise-address").meaningless(),
    Flag::text("apiserver-count").meaningless(),
    Flag::text("audit-log-format").meaningless(),
    Flag::text("audit-log-mode").meaningless(),
    Flag::text("default-watch-cache-size").meaningless(),
    Flag::text("delete-collection-workers").meaningless(),
    Flag::bool("enable-aggregator-routing").meaningless(),
    Flag::bool("enable-garbage-collector").meaningless(),
    Flag::bool("enable-priority-and-fairness").meaningless(),
    Flag::text("endpoint-reconciler-type").meaningless(),
    Flag::text("etcd-cafile").meaningless(),
    Flag::text("etcd-certfile").meaningless(),
    Flag::text("etcd-compaction-interval").meaningless(),
    Flag::text("etcd-count-metric-poll-period").meaningless(),
    Flag::text("etcd-healthcheck-timeout").meaningless(),
    Flag::text("etcd-keyfile").meaningless(),
    Flag::text("etcd-prefix").meaningless(),
    Flag::text("event-ttl").meaningless(),
    Flag::text("external-hostname").meaningless(),
    Flag::text("goaway-chance").meaningless(),
    Flag::text("http2-max-streams-per-connection").meaningless(),
    Flag::text("insecure-bind-address").meaningless(),
    Flag::text("insecure-port").meaningless(),
    Flag::text("kubelet-client-certificate").meaningless(),
    Flag::text("kubelet-client-key").meaningless(),
    Flag::text("kubelet-preferred-address-types").meaningless(),
    Flag::text("livez-grace-period").meaningless(),
    Flag::text("logging-format").meaningless(),
    Flag::text("min-request-timeout").meaningless(),
    Flag::bool("profiling").meaningless(),
    Flag::text("request-timeout").meaningless(),
    Flag::text("service-cluster-ip-range").meaningless(),
    Flag::text("service-node-port-range").meaningless(),
    Flag::text("shutdown-delay-duration").meaningless(),
    Flag::text("storage-backend").meaningless(),
    Flag::text("storage-media-type").meaningless(),
    Flag::text("target-ram-mb").meaningless(),
    Flag::text("tls-cipher-suites").meaningless(),
    Flag::text("tls-min-version").meaningless(),
    Flag::text("vmodule").meaningless(),
    Flag::bool("watch-cache").meaningless(),
    Flag::text("watch-cache-sizes").meaningless(),
    Flag::text("admission-control").unsupported(),
    Flag::text("admission-control-config-file").unsupported(),
    Flag::text("audit-webhook-config-file").unsupported(),
    Flag::text("authentication-config").unsupported(),
    Flag::text("authentication-token-webhook-config-file").unsupported(),
    Flag::text("authorization-config").unsupported(),
    Flag::text("authorization-policy-file").unsupported(),
    Flag::text("authorization-webhook-config-file").unsupported(),
    Flag::text("egress-selector-config-file").unsupported(),
    Flag::bool("enable-bootstrap-token-auth").unsupported(),
    Flag::text("encryption-provider-config").unsupported(),
    Flag::text("oidc-ca-file").unsupported(),
    Flag::text("oidc-client-id").unsupported(),
    Flag::text("oidc-issuer-url").unsupported(),
    Flag::text("proxy-client-cert-file").unsupported(),
    Flag::text("proxy-client-key-file").unsupported(),
    Flag::text("requestheader-allowed-names").unsupported(),
    Flag::text("requestheader-client-ca-file").unsupported(),
    Flag::text("requestheader-extra-headers-prefix").unsupported(),
    Flag::text("requestheader-group-headers").unsupported(),
    Flag::text("requestheader-username-headers").unsupported(),
    Flag::text("tls-sni-cert-key").unsupported(),
    Flag::text("tracing-config-file").unsupported(),
];

/// The flags that have an effect, one a line. There must be no `--insecure-port` in it: an
/// environment would take the server for one that has an insecure port.
pub(super) fn help() -> String {
    let honored = FLAGS.iter().filter(|flag| flag.is_honored());
    let lines = honored.map(|flag| format!("      --{}\n", flag.name()));
    let lines: String = lines.collect();
    format!(
        "{lines}\nOther flags of kube-apiserver are accepted; those that change what a client sees \
         are warned of.\n"
    )
}

/// The settings of the server.
#[derive(Debug)]
pub(super) struct ServerFlags {
    pub(super) listen: SocketAddr,
    pub(super) options: ServerOptions,
    pub(super) limits: RequestLimits,
    pub(super) audit: Option<AuditOptions>,
    pub(super) etcd: Option<Uri>,
}

impl ServerFlags {
    /// Reads the settings, and the files that they name.
    ///
    /// # Errors
    /// An address that is none, or a file that cannot be read.
    pub(super) fn read(flags: &mut Flags) -> Result<Self, CliError> {
        let authorization = authorization(flags);
        let disabled_admission_plugins = admission_plugins(flags);
        let aggregated_discovery = feature_gates(flags);
        if flags.has("runtime-config") {
            let requested: Vec<&str> = flags.list("runtime-config").collect();
            let requested = requested.join(",");
            flags.warn(format!(
                "--runtime-config={requested}: the server has the v1 APIs and autoscaling/v2 only"
            ));
        }
        Ok(Self {
            listen: listen(flags)?,
            options: ServerOptions {
                serving_certificate: serving_certificate(flags)?,
                client_ca_pem: read_file(flags, "client-ca-file")?,
                service_accounts: service_accounts(flags)?,
                static_tokens: static_tokens(flags)?,
                anonymous: flags.bool("anonymous-auth", true),
                authorization,
                disabled_admission_plugins,
                aggregated_discovery,
            },
            limits: limits(flags)?,
            audit: audit(flags)?,
            etcd: flags
                .list("etcd-servers")
                .next()
                .and_then(|url| url.parse().ok()),
        })
    }
}

/// The address. Without `--bind-address`, kube-apiserver listens on all addresses of the machine; a
/// server for tests does not.
fn listen(flags: &Flags) -> Result<SocketAddr, CliError> {
    let invalid = |flag: &str, value: &str| {
        CliError::Usage(format!("--{flag}={value} is not valid"))
            .with_hint("see `kube-apiserver --help`")
    };
    let ip = match flags.last("bind-address") {
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Some(text) => text.parse().map_err(|_| invalid("bind-address", text))?,
    };
    let port = match flags.last("secure-port") {
        None => PORT_DEFAULT,
        Some(text) => text.parse().map_err(|_| invalid("secure-port", text))?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// The pair of `--tls-cert-file`, or of `apiserver.crt` in the directory of certificates.
fn serving_certificate(flags: &Flags) -> Result<Option<ServingCertificate>, CliError> {
    let file = |flag: &str| flags.last(flag).map(PathBuf::from);
    let directory = file("cert-dir");
    let in_directory = |name: &str| {
        let path = directory.as_ref()?.join(name);
        path.exists().then_some(path)
    };
    let certificate = file("tls-cert-file").or_else(|| in_directory("apiserver.crt"));
    let key = file("tls-private-key-file").or_else(|| in_directory("apiserver.key"));
    let (Some(certificate), Some(key)) = (certificate, key) else {
        return Ok(None);
    };
    Ok(Some(ServingCertificate {
        certificate_pem: read(&certificate)?,
        key_pem: read(&key)?,
    }))
}

fn service_accounts(flags: &Flags) -> Result<ServiceAccountKeys, CliError> {
    let texts = |flag: &str| flags.list(flag).map(str::to_owned).collect();
    let accepted = flags
        .list("service-account-key-file")
        .map(|path| read(Path::new(path)));
    Ok(ServiceAccountKeys {
        signing_key_pem: read_file(flags, "service-account-signing-key-file")?,
        accepted_keys_pem: accepted.collect::<Result<_, _>>()?,
        issuers: texts("service-account-issuer"),
        audiences: texts("api-audiences"),
    })
}

/// The lines `token,user,uid,"group1,group2"` of a file. Mirrors `tokenfile.NewCSV`.
fn static_tokens(flags: &Flags) -> Result<Vec<StaticToken>, CliError> {
    let Some(text) = read_file(flags, "token-auth-file")? else {
        return Ok(Vec::new());
    };
    let mut tokens = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut fields = line
            .splitn(4, ',')
            .map(|field| field.trim().trim_matches('"'));
        let (Some(token), Some(user), Some(uid)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(CliError::Usage(
                "--token-auth-file: a line has less than three fields".to_owned(),
            )
            .with_hint("write lines as in token,user,uid,\"group1,group2\""));
        };
        let groups = fields.next().unwrap_or_default().split(',');
        let groups = groups.map(str::trim).filter(|group| !group.is_empty());
        tokens.push(StaticToken {
            token: token.to_owned(),
            user: user.to_owned(),
            uid: uid.to_owned(),
            groups: groups.map(str::to_owned).collect(),
        });
    }
    Ok(tokens)
}

/// Without the flag, kube-apiserver allows everything.
fn authorization(flags: &mut Flags) -> AuthorizationMode {
    let modes: Vec<String> = flags
        .list("authorization-mode")
        .map(str::to_owned)
        .collect();
    for mode in &modes {
        if !["AlwaysAllow", "RBAC", "Node"].contains(&mode.as_str()) {
            flags.warn(format!(
                "--authorization-mode={mode} is not supported; ignored"
            ));
        }
    }
    let always = modes.is_empty() || modes.iter().any(|mode| mode == "AlwaysAllow");
    match always {
        true => AuthorizationMode::AlwaysAllow,
        false => AuthorizationMode::Rbac,
    }
}

/// The plugins that do not run. Plugins that are not on by default in kube-apiserver cannot be
/// switched on.
fn admission_plugins(flags: &mut Flags) -> Vec<String> {
    let missing = |plugin: &&str| MISSING_PLUGINS.contains(plugin);
    let missing = flags.list("enable-admission-plugins").filter(missing);
    let missing: Vec<String> = missing.map(str::to_owned).collect();
    for plugin in missing {
        flags.warn(format!(
            "admission plugin {plugin} is not implemented; ignored"
        ));
    }
    let disabled = flags.list("disable-admission-plugins");
    disabled.map(str::to_owned).collect()
}

/// Plugins of kube-apiserver that are off by default and that the embedded server does not have.
const MISSING_PLUGINS: &[&str] = &[
    "AlwaysPullImages",
    "DenyServiceExternalIPs",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "NamespaceAutoProvision",
    "NamespaceExists",
    "NodeRestriction",
    "OwnerReferencesPermissionEnforcement",
    "PodNodeSelector",
    "PodTolerationRestriction",
];

/// Whether aggregated discovery is served; the only gate that has an effect.
fn feature_gates(flags: &mut Flags) -> bool {
    const AGGREGATED: &str = "AggregatedDiscoveryEndpoint";
    let others = flags.list("feature-gates");
    let others: Vec<String> = others
        .filter(|gate| !gate.starts_with(AGGREGATED))
        .map(str::to_owned)
        .collect();
    for gate in others {
        flags.warn(format!("feature gate {gate} has no effect"));
    }
    let value = flags.pair("feature-gates", AGGREGATED);
    !value.is_some_and(|value| value.eq_ignore_ascii_case("false"))
}

fn limits(flags: &Flags) -> Result<RequestLimits, CliError> {
    let default = RequestLimits::default();
    Ok(RequestLimits {
        reads_max: number(flags, "max-requests-inflight", default.reads_max)?,
        writes_max: number(flags, "max-mutating-requests-inflight", default.writes_max)?,
    })
}

fn audit(flags: &Flags) -> Result<Option<AuditOptions>, CliError> {
    let (Some(path), Some(policy)) = (
        flags.last("audit-log-path"),
        read_file(flags, "audit-policy-file")?,
    ) else {
        return Ok(None);
    };
    let default = AuditRotation::default();
    Ok(Some(AuditOptions {
        log_path: path.into(),
        policy,
        rotation: AuditRotation {
            size_max_megabytes: number(flags, "audit-log-maxsize", default.size_max_megabytes)?,
            backups_max: number(flags, "audit-log-maxbackup", default.backups_max)?,
            age_max_days: number(flags, "audit-log-maxage", default.age_max_days)?,
        },
    }))
}

/// The number of a flag; the default if it is not given.
fn number<T: FromStr>(flags: &Flags, flag: &str, default: T) -> Result<T, CliError> {
    match flags.last(flag) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| {
            CliError::Usage(format!("--{flag}={text} is not a number"))
                .with_hint("omit the flag for the default")
        }),
    }
}

/// The contents of the file that a flag names.
fn read_file(flags: &Flags, flag: &str) -> Result<Option<String>, CliError> {
    flags
        .last(flag)
        .map(|path| read(Path::new(path)))
        .transpose()
}

fn read(path: &Path) -> Result<String, CliError> {
    let step = format!("cannot read {}", path.display());
    fs::read_to_string(path).map_err(CliError::context(&step))
}
