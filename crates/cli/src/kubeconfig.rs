//! `bellerophon kubeconfig`: a kubeconfig for a service account.
//!
//! Inputs: an administrator's kubeconfig, and the service account. Output: a kubeconfig on stdout.
//!
//! Guarantees: the command uses only the Kubernetes API, so that it works with any cluster; its
//! output has no credentials of the administrator.

use std::{
    fmt,
    io::{Write as _, stdout},
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::Args;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Client, Config, Resource as _,
    api::PostParams,
    config::{AuthInfo, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedContext},
    core::Request,
};
use serde_json::{Value, json};

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct KubeconfigOptions {
    /// The service account, which must exist
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service_account: Account,

    /// The administrator's kubeconfig, with permission to create tokens for the service account
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    kubeconfig: PathBuf,

    /// The context of that kubeconfig; default: its current context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// The lifetime of the token, such as 30m or 24h; at least ten minutes
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    duration: SignedDuration,
}

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    namespace: String,
    name: String,
}

impl FromStr for Account {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err("not a namespace and a name, such as default/robot"),
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

fn duration(text: &str) -> Result<SignedDuration, &'static str> {
    text.parse()
        .map_err(|_| "not a duration, such as 30m or 24h")
}

/// Prints the kubeconfig.
///
/// # Errors
/// The kubeconfig cannot be read, the server cannot be reached, or it issues no token.
pub(crate) async fn print(options: &KubeconfigOptions) -> Result<(), CliError> {
    let text = of_account(
        &options.kubeconfig,
        options.context.clone(),
        &options.service_account,
        options.duration,
    )
    .await?;
    stdout()
        .lock()
        .write_all(text.as_bytes())
        .map_err(CliError::context("cannot write to stdout"))
}

/// A kubeconfig for a service account of the cluster of another kubeconfig.
///
/// # Errors
/// The kubeconfig cannot be read, the server cannot be reached, or it issues no token.
pub(crate) async fn of_account(
    path: &Path,
    context: Option<String>,
    account: &Account,
    duration: SignedDuration,
) -> Result<String, CliError> {
    let unusable = |cause| {
        let failure =
            CliError::context(&format!("cannot use kubeconfig {}", path.display()))(cause);
        failure
            .with_hint("start a cluster with `bellerophon up`, or set --kubeconfig to another file")
    };
    // Kept as read: the cluster entry of the new kubeconfig is a copy, with its CA bundle.
    let administrator = Kubeconfig::read_from(path).map_err(unusable)?;
    let selected = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let config = Config::from_custom_kubeconfig(administrator.clone(), &selected)
        .await
        .map_err(unusable)?;
    let client = Client::try_from(config).map_err(CliError::context("cannot create a client"))?;
    let token = request_token(client, account, duration)
        .await
        .map_err(|error| token_error(error, account))?;
    let token = token.ok_or_else(|| {
        CliError::Failed(format!(
            "the server issued no token for service account {account}"
        ))
    })?;
    let context = selected
        .context
        .or_else(|| administrator.current_context.clone())
        .unwrap_or_default();
    serde_saphyr::to_string(&account_kubeconfig(administrator, &context, account, token))
        .map_err(CliError::new)
}

/// Requests a token by the TokenRequest API.
async fn request_token(
    client: Client,
    account: &Account,
    duration: SignedDuration,
) -> kube::Result<Option<String>> {
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": { "expirationSeconds": duration.as_secs() },
    });
    let path = ServiceAccount::url_path(&(), Some(&account.namespace));
    let params = PostParams::default();
    let body = body.to_string().into_bytes();
    let request = Request::new(path).create_subresource("token", &account.name, &params, body);
    let request = request.map_err(kube::Error::BuildRequest)?;
    let response: Value = client.request(request).await?;
    Ok(response["status"]["token"].as_str().map(str::to_owned))
}

