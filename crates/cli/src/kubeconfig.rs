//! `bellerophon kubeconfig`: a kubeconfig that speaks for a service account.
//! In: an administrator's kubeconfig, as `up` writes it, and the account. Out: a kubeconfig on stdout, and nothing else there.
//! Holds: it asks the server through the API alone, so it works on any cluster; nothing of the credentials it used is in what it prints.

use std::{
    fmt,
    io::{Write as _, stdout},
    path::PathBuf,
    str::FromStr,
};

use clap::Args;
use jiff::SignedDuration;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{AuthInfo, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedContext},
};

use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct KubeconfigOptions {
    /// For whom: an account that exists
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service_account: Account,

    /// The kubeconfig to ask with; it must be allowed to create tokens for the account
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    kubeconfig: PathBuf,

    /// The context of that kubeconfig, if not its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// How long the token is good, such as 30m or 24h; ten minutes at least
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    duration: SignedDuration,
}

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
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
        .map_err(|_| "not a length of time, such as 30m or 24h")
}

/// Prints the kubeconfig.
///
/// # Errors
/// The kubeconfig cannot be read, the server cannot be reached, or it refuses the token.
pub(crate) async fn print(options: &KubeconfigOptions) -> Result<(), Failure> {
    let KubeconfigOptions {
        service_account: account,
        kubeconfig: path,
        ..
    } = options;
    let unusable = |cause| {
        let failure =
            Failure::caused_by(&format!("cannot use kubeconfig {}", path.display()))(cause);
        failure.advising(
            "start a server with `bellerophon up`, or name another file with --kubeconfig",
        )
    };
    let asked_with = Kubeconfig::read_from(path).map_err(unusable)?;
    let chosen = KubeConfigOptions {
        context: options.context.clone(),
        ..KubeConfigOptions::default()
    };
    let config = Config::from_custom_kubeconfig(asked_with.clone(), &chosen)
        .await
        .map_err(unusable)?;
    let client = Client::try_from(config).map_err(Failure::caused_by("cannot make a client"))?;
    let token = token(client, account, options.duration)
        .await
        .map_err(|error| refused(error, account))?;
    let token = token.ok_or_else(|| {
        Failure::Failed(format!(
            "the server has no token for service account {account}"
        ))
    })?;
    let context = chosen
        .context
        .or_else(|| asked_with.current_context.clone())
        .unwrap_or_default();
    let text = serde_saphyr::to_string(&of_account(asked_with, &context, account, token))
        .map_err(Failure::of)?;
    stdout()
        .lock()
        .write_all(text.as_bytes())
        .map_err(Failure::caused_by("cannot write to stdout"))
}

async fn token(
    client: Client,
    account: &Account,
    duration: SignedDuration,
) -> kube::Result<Option<String>> {
    let spec = TokenRequestSpec {
        expiration_seconds: Some(duration.as_secs()),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest {
        spec: Some(spec),
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client, &account.namespace);
    let answer = accounts
        .create_token_request(&account.name, &PostParams::default(), &request)
        .await?;
    Ok(answer.status.and_then(|status| status.token))
}

/// Why there is no token, and what to do about it.
fn refused(error: kube::Error, account: &Account) -> Failure {
    let step = format!("cannot get a token for service account {account}");
    let Account { namespace, name } = account;
    match error {
        kube::Error::Api(status) => {
            Failure::caused_by(&step)(status.message).advising(&match status.code {
                404 => format!(
                    "create it with `kubectl create serviceaccount --namespace {namespace} {name}`"
                ),
                422 => "choose another --duration".to_owned(),
                _ => "use a kubeconfig that may create tokens for it".to_owned(),
            })
        }
        other => {
            Failure::caused_by(&step)(other).advising("is the server of this kubeconfig running?")
        }
    }
}

/// The cluster of a context, with the account as its only user.
fn of_account(
    asked_with: Kubeconfig,
    context: &str,
    account: &Account,
    token: String,
) -> Kubeconfig {
    let Account { namespace, name } = account;
    let named = asked_with
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
        clusters: asked_with
            .clusters
            .into_iter()
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
        for wrong in ["robot", "/robot", "team-a/", "team-a/robot/x", ""] {
            assert!(wrong.parse::<Account>().is_err(), "{wrong}");
        }
        assert_eq!(duration("1h30m"), Ok(SignedDuration::from_mins(90)));
        assert!(duration("soon").is_err());
    }

    #[test]
    fn file_has_the_cluster_but_not_the_keys_it_was_asked_with() {
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
        let asked_with = Kubeconfig::from_yaml(administrator).expect("a kubeconfig");
        let text = serde_saphyr::to_string(&of_account(
            asked_with,
            "here",
            &account,
            "fresh".to_owned(),
        ))
        .expect("written");
        for (wanted, there) in [
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
            assert_eq!(text.contains(wanted), there, "{wanted} in\n{text}");
        }
        let read = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
        assert_eq!(
            (
                read.clusters.len(),
                read.auth_infos.len(),
                read.contexts.len()
            ),
            (1, 1, 1)
        );
    }
}
