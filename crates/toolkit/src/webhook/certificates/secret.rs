//! The Secret of the authority, and the certificate that a replica signs with it.
//!
//! In: the Secret. Out: the certificate that is served.
//! Guarantees: of several replicas that create the Secret one succeeds, and all use what it wrote;
//! a change of the Secret is a compare-and-swap; a Secret that is deleted is created again
//! with the same authority.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::authority::{Authorities, CertificateError, Leaf, SubjectName};
use crate::ObjectKey;
use crate::client::{ReconcileClient, WriteError};
use crate::clock::{Clock, Rng};
use crate::webhook::server::ServedCertificate;

/// The field of the Secret that has the authorities.
const AUTHORITIES: &str = "authorities.json";

/// The field of the Secret that has the bundle, for people.
const BUNDLE: &str = "ca.crt";

/// The longest time between two attempts to read the Secret.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Why the authority is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthorityError {
    #[error(transparent)]
    Request(#[from] WriteError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(
        "Secret {key} has no usable {AUTHORITIES} (line {line}, column {column}); delete the Secret"
    )]
    Damaged {
        key: ObjectKey,
        line: usize,
        column: usize,
    },
}

/// The Secret with the authorities.
#[derive(Clone)]
pub(crate) struct AuthoritySecret {
    pub(crate) client: ReconcileClient,
    pub(crate) key: ObjectKey,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
}

/// The authorities as they were read.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) authorities: Authorities,
    metadata: ObjectMeta,
    /// When the request was sent.
    read_at: Timestamp,
}

impl AuthoritySecret {
    /// Reads the authorities. If there is no Secret, creates it with `last`, or with a new
    /// authority.
    pub(crate) async fn read_or_create(
        &self,
        last: Option<&Authorities>,
    ) -> Result<Stored, AuthorityError> {
        let read_at = self.clock.now();
        if let Some(stored) = self.read().await? {
            return Ok(stored);
        }
        let authorities = match last {
            Some(last) => last.clone(),
            None => Authorities::new(self.serial(), read_at)?,
        };
        let secret = self.secret(&authorities, ObjectMeta::default());
        match self.client.create(&secret).await {
            Ok(written) => Ok(Stored {
                authorities,
                metadata: written.metadata().clone(),
                read_at,
            }),
            Err(error) if error.is_already_exists() => {
                // Another replica was first. A Secret that vanished again in between is read at
                // the next attempt.
                self.read().await?.ok_or_else(|| error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the authorities if no other replica did since they were read; false if one did.
    pub(crate) async fn replace(
        &self,
        stored: &Stored,
        authorities: &Authorities,
    ) -> Result<bool, AuthorityError> {
        let secret = self.secret(authorities, stored.metadata.clone());
        match self.client.update(&secret).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Distinguishes authorities of the same second.
    pub(crate) fn serial(&self) -> u64 {
        self.rng.below(u64::MAX)
    }

    async fn read(&self) -> Result<Option<Stored>, AuthorityError> {
        let read_at = self.clock.now();
        let Some(secret) = self.client.get::<Secret>(&self.key).await? else {
            return Ok(None);
        };
        let data = secret.data.as_ref().and_then(|data| data.get(AUTHORITIES));
        let data = data.map(|data| data.0.as_slice()).unwrap_or_default();
        // Without the message, which may quote the Secret.
        let damaged = |error: serde_json::Error| AuthorityError::Damaged {
            key: self.key.clone(),
            line: error.line(),
            column: error.column(),
        };
        Ok(Some(Stored {
            authorities: serde_json::from_slice(data).map_err(damaged)?,
            metadata: secret.metadata.clone(),
            read_at,
        }))
    }

    fn secret(&self, authorities: &Authorities, metadata: ObjectMeta) -> Secret {
        let json = serde_json::to_vec(authorities).expect("keys of maps are strings");
        let data = BTreeMap::from([
            (AUTHORITIES.to_owned(), ByteString(json)),
            (
                BUNDLE.to_owned(),
                ByteString(authorities.bundle().into_bytes()),
            ),
        ]);
        Secret {
            metadata: ObjectMeta {
                name: Some(self.key.name().to_owned()),
                namespace: self.key.namespace().map(str::to_owned),
                ..metadata
            },
            data: Some(data),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        }
    }
}

/// The certificate of one replica, signed by the authority in the Secret.
pub(crate) struct AutomaticCertificate {
    pub(crate) secret: AuthoritySecret,
    pub(crate) names: Vec<SubjectName>,
    pub(crate) served: ServedCertificate,
    /// Notified when the Secret changes.
    pub(crate) changed: Arc<Notify>,
}

impl AutomaticCertificate {
    /// Keeps the served certificate valid until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut last: Option<Authorities> = None;
        let mut leaf: Option<Leaf> = None;
        let mut delay = Duration::from_secs(1);
        loop {
            match self.renewed(last.as_ref(), leaf.as_ref()).await {
                Ok((authorities, renewed)) => {
                    self.served.set(Some(renewed.pair.clone()));
                    let wait = self.secret.clock.now().duration_until(renewed.renew_at);
                    let wait = Duration::try_from(wait).unwrap_or_default();
                    last = Some(authorities);
                    leaf = Some(renewed);
                    delay = Duration::from_secs(1);
                    // Whichever comes first; both lead to the same.
                    _ = timeout(wait, self.changed.notified()).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the certificate of the webhooks");
                    let ended = leaf.as_ref().map(|leaf| leaf.not_after);
                    if ended.is_some_and(|ended| self.secret.clock.now() >= ended) {
                        self.served.set(None);
                    }
                    sleep(delay).await;
                    delay = (delay * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// The present authorities and a certificate signed by them: the same one while it is signed
    /// by the present signer and not due.
    async fn renewed(
        &self,
        last: Option<&Authorities>,
        leaf: Option<&Leaf>,
    ) -> Result<(Authorities, Leaf), AuthorityError> {
        let stored = self.secret.read_or_create(last).await?;
        let now = self.secret.clock.now();
        let signer = &stored.authorities.signer;
        let is_current = |leaf: &&Leaf| leaf.authority == signer.name() && now < leaf.renew_at;
        let leaf = match leaf.filter(is_current) {
            Some(leaf) => leaf.clone(),
            None => signer.sign(&self.names, stored.read_at, now)?,
        };
        Ok((stored.authorities, leaf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_secret_is_reported_without_its_content() {
        let error = serde_json::from_str::<Authorities>("{\"signer\": \"PRIVATE KEY\"}");
        let error = error.expect_err("it is damaged");
        let reported = AuthorityError::Damaged {
            key: ObjectKey::namespaced("heroes", "operator-ca"),
            line: error.line(),
            column: error.column(),
        };
        let expected = "Secret heroes/operator-ca has no usable authorities.json (line 1, column \
                        24); delete the Secret";
        assert_eq!(reported.to_string(), expected);
    }
}
