//! Registration: the configurations of the API server, and the rotation of the authority.
//!
//! In: the declarations. Out: webhook configurations with the present bundle.
//! Guarantees: an authority signs only after every configuration was read back with it; a bundle
//! that another client removes is set again within [`PERIOD`].

use std::path::PathBuf;
use std::time::Duration;

use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::certificates::secret::{AuthorityError, AuthoritySecret, Stored};
use super::declaration::{Declarations, Registered, Target, bundles};
use super::options::{Endpoint, Registration, WebhookOptions};
use crate::error::one_line;

/// How often configurations are compared with the bundle.
const PERIOD: Duration = Duration::from_secs(30);

/// The longest time between two attempts to register.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The field manager of configurations.
const FIELD_MANAGER: &str = "bellerophon-webhooks";

/// Steps of the rotation that one comparison may take, so that a defect does not spin.
const STEPS_MAX: usize = 8;

/// Where the bundle of the configurations comes from.
pub(crate) enum Bundle {
    /// The authorities in a Secret, which are rotated.
    Secret(AuthoritySecret),
    /// A file, if there is one.
    File(PathBuf),
    /// Another component sets it.
    Foreign,
}

/// Why the webhooks are not registered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistrationError {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("cannot {verb} {path}: {}", one_line(source))]
    Request {
        verb: &'static str,
        path: String,
        source: Box<kube::Error>,
    },
    #[error("{0} does not exist; apply the manifests first")]
    Missing(String),
}

impl RegistrationError {
    /// Whether only people can help.
    fn is_permanent(&self) -> bool {
        let status = match self {
            Self::Missing(_) => return true,
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Some(&**status),
                _ => None,
            },
            Self::Authority(AuthorityError::Request(error)) => error.status(),
            Self::Authority(AuthorityError::Damaged { .. }) => return true,
            Self::Authority(_) => None,
        };
        status.is_some_and(|status| matches!(status.code, 400 | 401 | 403 | 404 | 422))
    }
}

/// Registers the webhooks of a Manager, while it leads.
pub(crate) struct Registrar {
    pub(crate) client: Client,
    pub(crate) declarations: Declarations,
    pub(crate) options: WebhookOptions,
    pub(crate) endpoint: Endpoint,
    pub(crate) bundle: Bundle,
}

impl Registrar {
    /// Applies all configurations. It is retried while the server is not available.
    pub(crate) async fn register(&self) -> Result<(), RegistrationError> {
        let mut delay = Duration::from_secs(1);
        loop {
            match self.apply_all().await {
                Err(error) if !error.is_permanent() => {
                    tracing::warn!(%error, "cannot register the webhooks, retrying");
                    sleep(delay).await;
                    delay = (delay * 2).min(RETRY_MAX);
                }
                result => return result,
            }
        }
    }