/// The error of a token request, with a hint.
fn token_error(error: kube::Error, account: &Account) -> CliError {
    let step = format!("cannot get a token for service account {account}");
    let Account { namespace, name } = account;
    match error {
        kube::Error::Api(status) => {
            CliError::context(&step)(status.message).with_hint(&match status.code {
                404 => format!(
                    "create it with `kubectl create serviceaccount --namespace {namespace} {name}`"
                ),
                422 => "choose another --duration".to_owned(),
                _ => "use a kubeconfig that may create tokens for it".to_owned(),
            })
        }
        other => CliError::context(&step)(other)
            .with_hint("check that the server of this kubeconfig is running"),
    }
}

/// A kubeconfig with the cluster of a context, and the service account as its only user.
fn account_kubeconfig(
    administrator: Kubeconfig,
    context: &str,
    account: &Account,
    token: String,
) -> Kubeconfig {
    let Account { namespace, name } = account;
    let named = administrator
        .contexts
        .into_iter()
        .find(|known| known.name == context);
    let cluster = named
        .and_then(|named| named.context)
        .map(|context| context.cluster)
        .unwrap_or_default();
    let user = format!("system:serviceaccount:{namespace}:{name}");
    let context = Context {
        cluster: cluster.clone(),
        user: Some(user.clone()),
        namespace: Some(namespace.clone()),
        ..Context::default()
    };
    let context_name = format!("{account}@{cluster}");
    let credentials = AuthInfo {
        token: Some(token.into()),
        ..AuthInfo::default()
    };
    Kubeconfig {
        api_version: Some("v1".to_owned()),
        kind: Some("Config".to_owned()),
        clusters: administrator
            .clusters
            .into_iter()
            // Other clusters and users of the administrator must not end up in a file that is
            // handed out.
            .filter(|known| known.name == cluster)
            .collect(),
        auth_infos: vec![NamedAuthInfo {
            name: user,
            auth_info: Some(credentials),
            ..NamedAuthInfo::default()
        }],
        current_context: Some(context_name.clone()),
        contexts: vec![NamedContext {
            name: context_name,
            context: Some(context),
            ..NamedContext::default()
        }],
        ..Kubeconfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_is_a_namespace_and_a_name() {
        let robot = Account {
            namespace: "team-a".to_owned(),
            name: "robot".to_owned(),
        };
        assert_eq!("team-a/robot".parse(), Ok(robot));
        for invalid in ["robot", "/robot", "team-a/", "team-a/robot/x", ""] {
            assert!(invalid.parse::<Account>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn duration_has_units() {
        assert_eq!(duration("1h30m"), Ok(SignedDuration::from_mins(90)));
        assert!(duration("soon").is_err());
    }

    #[test]
    fn output_has_no_credentials_of_the_administrator() {
        let administrator = "
            current-context: here
            clusters:
            - {name: one, cluster: {server: 'https://127.0.0.1:1', certificate-authority-data: Q0E=}}
            - {name: two, cluster: {server: 'https://127.0.0.1:2'}}
            users:
            - {name: admin, user: {token: secret, client-key-data: a2V5}}
            contexts:
            - {name: here, context: {cluster: one, user: admin}}
            - {name: there, context: {cluster: two, user: admin}}
        ";
        let account = Account {
            namespace: "team-a".to_owned(),
            name: "robot".to_owned(),
        };
        let administrator = Kubeconfig::from_yaml(administrator).expect("a kubeconfig");
        let kubeconfig = account_kubeconfig(administrator, "here", &account, "fresh".to_owned());
        let text = serde_saphyr::to_string(&kubeconfig).expect("YAML");
        for (part, is_contained) in [
            ("https://127.0.0.1:1", true),
            ("Q0E=", true),
            ("token: fresh", true),
            ("namespace: team-a", true),
            ("current-context: team-a/robot@one", true),
            ("127.0.0.1:2", false),
            ("secret", false),
            ("a2V5", false),
            ("admin", false),
        ] {
            assert_eq!(text.contains(part), is_contained, "{part} in\n{text}");
        }
        let parsed = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
        assert_eq!(parsed.clusters.len(), 1);
        assert_eq!(parsed.auth_infos.len(), 1);
        assert_eq!(parsed.contexts.len(), 1);
    }
}
