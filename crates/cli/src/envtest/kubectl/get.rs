//! `kubectl get ns NAME`: how an environment learns that a control plane is ready.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::PathBuf,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config,
    config::{
        AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster,
        NamedContext,
    },
};

use super::{CommandLine, config::default_path};
use crate::{envtest::program, error::CliError};

/// The name of the context that is made of flags.
const FROM_FLAGS: &str = "flags";

/// Without `--request-timeout`, kubectl waits without a timeout.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Prints the namespace.
///
/// # Errors
/// The server cannot be reached, or there is no such namespace.
pub(super) fn namespace(line: &CommandLine, name: &str) -> Result<(), CliError> {
    program::runtime()?.block_on(async {
        let mut config = config(line).await?;
        config.read_timeout = Some(request_timeout(line));
        config.connect_timeout = Some(request_timeout(line));
        let client =
            Client::try_from(config).map_err(CliError::context("cannot create a client"))?;
        let step = format!("cannot get namespace {name}");
        let found = Api::<Namespace>::all(client)
            .get(name)
            .await
            .map_err(CliError::context(&step))?;
        print(&found, name).map_err(CliError::new)
    })
}

fn print(namespace: &Namespace, name: &str) -> io::Result<()> {
    let status = namespace.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let phase = phase.unwrap_or("Active");
    let created = namespace.metadata.creation_timestamp.as_ref();
    let age = created.map_or(0, |created| {
        let age = now().duration_since(created.0);
        age.as_secs()
    });
    writeln!(
        io::stdout(),
        "{:<width$}   STATUS   AGE\n{name:<width$}   {phase:<6}   {age}s",
        "NAME",
        width = name.len().max("NAME".len()),
    )
}

#[expect(
    clippy::disallowed_methods,
    reason = "the age of an object of another process"
)]
fn now() -> Timestamp {
    Timestamp::now()
}

/// `5s`, `500ms`, or a number of seconds.
fn request_timeout(line: &CommandLine) -> Duration {
    let Some(text) = line.flag("request-timeout") else {
        return REQUEST_TIMEOUT;
    };
    let parse = |text: &str| text.parse::<u64>().ok();
    let parsed = match text.strip_suffix("ms") {
        Some(number) => parse(number).map(Duration::from_millis),
        None => parse(text.strip_suffix('s').unwrap_or(text)).map(Duration::from_secs),
    };
    parsed
        .filter(|timeout| !timeout.is_zero())
        .unwrap_or(REQUEST_TIMEOUT)
}

/// The connection that the flags name, else that of the kubeconfig.
async fn config(line: &CommandLine) -> Result<Config, CliError> {
    let (kubeconfig, context) = match line.flag("server") {
        Some(server) => (from_flags(line, server), Some(FROM_FLAGS.to_owned())),
        None => {
            let path = line
                .flag("kubeconfig")
                .map_or_else(default_path, PathBuf::from);
            let step = format!("cannot use kubeconfig {}", path.display());
            let read = Kubeconfig::read_from(&path).map_err(CliError::context(&step))?;
            (read, line.flag("context").map(str::to_owned))
        }
    };
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(CliError::context("cannot use the connection"))
}

fn from_flags(line: &CommandLine, server: &str) -> Kubeconfig {
    let flag = |name: &str| line.flag(name).map(str::to_owned);
    let cluster = Cluster {
        server: Some(server.to_owned()),
        certificate_authority: flag("certificate-authority"),
        ..Cluster::default()
    };
    let auth_info = AuthInfo {
        client_certificate: flag("client-certificate"),
        client_key: flag("client-key"),
        token: flag("token").map(Into::into),
        ..AuthInfo::default()
    };
    let context = Context {
        cluster: FROM_FLAGS.to_owned(),
        user: Some(FROM_FLAGS.to_owned()),
        ..Context::default()
    };
    let name = FROM_FLAGS.to_owned();
    Kubeconfig {
        clusters: vec![NamedCluster {
            name: name.clone(),
            cluster: Some(cluster),
            other: BTreeMap::default(),
        }],
        auth_infos: vec![NamedAuthInfo {
            name: name.clone(),
            auth_info: Some(auth_info),
            other: BTreeMap::default(),
        }],
        contexts: vec![NamedContext {
            name,
            context: Some(context),
            other: BTreeMap::default(),
        }],
        ..Kubeconfig::default()
    }
}
