//! Content: everything in a namespace, kind by kind.
//!
//! In: the name of a namespace that goes. Out: deletions, and what is left after them.
//! Holds: nothing but pods is deleted while pods are left, so that what they need outlives them; a kind that cannot be
//! deleted holds up no other.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, ObjectList};
use kube::core::PartialObjectMeta;
use kube::{Client, Error, ResourceExt};

use super::plan::Findings;
use crate::core::answer::is_not_found;
use crate::core::kinds::{Kind, Kinds};

/// A namespace, and the way to what is in it.
pub(super) struct Content<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
}

impl Content<'_> {
    /// Deletes whatever there is, and says what is left.
    pub(super) async fn empty(&self) -> Findings {
        let mut findings = Findings::default();
        let kinds = match Kinds::discover(self.client).await {
            Ok(kinds) => kinds,
            Err(error) => {
                findings.undiscovered = Some(error.to_string());
                return findings;
            }
        };
        let (pods, others): (Vec<_>, Vec<_>) = kinds
            .deletable
            .into_iter()
            .filter(|kind| kind.namespaced)
            .partition(|kind| is_pods(kind));
        for kind in &pods {
            self.empty_kind(kind, &mut findings).await;
        }
        if !findings.left.is_empty() {
            self.find_grace(&mut findings).await;
            return findings;
        }
        for kind in &others {
            self.empty_kind(kind, &mut findings).await;
        }
        findings
    }

    async fn empty_kind(&self, kind: &Arc<Kind>, findings: &mut Findings) {
        match self.delete_all(kind).await {
            Ok(left) => note(kind, &left, findings),
            // No longer served, so nothing of it can be there.
            Err(error) if is_not_found(&error) => {}
            Err(error) => findings.failures.push(error.to_string()),
        }
    }

    /// Deletes all objects of a kind, and returns those that are still there.
    async fn delete_all(
        &self,
        kind: &Kind,
    ) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
        let api = kind.api(self.client, Some(self.namespace));
        let there = list(&api).await?;
        if there
            .iter()
            .all(|object| object.metadata.deletion_timestamp.is_some())
        {
            return Ok(there);
        }
        match api
            .delete_collection(&DeleteParams::background(), &ListParams::default())
            .await
        {
            Ok(_) => {}
            Err(Error::Api(status)) if status.code == 405 => self.delete_each(&api, &there).await?,
            Err(error) => return Err(error),
        }
        list(&api).await
    }

    async fn delete_each(
        &self,
        api: &Api<DynamicObject>,
        there: &[PartialObjectMeta<DynamicObject>],
    ) -> Result<(), Error> {
        for object in there {
            match api
                .delete(&object.name_any(), &DeleteParams::background())
                .await
            {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// How long pods that have not ended may take.
    async fn find_grace(&self, findings: &mut Findings) {
        match Api::<Pod>::namespaced(self.client.clone(), self.namespace)
            .list(&ListParams::default())
            .await
        {
            Ok(pods) => findings.grace_seconds = grace(&pods),
            Err(error) => findings.failures.push(error.to_string()),
        }
    }
}

async fn list(api: &Api<DynamicObject>) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    Ok(api.list_metadata(&ListParams::default()).await?.items)
}

fn is_pods(kind: &Kind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

fn grace(pods: &ObjectList<Pod>) -> i64 {
    let ended = |pod: &Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let grace = |pod: &Pod| {
        pod.spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period_seconds)
    };
    pods.iter()
        .filter(|pod| !ended(pod))
        .filter_map(grace)
        .max()
        .unwrap_or_default()
}

fn note(kind: &Kind, left: &[PartialObjectMeta<DynamicObject>], findings: &mut Findings) {
    if left.is_empty() {
        return;
    }
    findings.left.insert(
        format!("{}.{}", kind.resource.plural, kind.resource.group),
        left.len(),
    );
    for finalizer in left.iter().flat_map(|object| object.finalizers()) {
        *findings.finalizers.entry(finalizer.clone()).or_default() += 1;
    }
}
