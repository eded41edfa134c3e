//! Applies one step: the only code that changes a store.
//!
//! In: a step, and the objects that the plan was made from. Out: one mutation, and events.
//! Guarantees: every write is refused if its object has changed since it was read; a membership
//! change is refused if the membership has changed.

mod requests; // steps that are requests to members

use bellerophon::{
    client::{ReconcileClient, WriteError},
    events::Event,
    owner::OwnerError,
};
use bellerophon_store_client::api::InvalidClusterId;
use kube::{ResourceExt as _, api::Patch};
use serde_json::json;
use thiserror::Error;

use crate::{
    crd::{Bellerophon, BellerophonStatus, MemberRole, MemberStatus},
    events,
    member_api::{MemberApi, MemberError},
    names, objects,
    observe::Objects,
    observed::{Observed, SharedObject},
    step::Step,
    tls::{self, TlsError},
};

/// A step could not be applied.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The API server refused.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A member refused or did not answer.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// A certificate could not be made.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An object cannot be owned.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The cluster id of the status is malformed.
    #[error(transparent)]
    ClusterId(#[from] InvalidClusterId),
    /// Something that the step needs is gone.
    #[error("{0}; it is planned again")]
    Gone(String),
}

/// Applies steps of one store.
pub struct Applier<'a> {
    /// Writes to the API server.
    pub client: &'a ReconcileClient,
    /// Requests to members.
    pub members: &'a dyn MemberApi,
    /// What the plan was made from.
    pub observed: &'a Observed,
    /// The objects, as they were read.
    pub objects: &'a Objects,
}

