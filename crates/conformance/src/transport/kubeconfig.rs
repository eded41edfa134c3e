//! Server and user of the current context of a kubeconfig.
//! Guarantees: servers that are not on loopback are refused, since scenarios create and delete objects.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{Uri, uri::Scheme};
use serde::Deserialize;

use super::TransportError;

/// The server and user of a kubeconfig.
pub(super) struct Access {
    pub(super) server: Uri,
    /// The certificates to trust, as PEM.
    pub(super) authority: Vec<u8>,
    pub(super) token: Option<String>,
    /// Certificate chain and key of the user, as PEM. Never there beside a token.
    pub(super) identity: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    current_context: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Access {
    /// Reads the text of a kubeconfig.
    pub(super) fn read(text: &str) -> Result<Self, TransportError> {
        let file: Kubeconfig = serde_saphyr::from_str(text)
            .map_err(|e| TransportError::new("cannot read the kubeconfig", e))?;
        let (cluster, user) = file
            .current()
            .ok_or_else(|| unusable("its current context names no cluster and user of it"))?;
        let server = loopback(&cluster.server)?;
        let authority = cluster
            .certificate_authority_data
            .as_deref()
            .ok_or_else(|| unusable("it has no certificate-authority-data"))?;
        let identity = match (
            &user.token,
            &user.client_certificate_data,
            &user.client_key_data,
        ) {
            (None, Some(certificate), Some(key)) => Some((decoded(certificate)?, decoded(key)?)),
            _ => None,
        };
        Ok(Self {
            server,
            authority: decoded(authority)?,
            token: user.token.clone(),
            identity,
        })
    }
}

impl Kubeconfig {
    fn current(&self) -> Option<(&Cluster, &User)> {
        let wanted = self.current_context.as_deref();
        let context = self
            .contexts
            .iter()
            .find(|context| wanted.is_none_or(|name| context.name == name));
        let (cluster, user) = match context {
            Some(NamedContext { context, .. }) => (
                self.clusters.iter().find(|c| c.name == context.cluster)?,
                self.users.iter().find(|u| u.name == context.user)?,
            ),
            None => (self.clusters.first()?, self.users.first()?),
        };
        Some((&cluster.cluster, &user.user))
    }
}

fn loopback(server: &str) -> Result<Uri, TransportError> {
    let uri: Uri = server
        .parse()
        .map_err(|_| unusable("its server is not an address"))?;
    if uri.scheme() != Some(&Scheme::HTTPS) {
        return Err(unusable("the URL of its server is not https"));
    }
    match uri.host() {
        Some("127.0.0.1" | "localhost" | "[::1]") => Ok(uri),
        host => Err(unusable(&format!(
            "its server {} is not on loopback, and replaying changes a server",
            host.unwrap_or("")
        ))),
    }
}

fn decoded(data: &str) -> Result<Vec<u8>, TransportError> {
    BASE64_STANDARD.decode(data).map_err(|e| {
        TransportError::new(
            "the kubeconfig cannot be used: a certificate or key of it is not base64",
            e,
        )
    })
}

fn unusable(why: &str) -> TransportError {
    TransportError(format!("the kubeconfig cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(server: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: b\ncontexts:\n- name: a\n  context: {{cluster: other, user: other}}\n\
             - name: b\n  context: {{cluster: c, user: u}}\nclusters:\n- name: c\n  cluster: {{server: \"{server}\", certificate-authority-data: Y2E=}}\n\
             users:\n- name: u\n  user: {user}\n"
        )
    }

    #[test]
    fn current_context_is_used() {
        let access = Access::read(&kubeconfig(
            "https://127.0.0.1:6443",
            "{token: t, client-certificate-data: Yw==, client-key-data: aw==}",
        ))
        .expect("the kubeconfig is sound");
        assert_eq!(access.server.port_u16(), Some(6443));
        assert_eq!(access.authority, b"ca");
        assert_eq!(access.token.as_deref(), Some("t"));
        assert_eq!(access.identity, None);
        let access = Access::read(&kubeconfig(
            "https://localhost:1",
            "{client-certificate-data: Yw==, client-key-data: aw==}",
        ))
        .expect("the kubeconfig is sound");
        assert_eq!(access.identity, Some((b"c".to_vec(), b"k".to_vec())));
    }

    #[test]
    fn unusable_kubeconfig_is_rejected_with_a_reason() {
        let cases = [
            ("https://cluster.example.dev", "not on loopback"),
            ("http://127.0.0.1:80", "https"),
            ("nonsense nonsense", "not an address"),
        ];
        for (server, why) in cases {
            let error = Access::read(&kubeconfig(server, "{token: t}"))
                .err()
                .expect("it is refused")
                .to_string();
            assert!(error.contains(why), "{server}: {error}");
        }
    }
}
