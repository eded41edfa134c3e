//! Run: what a Manager with webhooks starts.
//!
//! In: declarations and options. Out: a server, which every replica runs, and a registrar, which
//! the leader runs.

use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::admission::AdmissionHandler;
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
use crate::cluster::Cluster;
use crate::informer::{InformerOptions, Namespaces};
use crate::metrics::Metrics;

/// Why webhooks are not served or not registered.
#[derive(Debug, Error)]
pub(crate) enum WebhookError {
    #[error("webhooks in a pod need a Service: set ManagerOptions::webhooks.endpoint")]
    NoService,
    #[error("cannot serve on {address}: {source}")]
    Bind {
        address: SocketAddr,
        source: io::Error,
    },
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Registration(#[from] RegistrationError),
}

/// The webhooks that a Manager declares.
#[derive(Debug, Default)]
pub(crate) struct Webhooks {
    pub(crate) service: WebhookService,
    pub(crate) declarations: Declarations,
}

impl Webhooks {
    /// Adds a webhook to what is served and registered. Returns false if there is one of its name.
    pub(super) fn declare(
        &mut self,
        admission: Admission,
        handler: AdmissionHandler,
        metrics: &Metrics,
    ) -> bool {
        let mut declared = self.declarations.admission.iter();
        let is_new = declared.all(|declared| declared.name() != admission.name());
        self.service.add(admission.path(), handler, metrics);
        self.declarations.admission.push(admission);
        is_new
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

    /// Binds the server of the declared webhooks; `None` if there are none.
    ///
    /// # Errors
    /// The address cannot be used, or a pod has no Service.
    pub(crate) async fn bind(
        self,
        options: WebhookOptions,
        cluster: &mut Cluster,
    ) -> Result<Option<(WebhookServer, LeadingWebhooks)>, WebhookError> {
        if self.declarations.is_empty() {
            return Ok(None);
        }
        // A loopback address in a pod would be that of the API server, which finds nothing there
        // and rejects every request.
        if options.endpoint.is_none() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            return Err(WebhookError::NoService);
        }
        let address = options.bind_address;
        let bind = |source| WebhookError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let endpoint = options.endpoint_at(listener.local_addr().map_err(bind)?);
        let served = ServedCertificate::default();
        let config = server::tls_config(served.clone())?;
        let files = |directory: &std::path::PathBuf| {
            Certificate::Files(CertificateFiles {
                directory: directory.clone(),
                served: served.clone(),
            })
        };
        let (certificate, bundle) = match &options.certificates {
            Certificates::Automatic => {
                let secret = authority_secret(cluster, &options, &endpoint);
                let certificate = AutomaticCertificate {
                    names: names_of(&endpoint),
                    served: served.clone(),
                    changed: watch_secret(cluster, &secret.key),
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
            service: self.service,
            certificate,
            served: served.clone(),
        };
        let registrar = Registrar {
            client: cluster.client.clone(),
            declarations: self.declarations,
            options,
            endpoint,
            bundle,
        };
        Ok(Some((server, LeadingWebhooks { registrar, served })))
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
    served: ServedCertificate,
}

impl WebhookServer {
    /// Whether reviews can be answered.
    pub(crate) fn readiness(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let served = self.served.clone();
        move || match served.get() {
            Some(_) => Ok(()),
            None => Err("there is no certificate yet".to_owned()),
        }
    }

    /// Serves until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let following = async {
            match self.certificate {
                Certificate::Automatic(certificate) => certificate.run(stop.clone()).await,
                Certificate::Files(files) => files.run(stop.clone()).await,
            }
        };
        let serving = server::serve(self.listener, self.acceptor, self.service, stop.clone());
        tokio::join!(following, serving);
    }
}

/// Registers the webhooks while this process leads.
pub(crate) struct LeadingWebhooks {
    registrar: Registrar,
    served: ServedCertificate,
}

impl LeadingWebhooks {
    /// Registers the webhooks, once this replica can answer.
    pub(crate) async fn register(&self) -> Result<(), WebhookError> {
        self.served.available().await;
        Ok(self.registrar.register().await?)
    }

    /// Keeps them registered until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.registrar.run(stop).await;
    }
}

fn authority_secret(
    cluster: &Cluster,
    options: &WebhookOptions,
    endpoint: &Endpoint,
) -> AuthoritySecret {
    let namespace = match endpoint {
        Endpoint::Service { namespace, .. } => namespace.clone(),
        Endpoint::Url(_) => cluster.client.default_namespace().to_owned(),
    };
    let name = format!("{}-ca", options.name());
    AuthoritySecret {
        client: ReconcileClient::new(cluster.client.clone(), options.name()),
        key: ObjectKey::namespaced(&namespace, &name),
        clock: cluster.clock(),
        rng: cluster.rng().clone(),
    }
}

/// Is notified when the Secret changes. Only its metadata is cached: it has keys.
fn watch_secret(cluster: &mut Cluster, key: &ObjectKey) -> Arc<Notify> {
    let changed = Arc::new(Notify::new());
    let options = InformerOptions::<PartialObjectMeta<Secret>> {
        namespaces: Some(Namespaces::named(key.namespace())),
        ..InformerOptions::fields(format!("metadata.name={}", key.name()))
    };
    let informer = cluster.informer_at(options, Location::caller());
    let notify = changed.clone();
    informer.add_key_handler(move |_| notify.notify_one());
    changed
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
