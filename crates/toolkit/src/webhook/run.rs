//! Run: what a Manager with webhooks starts.
//!
//! In: declarations and options. Out: a server, which every replica runs, and a registrar, which
//! the leader runs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::certificates::authority::SubjectName;
use super::certificates::files::CertificateFiles;
use super::certificates::secret::{AuthoritySecret, AutomaticCertificate};
use super::declaration::{Admission, Declarations, Target};
use super::options::{Certificates, Endpoint, WebhookOptions};
use super::registration::{Bundle, Registrar, RegistrationError};
use super::server::{self, ServedCertificate};
use super::service::WebhookService;
use crate::ObjectKey;
use crate::client::ReconcileClient;
use crate::informer::{InformerOptions, Namespaces};
use crate::manager::{Manager, ManagerError};

/// The webhooks that a Manager declares.
#[derive(Debug, Default)]
pub(crate) struct Webhooks {
    pub(crate) service: WebhookService,
    pub(crate) declarations: Declarations,
}

impl Webhooks {
    /// The first declared webhook with the name of another one.
    pub(crate) fn named_as(&self, admission: &Admission) -> Option<&Admission> {
        let mut declared = self.declarations.admission.iter();
        declared.find(|declared| declared.name() == admission.name())
    }

    /// The objects that register the webhooks, without a bundle.
    pub(crate) fn manifests(&self, options: &WebhookOptions) -> Vec<serde_json::Value> {
        let target = Target {
            options,
            endpoint: &options.endpoint_at(options.bind_address),
            bundle: None,
        };
        let objects = self.declarations.objects(&target).into_iter();
        objects.map(|registered| registered.object).collect()
    }
}

/// What follows the certificate of this replica.
enum Certificate {
    Automatic(Box<AutomaticCertificate>),
    Files(CertificateFiles),
}

/// The server of one replica, bound.
pub(crate) struct WebhookServer {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    service: WebhookService,
    certificate: Certificate,
}

impl WebhookServer {
    /// Serves until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), ManagerError> {
        let following = async {
            match self.certificate {
                Certificate::Automatic(certificate) => certificate.run(stop.clone()).await,
                Certificate::Files(files) => files.run(stop.clone()).await,
            }
        };
        let serving = server::serve(self.listener, self.acceptor, self.service, stop.clone());
        tokio::join!(following, serving);
        Ok(())
    }
}

/// Registers the webhooks while this process leads.
pub(crate) struct LeadingWebhooks {
    registrar: Registrar,
    served: ServedCertificate,
}

impl LeadingWebhooks {
    /// Registers the webhooks, once this replica can answer.
    pub(crate) async fn register(&self) -> Result<(), ManagerError> {
        self.served.available().await;
        self.registrar.register().await.map_err(failed)
    }

    /// Keeps them registered until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), ManagerError> {
        self.registrar.run(stop).await;
        Ok(())
    }
}

fn failed(error: RegistrationError) -> ManagerError {
    ManagerError::Runnable {
        name: "the registration of webhooks".to_owned(),
        source: Box::new(error),
    }
}

impl Manager {
    /// Binds the server of the declared webhooks; `None` if there are none.
    pub(crate) async fn prepare_webhooks(
        &mut self,
    ) -> Result<Option<(WebhookServer, LeadingWebhooks)>, ManagerError> {
        let Webhooks {
            service,
            declarations,
        } = std::mem::take(&mut self.webhooks);
        if declarations.is_empty() {
            return Ok(None);
        }
        let options = self.options().webhooks.clone();
        // A loopback address in a pod would be that of the API server, which finds nothing there
        // and rejects every request.
        if options.endpoint.is_none() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            let message = "webhooks in a pod need a Service: set ManagerOptions::webhooks.endpoint";
            return Err(ManagerError::Setup(vec![message.to_owned()]));
        }
        let address = options.bind_address;
        let bind = |source| ManagerError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let endpoint = options.endpoint_at(listener.local_addr().map_err(bind)?);
        let served = ServedCertificate::default();
        let is_served = served.clone();
        self.readyz_check("webhook", move || match is_served.get() {
            Some(_) => Ok(()),
            None => Err("there is no certificate yet".to_owned()),
        });
        let config = server::tls_config(served.clone());
        let config = config.map_err(|error| ManagerError::Runnable {
            name: "the webhook server".to_owned(),
            source: Box::new(error),
        })?;
        let files = |directory: &std::path::PathBuf| {
            Certificate::Files(CertificateFiles {
                directory: directory.clone(),
                served: served.clone(),
            })
        };
        let (certificate, bundle) = match &options.certificates {
            Certificates::Automatic => {
                let secret = self.authority_secret(&options, &endpoint);
                let certificate = AutomaticCertificate {
                    names: names_of(&endpoint),
                    served: served.clone(),
                    changed: self.watch_secret(&secret.key),
                    secret: secret.clone(),
                };
                (
                    Certificate::Automatic(Box::new(certificate)),
                    Bundle::Secret(secret),
                )
            }
            Certificates::Files(directory) => {
                (files(directory), Bundle::File(directory.join("ca.crt")))
            }
            Certificates::CertManager { directory, .. } => (files(directory), Bundle::Foreign),
        };
        let server = WebhookServer {
            listener,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            service,
            certificate,
        };
        let registrar = Registrar {
            client: self.client().clone(),
            declarations,
            options,
            endpoint,
            bundle,
        };
        Ok(Some((server, LeadingWebhooks { registrar, served })))
    }

    fn authority_secret(&self, options: &WebhookOptions, endpoint: &Endpoint) -> AuthoritySecret {
        let namespace = match endpoint {
            Endpoint::Service { namespace, .. } => namespace.clone(),
            Endpoint::Url(_) => self.client().default_namespace().to_owned(),
        };
        let name = format!("{}-ca", options.name());
        AuthoritySecret {
            client: ReconcileClient::new(self.client().clone(), options.name()),
            key: ObjectKey::namespaced(&namespace, &name),
            clock: self.clock(),
            rng: self.rng().clone(),
        }
    }

    /// Is notified when the Secret changes. Only its metadata is cached: it has keys.
    fn watch_secret(&mut self, key: &ObjectKey) -> Arc<Notify> {
        let changed = Arc::new(Notify::new());
        let informer = self.informer::<PartialObjectMeta<Secret>>(InformerOptions {
            namespaces: Some(Namespaces::named(key.namespace())),
            ..InformerOptions::fields(format!("metadata.name={}", key.name()))
        });
        let notify = changed.clone();
        informer.add_key_handler(move |_| notify.notify_one());
        changed
    }
}

/// The names by which the API server verifies the certificate.
fn names_of(endpoint: &Endpoint) -> Vec<SubjectName> {
    match endpoint {
        Endpoint::Service {
            namespace, name, ..
        } => ["svc", "svc.cluster.local"]
            .iter()
            .map(|suffix| SubjectName::Dns(format!("{name}.{namespace}.{suffix}")))
            .collect(),
        Endpoint::Url(url) => {
            let host = url.parse::<http::Uri>().ok();
            let host = host.as_ref().and_then(http::Uri::host).unwrap_or_default();
            vec![SubjectName::of_host(host)]
        }
    }
}
