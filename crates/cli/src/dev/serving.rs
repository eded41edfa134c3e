//! Webhooks that a Go or Python operator serves on the loopback address, with a certificate of `dev`.
//!
//! In: webhook configurations and CRDs in the YAML files of a project, which name a Service. Out: the
//! same objects with a URL, and the environment variables that the program passes to its server, such
//! as `webhook.Options` of controller-runtime.
//!
//! Guarantees: the certificate is created once per `dev`, and only its owner can read the key; the
//! operator is given a port that is free.

use std::{
    ffi::OsString,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use http::Request;
use k8s_openapi::ByteString;
use kube::{Client, Config, client::Body};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{webhooks, write_private};
use crate::error::CliError;

/// Where the certificate and its key are, below the root of a project.
const DIRECTORY: &str = ".bellerophon/serving-certs";

/// How long the operator may take to answer one request.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Whether the operator answers at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServingState {
    /// It was started, and has not answered yet.
    Awaited,
    /// It did not answer in time.
    Unanswered,
    Answered,
}

/// Where the operator serves its webhooks.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) state: ServingState,
    address: SocketAddr,
    /// The directory with `tls.crt` and `tls.key`, absolute.
    directory: PathBuf,
    /// The certificate, which is self-signed.
    certificate: rcgen::Certificate,
}

impl Serving {
    /// Creates the certificate below the root of a project.
    ///
    /// # Errors
    /// No port is free, or the files cannot be written.
    pub(super) fn create(root: &Path) -> Result<Self, CliError> {
        let directory = std::path::absolute(root.join(DIRECTORY)).map_err(CliError::new)?;
        let step = format!(
            "cannot create a certificate for webhooks in {}",
            directory.display()
        );
        let host = Ipv4Addr::LOCALHOST.to_string();
        let created =
            rcgen::generate_simple_self_signed([host]).map_err(CliError::context(&step))?;
        let write = || -> io::Result<()> {
            fs::create_dir_all(&directory)?;
            fs::write(directory.join("tls.crt"), created.cert.pem())?;
            write_private(
                &directory.join("tls.key"),
                &created.signing_key.serialize_pem(),
            )
        };
        write().map_err(CliError::context(&step))?;
        Ok(Self {
            state: ServingState::Awaited,
            address: webhooks::free_address()?,
            directory,
            certificate: created.cert,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes ready for the start of an operator: another program may listen on the port by now.
    ///
    /// # Errors
    /// No port is free.
    pub(super) fn prepare_start(&mut self) -> Result<(), CliError> {
        self.state = ServingState::Awaited;
        self.address = webhooks::free_address()?;
        Ok(())
    }

    /// The environment variables of the operator.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 3] {
        [
            ("WEBHOOK_HOST", self.address.ip().to_string().into()),
            ("WEBHOOK_PORT", self.address.port().to_string().into()),
            ("WEBHOOK_CERT_DIR", self.directory.clone().into()),
        ]
    }

    /// The object with the URL of the operator and its certificate, where it names a Service.
    ///
    /// Mirrors updateClientConfig of controller-runtime's envtest.
    pub(super) fn with_url(&self, object: &Value) -> Value {
        let mut object = object.clone();
        for config in webhooks::client_configs(&mut object) {
            let Some(config) = config.as_object_mut() else {
                continue;
            };
            let Some(service) = config.remove("service") else {
                continue;
            };
            let path = service["path"].as_str().unwrap_or("/");
            let bundle = ByteString(self.certificate.pem().into_bytes());
            config.insert(
                "url".into(),
                format!("https://{}{path}", self.address).into(),
            );
            config.insert("caBundle".into(), json!(bundle));
        }
        object
    }

    /// Requests the root path. Any response shows that the operator serves with the certificate.
    ///
    /// # Errors
    /// Nothing listens, or serves with another certificate.
    pub(super) async fn check(&self) -> Result<(), CliError> {
        let url = format!("https://{}", self.address);
        let mut config = Config::new(url.parse().map_err(CliError::new)?);
        config.root_cert = Some(vec![self.certificate.der().to_vec()]);
        let client: Client = bellerophon::client::connect(config).map_err(CliError::new)?;
        let request = Request::get("/")
            .body(Body::empty())
            .map_err(CliError::new)?;
        match timeout(ANSWER_MAX, client.send(request)).await {
            Ok(response) => response.map(drop).map_err(CliError::new),
            Err(elapsed) => Err(CliError::new(elapsed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_name_a_service_get_the_url_of_the_operator() {
        let project = tempfile::tempdir().expect("a directory");
        let serving = Serving::create(project.path()).expect("created");
        let url = |path: &str| format!("https://{}{path}", serving.address);
        let service = json!({"service": {"name": "hero", "namespace": "a", "path": "/mutate"}});
        let without_path = json!({"service": {"name": "hero", "namespace": "a"}});
        let elsewhere = json!({"url": "https://127.0.0.1:1/validate"});
        let configuration = json!({
            "kind": "MutatingWebhookConfiguration",
            "webhooks": [{"clientConfig": service}, {"clientConfig": without_path},
                         {"clientConfig": elsewhere}],
        });
        let changed = serving.with_url(&configuration);
        let config = |index: usize| &changed["webhooks"][index]["clientConfig"];
        assert_eq!(config(0)["url"], url("/mutate"));
        assert_eq!(config(0)["service"], Value::Null);
        let bundle: ByteString =
            serde_json::from_value(config(0)["caBundle"].clone()).expect("base64");
        let file = fs::read(serving.directory.join("tls.crt")).expect("written");
        assert_eq!(bundle.0, file);
        assert_eq!(config(1)["url"], url("/"));
        assert_eq!(*config(2), elsewhere);

        let crd = json!({
            "kind": "CustomResourceDefinition",
            "spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": service}}},
        });
        let changed = serving.with_url(&crd);
        let config = &changed["spec"]["conversion"]["webhook"]["clientConfig"];
        assert_eq!(config["url"], url("/mutate"));
        let hero = json!({"kind": "Hero", "spec": {"clientConfig": service}});
        assert_eq!(serving.with_url(&hero), hero);
    }

    #[cfg(unix)]
    #[test]
    fn key_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let project = tempfile::tempdir().expect("a directory");
        let serving = Serving::create(project.path()).expect("created");
        let key = fs::metadata(serving.directory.join("tls.key")).expect("written");
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
    }
}
