//! The SecSynch operator: keeps copies of a Secret in other namespaces up to date.
//!
//! A change of the source is written to every copy immediately. Copies that drift are repaired.
//! Copies in namespaces that are no longer selected are deleted, and all copies are deleted with
//! the source or the SecSynch. A Secret without the ownership label is not changed, except with the
//! conflict policy `Adopt`. A SecSynch in another namespace than its source needs the source's
//! annotation [`ALLOW_TO`]; permission to create a SecSynch in the source's namespace includes the
//! Secrets there.
//!
//! Only the metadata of Secrets is cached. Values are read when needed, held for one reconcile, and
//! never logged.

mod copies; // the writes of all copies
mod copy; // the plan of one copy
mod crd; // the custom resource
mod destinations; // the selected namespaces
mod reconciler; // read, select, write, report

pub use copy::OWNER_UID;
pub use crd::{ConflictPolicy, SecSynch, SecSynchSpec, SecSynchStatus, SyncFailure};
pub use destinations::ALLOW_TO;

use std::sync::{Arc, Mutex};

use bellerophon::{Controller, Lister, ObjectKey, Predicate};
use bellerophon_operator::{INFORMER_VERBS, Operator, Placement, Setup, SetupError, allow};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{CustomResourceExt as _, ResourceExt as _, core::PartialObjectMeta};

use crate::{
    destinations::selects,
    reconciler::{BY_OWNER, FeatureSwitches, SecSynchReconciler},
};

/// The feature switch that copies Secrets without the consent of their source, as the tutorial
/// does.
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
    placement: Placement::Deployment,
    feature_switches: &[WITHOUT_CONSENT, INTO_SYSTEM],
    controllers: |setup| Ok(vec![controller(setup)?]),
};

/// The index of SecSynches by the name of their Secret.
const BY_SECRET: &str = "secret-name";
/// The index of SecSynches by UID.
const BY_UID: &str = "uid";

fn controller(setup: &Setup) -> Result<Controller, SetupError> {
    let synches = setup.informer::<SecSynch>();
    let secrets = setup.cluster_informer::<PartialObjectMeta<Secret>>();
    let namespaces = setup.cluster_informer::<Namespace>();
    synches.add_index(BY_SECRET, |synch| vec![synch.spec.secret_name.clone()])?;
    synches.add_index(BY_UID, |synch| synch.uid().into_iter().collect())?;
    secrets.add_index(BY_OWNER, |secret| {
        secret
            .labels()
            .get(OWNER_UID)
            .cloned()
            .into_iter()
            .collect()
    })?;
    let reconciler = Arc::new(SecSynchReconciler {
        client: setup.client.clone(),
        clock: setup.clock,
        events: setup.recorder(OPERATOR.name),
        synches: synches.lister(),
        secrets: secrets.lister(),
        namespaces: namespaces.lister(),
        features: FeatureSwitches {
            without_consent: setup.is_enabled(WITHOUT_CONSENT),
            into_system: setup.is_enabled(INTO_SYSTEM),
        },
        verified: Mutex::default(),
    });
    let mapper = SecretMapper {
        synches: synches.lister(),
        namespaces: namespaces.lister(),
    };
    let all_synches = synches.lister();
    // Status updates of the operator itself change neither generation nor finalizers.
    let changed = Predicate::changed(|old: &SecSynch, new: &SecSynch| {
        old.metadata.generation != new.metadata.generation || old.finalizers() != new.finalizers()
    });
    Ok(Controller::of(&synches)
        .with_predicate(changed)
        .watches(&secrets, move |secret| mapper.requests(secret))
        .watches(&namespaces, move |namespace| {
            all_synches
                .list()
                .iter()
                .filter(|synch| selects(&synch.spec, namespace))
                .map(|synch| ObjectKey::of(&**synch))
                .collect()
        })
        .with_options(setup.options(OPERATOR.name))
        .reconcile_with(move |request| reconciler.clone().reconcile(request)))
}

/// Maps the event of a Secret to the SecSynches to reconcile.
struct SecretMapper {
    synches: Lister<SecSynch>,
    namespaces: Lister<Namespace>,
}

impl SecretMapper {
    fn requests(&self, secret: &PartialObjectMeta<Secret>) -> Vec<ObjectKey> {
        let by_index =
            |index: &str, value: &str| self.synches.by_index(index, value).unwrap_or_default();
        let mut synches = match secret.labels().get(OWNER_UID) {
            Some(uid) => by_index(BY_UID, uid),
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
        for synch in by_index(BY_SECRET, &secret.name_any()) {
            if synch.spec.source_namespace == namespace_name || is_destination(&synch) {
                synches.push(synch);
            }
        }
        synches
            .iter()
            .map(|synch| ObjectKey::of(&**synch))
            .collect()
    }
}
