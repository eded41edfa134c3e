//! The SecSynch operator: keeps copies of a Secret in other namespaces up to date.
//!
//! A change of the source is written to every copy immediately. Copies that drift are repaired.
//! Copies in namespaces that are no longer selected are deleted, and all copies are deleted with
//! the source or the SecSynch. A Secret without the ownership label is not changed, except with the
//! conflict policy `Adopt` and its own annotation [`ACCEPT_FROM`]; it is released, not deleted,
//! when the copy is no longer desired.
//!
//! Source and destination consent to a copy: the source by its annotation [`ALLOW_TO`], the
//! destination by the annotation [`ACCEPT_FROM`] of its Namespace. Permission to create a SecSynch
//! in a namespace includes the Secrets there, so that the namespace of the SecSynch itself needs no
//! annotation.
//!
//! Only the metadata of Secrets is cached. Values are read when needed, held for one reconcile, and
//! never logged.

mod copies; // the writes of all copies
mod copy; // the plan of one copy
mod crd; // the custom resource
mod destinations; // the selected namespaces
mod names; // names in a spec
mod reconciler; // read, select, write, report
mod webhook; // checks consent at admission

pub use copy::OWNER_UID;
pub use crd::{ConflictPolicy, SecSynch, SecSynchSpec, SecSynchStatus, SyncFailure};
pub use destinations::{ACCEPT_FROM, ALLOW_TO};

use std::sync::Mutex;

use bellerophon::index::Index;
use bellerophon::informer::{InformerOptions, Namespaces, SharedInformer};
use bellerophon::prelude::*;
use bellerophon_operator::{INFORMER_VERBS, Operator, Placement, RoleAggregation, Switches, allow};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{CustomResourceExt as _, ResourceExt as _, core::PartialObjectMeta};

use crate::{
    destinations::selects,
    reconciler::{FeatureSwitches, SecSynchReconciler},
};

/// The feature switch that copies Secrets without the consent of their source and destinations, as
/// the tutorial does.
const WITHOUT_CONSENT: &str = "secsynch-without-consent";
/// The feature switch that copies Secrets into system namespaces.
const INTO_SYSTEM: &str = "secsynch-into-kube-system";

/// The operator's description: CRD, permissions and controllers.
pub const OPERATOR: Operator = Operator {
    name: "secsynch",
    summary: "a SecSynch keeps copies of a Secret in other namespaces up to date",
    crds: || vec![SecSynch::crd()],
    permissions: || {
        let group = "tutorial.study.dev";
        vec![
            allow(&["list", "watch", "patch"], group, "secsynches"),
            allow(&["patch"], group, "secsynches/status"),
            allow(
                &["get", "list", "watch", "create", "update", "delete"],
                "",
                "secrets",
            ),
            allow(INFORMER_VERBS, "", "namespaces"),
        ]
    },
    admission_policies: Vec::new,
    // A SecSynch reads and writes Secrets.
    role_aggregation: RoleAggregation::View,
    placement: Placement::Deployment,
    feature_switches: &[WITHOUT_CONSENT, INTO_SYSTEM],
    webhooks: Some(webhook::declare),
    setup,
};

/// The metadata of all Secrets: sources and copies are in any namespace, also if SecSynches are
/// watched in one only.
fn secrets(mgr: &mut Manager) -> SharedInformer<PartialObjectMeta<Secret>> {
    mgr.informer(InformerOptions {
        namespaces: Some(Namespaces::All),
        ..InformerOptions::default()
    })
}

fn features(switches: &Switches) -> FeatureSwitches {
    FeatureSwitches {
        without_consent: switches.is_on(WITHOUT_CONSENT),
        into_system: switches.is_on(INTO_SYSTEM),
    }
}

fn setup(mgr: &mut Manager, switches: &Switches) {
    let secrets = secrets(mgr);
    let namespaces = mgr.lister::<Namespace>();
    let synches = mgr.lister::<SecSynch>();
    let reconciler = SecSynchReconciler {
        synches: synches.clone(),
        secrets: secrets.lister(),
        copies: secrets.index("owner-uid", |secret| {
            secret
                .labels()
                .get(OWNER_UID)
                .cloned()
                .into_iter()
                .collect()
        }),
        namespaces: namespaces.clone(),
        features: features(switches),
        verified: Mutex::default(),
    };
    let mapper = SecretMapper {
        by_secret: mgr.index("secret-name", |synch: &SecSynch| {
            vec![synch.spec.secret_name.clone()]
        }),
        by_uid: mgr.index("uid", |synch: &SecSynch| synch.uid().into_iter().collect()),
        namespaces,
    };
    // Status updates of the operator itself change neither generation nor finalizers.
    let changed = Predicate::on_update(|old: &SecSynch, new: &SecSynch| {
        old.metadata.generation != new.metadata.generation || old.finalizers() != new.finalizers()
    });
    mgr.controller::<SecSynch>()
        .predicate(changed)
        .watches::<PartialObjectMeta<Secret>>(move |secret| mapper.requests(secret))
        .informer(&secrets)
        .watches::<Namespace>(move |namespace| {
            synches
                .list()
                .iter()
                .filter(|synch| selects(&synch.spec, namespace))
                .map(|synch| ObjectKey::from_object(&**synch))
                .collect()
        })
        .name(OPERATOR.name)
        .reconcile(reconciler);
}

/// Maps the event of a Secret to the SecSynches to reconcile.
struct SecretMapper {
    by_secret: Index<SecSynch>,
    by_uid: Index<SecSynch>,
    namespaces: Lister<Namespace>,
}

impl SecretMapper {
    fn requests(&self, secret: &PartialObjectMeta<Secret>) -> Vec<ObjectKey> {
        // By UID, which also finds copies of a former `secretName`.
        let mut synches = match secret.labels().get(OWNER_UID) {
            Some(uid) => self.by_uid.get(uid),
            None => Vec::new(),
        };
        // A source, or a Secret in the place of a copy.
        let namespace_name = secret.namespace().unwrap_or_default();
        let namespace = self.namespaces.get(&ObjectKey::cluster(&namespace_name));
        let is_destination = |synch: &SecSynch| {
            namespace
                .as_ref()
                .is_some_and(|namespace| selects(&synch.spec, namespace))
        };
        for synch in self.by_secret.get(&secret.name_any()) {
            if synch.spec.source_namespace == namespace_name || is_destination(&synch) {
                synches.push(synch);
            }
        }
        synches
            .iter()
            .map(|synch| ObjectKey::from_object(&**synch))
            .collect()
    }
}
