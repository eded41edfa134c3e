//! Two service accounts: one that floods, and one whose writes are measured.

use std::path::{Path, PathBuf};

use http::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::common::{
    BenchError,
    client::{Target, config_map},
};

/// The namespace of the account that floods, and its name.
pub(crate) const FLOODER: &str = "flooder";

/// The namespace of the account whose writes are measured, and its name.
pub(crate) const OTHER: &str = "other";

/// A namespace with 100 small ConfigMaps, 85 kB as a list.
pub(crate) const SMALL: &str = "small";

/// A namespace with 12 ConfigMaps of 1 MB each.
pub(crate) const LARGE: &str = "large";

/// What the server has before the floods.
pub(crate) struct Accounts {
    pub(crate) other: Target,
    pub(crate) flooder_kubeconfig: PathBuf,
}

/// Creates the accounts, and what the floods list.
pub(crate) async fn create(kubeconfig: &Path) -> Result<Accounts, BenchError> {
    let admin = Admin::new(kubeconfig).await?;
    for namespace in [FLOODER, OTHER, SMALL, LARGE] {
        let object = json!({"metadata": {"name": namespace}});
        admin.post("/api/v1/namespaces", object.to_string()).await?;
    }
    for number in 0..100 {
        let path = format!("/api/v1/namespaces/{SMALL}/configmaps");
        let body = config_map(&format!("small-{number}"), number);
        admin.post(&path, body).await?;
    }
    let filler = "x".repeat(1_000_000);
    for number in 0..12 {
        let path = format!("/api/v1/namespaces/{LARGE}/configmaps");
        let name = format!("large-{number}");
        let object = json!({"metadata": {"name": name}, "data": {"filler": filler}});
        admin.post(&path, object.to_string()).await?;
    }
    let other = admin.account(OTHER).await?;
    admin.allow(OTHER, OTHER, &["create"]).await?;
    let flooder = admin.account(FLOODER).await?;
    admin.allow(FLOODER, FLOODER, &["create"]).await?;
    for namespace in [SMALL, LARGE] {
        admin.allow(FLOODER, namespace, &["list"]).await?;
    }
    admin.allow(FLOODER, OTHER, &["watch"]).await?;
    let target = Target::read(kubeconfig)?;
    let flooder_kubeconfig = kubeconfig.with_extension(FLOODER);
    let text = std::fs::read_to_string(kubeconfig)?;
    std::fs::write(&flooder_kubeconfig, text.replace(&target.token, &flooder))?;
    Ok(Accounts {
        other: Target {
            token: other,
            ..target
        },
        flooder_kubeconfig,
    })
}

/// A client of the administrator.
struct Admin(Client);

impl Admin {
    async fn new(kubeconfig: &Path) -> Result<Self, BenchError> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        Ok(Self(Client::try_from(config)?))
    }

    async fn post(&self, path: &str, body: String) -> Result<Value, BenchError> {
        let request = Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.into_bytes())?;
        Ok(self.0.request(request).await?)
    }

    /// The token of a new service account, in the namespace of the same name.
    async fn account(&self, name: &str) -> Result<String, BenchError> {
        let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
        let object = json!({"metadata": {"name": name}});
        self.post(&accounts, object.to_string()).await?;
        let path = format!("{accounts}/{name}/token");
        let token = self.post(&path, json!({"spec": {}}).to_string()).await?;
        let token = token["status"]["token"].as_str();
        Ok(token.ok_or("the response has no token")?.to_owned())
    }

    /// Allows an account to do this with the ConfigMaps of a namespace.
    async fn allow(&self, name: &str, namespace: &str, verbs: &[&str]) -> Result<(), BenchError> {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
        let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs});
        let role = json!({"metadata": {"name": name}, "rules": [rule]});
        self.post(&format!("{path}/roles"), role.to_string())
            .await?;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": name}],
        });
        self.post(&format!("{path}/rolebindings"), binding.to_string())
            .await?;
        Ok(())
    }
}