    /// Keeps the bundle of all configurations and rotates the authority until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let keeping = async {
            loop {
                sleep(PERIOD).await;
                if let Err(error) = self.keep().await {
                    tracing::warn!(%error, "cannot update the registration of the webhooks");
                }
            }
        };
        stop.run_until_cancelled(keeping).await;
    }

    async fn apply_all(&self) -> Result<(), RegistrationError> {
        let bundle = match &self.bundle {
            Bundle::Secret(secret) => Some(secret.read_or_create(None).await?.authorities.bundle()),
            _ => self.foreign_bundle(),
        };
        for registered in self.objects(bundle.as_deref()) {
            self.apply(&registered).await?;
        }
        self.remove_undeclared().await
    }

    /// Sets the bundle where it is another one, and does the steps of the rotation that are due.
    async fn keep(&self) -> Result<(), RegistrationError> {
        let Bundle::Secret(secret) = &self.bundle else {
            let bundle = self.foreign_bundle();
            self.update_bundles(bundle.as_deref()).await?;
            return Ok(());
        };
        let mut last: Option<Stored> = None;
        for _ in 0..STEPS_MAX {
            let known = last.as_ref().map(|stored| &stored.authorities);
            let stored = secret.read_or_create(known).await?;
            let authorities = &stored.authorities;
            let shown = self.update_bundles(Some(&authorities.bundle())).await?;
            let is_shown = shown.iter().all(|shown| authorities.is_shown_by(shown));
            let next = authorities.next(is_shown, secret.serial(), secret.clock.now());
            let Some(next) = next.map_err(AuthorityError::from)? else {
                return Ok(());
            };
            secret.replace(&stored, &next).await?;
            last = Some(stored);
        }
        Ok(())
    }

    /// Applies the configurations that have another bundle, or do not exist. Returns the bundles
    /// that were read before: what is applied counts only when it is read back.
    async fn update_bundles(&self, bundle: Option<&str>) -> Result<Vec<String>, RegistrationError> {
        let mut all = Vec::new();
        for registered in self.objects(bundle) {
            let current = self.get(&registered.path).await?;
            let mut shown = current.as_ref().map(bundles).unwrap_or_default();
            // A webhook that is missing shows nothing.
            let expected = bundles(&registered.object).len().max(shown.len());
            shown.resize(expected, String::new());
            let is_outdated = |shown: &String| bundle.is_some_and(|bundle| shown != bundle);
            if current.is_none() || shown.iter().any(is_outdated) {
                self.apply(&registered).await?;
            }
            all.append(&mut shown);
        }
        Ok(all)
    }

    fn objects(&self, bundle: Option<&str>) -> Vec<Registered> {
        let mut objects = self.declarations.objects(&Target {
            options: &self.options,
            endpoint: &self.endpoint,
            bundle,
        });
        match (self.options.registration, bundle) {
            (Registration::Apply, _) => {}
            (Registration::Manifests, Some(_)) => {
                objects = objects.into_iter().map(only_bundles).collect();
            }
            // Nothing of configurations is set here.
            (Registration::Manifests, None) => {
                objects.retain(|registered| registered.object["webhooks"].is_null());
            }
        }
        objects
    }

    fn foreign_bundle(&self) -> Option<String> {
        match &self.bundle {
            Bundle::File(path) => std::fs::read_to_string(path).ok(),
            _ => None,
        }
    }

    async fn apply(&self, registered: &Registered) -> Result<(), RegistrationError> {
        // Server-side apply would create the rest of it empty.
        let is_partial = self.options.registration == Registration::Manifests
            || registered.object["kind"] == "CustomResourceDefinition";
        if is_partial && self.get(&registered.path).await?.is_none() {
            let kind = registered.object["kind"].as_str().unwrap_or_default();
            let name = registered.object["metadata"]["name"].as_str();
            let name = name.unwrap_or_default();
            return Err(RegistrationError::Missing(format!("{kind} {name}")));
        }
        let query = format!("?fieldManager={FIELD_MANAGER}&force=true");
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!("{}{query}", registered.path))
            .header(header::CONTENT_TYPE, "application/apply-patch+yaml")
            .body(registered.object.to_string().into_bytes());
        self.send("apply", &registered.path, request).await?;
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<Option<Value>, RegistrationError> {
        match self
            .send("get", path, Request::get(path).body(Vec::new()))
            .await
        {
            Ok(object) => Ok(Some(object)),
            Err(RegistrationError::Request { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the configuration of a verb that the program does not declare any more: with the
    /// failure policy `Fail`, it would reject requests for ever.
    async fn remove_undeclared(&self) -> Result<(), RegistrationError> {
        if self.options.registration == Registration::Manifests {
            return Ok(());
        }
        let declared = self.objects(None);
        for plural in [
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
        ] {
            let name = self.options.name();
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}");
            if declared.iter().any(|registered| registered.path == path) {
                continue;
            }
            let current = self.get(&path).await?;
            let managers = current
                .as_ref()
                .map(|object| &object["metadata"]["managedFields"]);
            let mut managers = managers.and_then(Value::as_array).into_iter().flatten();
            if managers.any(|entry| entry["manager"] == FIELD_MANAGER) {
                let request = Request::delete(&*path).body(Vec::new());
                self.send("delete", &path, request).await?;
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        verb: &'static str,
        path: &str,
        request: Result<Request<Vec<u8>>, http::Error>,
    ) -> Result<Value, RegistrationError> {
        let failed = |source| RegistrationError::Request {
            verb,
            path: path.to_owned(),
            source: Box::new(source),
        };
        let request = request.map_err(|error| failed(kube::Error::HttpError(error)))?;
        self.client.request::<Value>(request).await.map_err(failed)
    }
}

/// A configuration that a user applied, as far as its bundles are concerned. The conversion
/// of a CustomResourceDefinition is applied as a whole: its manifest is that of its author.
fn only_bundles(registered: Registered) -> Registered {
    let Registered { path, object } = registered;
    let Some(webhooks) = object["webhooks"].as_array() else {
        return Registered { path, object };
    };
    let bundle = |webhook: &Value| json!({"caBundle": webhook["clientConfig"]["caBundle"]});
    let webhooks = webhooks.iter();
    let webhooks: Value = webhooks
        .map(|webhook| json!({"name": webhook["name"], "clientConfig": bundle(webhook)}))
        .collect();
    let partial = json!({
        "apiVersion": object["apiVersion"], "kind": object["kind"],
        "metadata": {"name": object["metadata"]["name"]},
        "webhooks": webhooks,
    });
    Registered {
        path,
        object: partial,
    }
}