impl Applier<'_> {
    /// Applies a step. Returns what users should know about it.
    ///
    /// # Errors
    /// The mutation was refused, or its outcome is unknown: observe and plan again.
    pub async fn apply(&self, step: &Step) -> Result<Vec<Event>, ApplyError> {
        match step {
            Step::Wait { .. } => {}
            Step::WriteStatus(status) => return self.write_status(status).await,
            Step::AddFinalizer => {
                self.change_finalizers(|all| all.push(names::FINALIZER.to_owned()))
                    .await?
            }
            Step::RemoveFinalizer => {
                self.change_finalizers(|all| all.retain(|name| name != names::FINALIZER))
                    .await?
            }
            Step::ApplyShared(object) => self.apply_shared(*object).await?,
            Step::ApplyBudget { min_available } => {
                let desired = objects::budget(self.hero(), *min_available)?;
                let current = self.objects.budget.as_deref();
                self.client.create_or_apply(current, &desired).await?;
            }
            Step::IssueCertificate { member } => self.issue_certificate(member).await?,
            Step::DeleteCertificate { member } => {
                if let Some(secret) = self.objects.secrets.get(&names::member_secret(member)) {
                    self.client.delete(&**secret).await?;
                }
            }
            Step::CreateClaim { member } => {
                let claim =
                    objects::member_claim(self.hero(), self.cluster_id(), self.entry(member)?);
                self.client.create(&claim).await?;
            }
            Step::RetireClaim { member } => self.retire_claim(member).await?,
            Step::DeleteClaim { member } => {
                if let Some(claim) = self.objects.claims.get(member) {
                    self.client.delete(&**claim).await?;
                }
            }
            Step::CreatePod { member } => self.create_pod(member).await?,
            Step::CreateRestorePod { member } => self.create_restore_pod(member).await?,
            Step::DeletePod { pod, .. } => {
                if let Some(pod) = self.objects.pods.get(pod) {
                    self.client.delete(&**pod).await?;
                }
            }
            Step::LabelPod { member, role } => self.label_pod(member, *role).await?,
            request => return self.send(request).await,
        }
        Ok(events::of_step(step, self.observed))
    }

    fn hero(&self) -> &Bellerophon {
        &self.objects.hero
    }

    fn status(&self) -> BellerophonStatus {
        self.hero().status.clone().unwrap_or_default()
    }

    fn cluster_id(&self) -> &str {
        let status = self.hero().status.as_ref();
        status
            .and_then(|status| status.cluster_id.as_deref())
            .unwrap_or_default()
    }

    fn entry(&self, member: &str) -> Result<&MemberStatus, ApplyError> {
        let status = self.hero().status.as_ref();
        let entry = status.and_then(|status| status.member(member));
        entry.ok_or_else(|| ApplyError::Gone(format!("member {member} is not in the status")))
    }

    /// Writes the status, if the object has not changed since it was read.
    async fn write_status(&self, status: &BellerophonStatus) -> Result<Vec<Event>, ApplyError> {
        let mut desired = self.hero().clone();
        desired.status = Some(status.clone());
        self.client.patch_status_from(self.hero(), &desired).await?;
        Ok(events::of_status(&self.status(), status))
    }

    async fn change_finalizers(
        &self,
        change: impl FnOnce(&mut Vec<String>),
    ) -> Result<(), ApplyError> {
        let mut desired = self.hero().clone();
        change(desired.finalizers_mut());
        self.client.patch_from(self.hero(), &desired).await?;
        Ok(())
    }

    async fn apply_shared(&self, object: SharedObject) -> Result<(), ApplyError> {
        let name = self.hero().name_any();
        match object {
            SharedObject::PeerService => {
                let desired = objects::peer_service(self.hero())?;
                let current = self.objects.services.get(&desired.name_any());
                self.client
                    .create_or_apply(current.map(|current| &**current), &desired)
                    .await?;
            }
            SharedObject::ClientService => {
                let desired = objects::client_service(self.hero())?;
                let current = self.objects.services.get(&desired.name_any());
                self.client
                    .create_or_apply(current.map(|current| &**current), &desired)
                    .await?;
            }
            SharedObject::Authority => {
                let authority = tls::new_authority(self.cluster_id(), self.observed.now)?;
                let data = [
                    (objects::CERTIFICATE, authority.certificate_pem),
                    (objects::PRIVATE_KEY, authority.key_pem),
                ];
                self.apply_secret(names::ca_secret(&name), data).await?;
            }
            SharedObject::AdminToken => {
                self.apply_secret(
                    names::admin_secret(&name),
                    [(objects::TOKEN, tls::token()?)],
                )
                .await?;
            }
            SharedObject::ClientToken => {
                let ca_pem = self.authority(objects::CERTIFICATE)?;
                let data = [
                    (objects::TOKEN, tls::token()?),
                    (objects::CA_CERTIFICATE, ca_pem),
                ];
                self.apply_secret(names::client_secret(&name), data).await?;
            }
            SharedObject::Schedule => self.apply_schedule().await?,
        }
        Ok(())
    }

    async fn apply_secret(
        &self,
        name: String,
        data: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<(), ApplyError> {
        let current = self.objects.secrets.get(&name).map(|current| &**current);
        let desired = objects::secret(self.hero(), name.clone(), data)?;
        self.client.create_or_apply(current, &desired).await?;
        Ok(())
    }

    async fn apply_schedule(&self) -> Result<(), ApplyError> {
        let current = self.objects.schedule.as_deref();
        match (objects::schedule(self.hero())?, current) {
            (Some(desired), current) => {
                self.client.create_or_apply(current, &desired).await?;
            }
            (None, Some(current)) => self.client.delete(current).await?,
            (None, None) => {}
        }
        Ok(())
    }

    /// A text of the authority's Secret.
    fn authority(&self, key: &str) -> Result<String, ApplyError> {
        let secret = self
            .objects
            .secrets
            .get(&names::ca_secret(&self.hero().name_any()));
        let text = secret.and_then(|secret| objects::text(secret, key));
        text.ok_or_else(|| ApplyError::Gone("the certificate authority is gone".to_owned()))
    }

    async fn issue_certificate(&self, member: &str) -> Result<(), ApplyError> {
        let hero = self.hero();
        let service = format!(
            "{}.{}.svc",
            hero.name_any(),
            hero.namespace().unwrap_or_default()
        );
        let host = names::host(hero, member);
        let dns_names = vec![
            names::identity(self.cluster_id(), self.entry(member)?.id),
            host.clone(),
            format!("{host}.cluster.local"),
            service.clone(),
            format!("{service}.cluster.local"),
            "localhost".to_owned(),
        ];
        let key = self.authority(objects::PRIVATE_KEY)?;
        let certificate = tls::issue(self.cluster_id(), &key, &dns_names, self.observed.now)?;
        let ca_pem = self.authority(objects::CERTIFICATE)?;
        let desired = objects::certificate_secret(hero, member, certificate, ca_pem)?;
        let current = self.objects.secrets.get(&desired.name_any());
        self.client
            .create_or_apply(current.map(|current| &**current), &desired)
            .await?;
        Ok(())
    }

    async fn retire_claim(&self, member: &str) -> Result<(), ApplyError> {
        if let Some(claim) = self.objects.claims.get(member) {
            let labels = json!({names::RETIRED_LABEL: "true"});
            let patch = json!({"metadata": {
                "uid": claim.uid(),
                "resourceVersion": claim.resource_version(),
                "labels": labels,
            }});
            self.client.patch(&**claim, &Patch::Merge(patch)).await?;
        }
        Ok(())
    }

    async fn create_pod(&self, member: &str) -> Result<(), ApplyError> {
        let entry = self.entry(member)?;
        let status = self.status();
        let role = if status.voters.contains(&entry.id) {
            entry.role
        } else {
            MemberRole::Reader
        };
        let pod = objects::member_pod(self.hero(), &status, entry, role)?;
        self.client.create(&pod).await?;
        Ok(())
    }

    async fn create_restore_pod(&self, member: &str) -> Result<(), ApplyError> {
        let status = self.status();
        let restore = status.restore.as_ref();
        let restore = restore.ok_or_else(|| ApplyError::Gone("there is no restore".to_owned()))?;
        let pod = objects::restore_pod(self.hero(), &status, self.entry(member)?, restore)?;
        self.client.create(&pod).await?;
        Ok(())
    }

    async fn label_pod(&self, member: &str, role: MemberRole) -> Result<(), ApplyError> {
        if let Some(pod) = self.objects.pods.get(member) {
            let labels = json!({names::ROLE_LABEL: names::role_label(role)});
            let patch = json!({"metadata": {"uid": pod.uid(), "labels": labels}});
            self.client.patch(&**pod, &Patch::Merge(patch)).await?;
        }
        Ok(())
    }
}
