//! The SecSynch operator: keeps a secret in step across namespaces.
//!
//! A change of the source reaches every copy at once; copies that drift are repaired; copies that are no longer wanted go,
//! and so do all of them with the source or the SecSynch. A secret without our mark is never changed unless the SecSynch
//! says `Adopt`, and nothing is copied that its source does not allow: a SecSynch in another namespace than the source
//! needs the source's annotation [`ALLOW_TO`]. Whoever may create one in the source's own namespace is trusted with the
//! secrets there.
//!
//! Only the metadata of secrets is cached. Values are read when needed, held for one pass, and told to nobody.

mod choice; // which namespaces
mod copy; // one copy
mod crd; // the kind
mod sync; // bringing copies in step

pub use choice::ALLOW_TO;
pub use copy::OWNER_UID;
pub use crd::{ConflictPolicy, SecSynch, SecSynchSpec, SecSynchStatus, SyncFailure};

use std::sync::{Arc, Mutex};

use bellerophon::{Controller, Lister, ObjectKey, Predicate};
use bellerophon_operator::{Operator, Place, Rights, Setup, SetupError, allow};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{CustomResourceExt as _, ResourceExt as _, core::PartialObjectMeta};

use crate::{
    choice::could_mean,
    sync::{Allowed, BY_OWNER, Synchroniser},
};

/// Lets secrets be copied without the consent of their source, as the tutorial does.
const WITHOUT_CONSENT: &str = "secsynch-without-consent";
/// Lets secrets be copied into the namespaces of the cluster itself.
const INTO_SYSTEM: &str = "secsynch-into-kube-system";

/// The operator, for whoever runs it.
pub const OPERATOR: Operator = Operator {
    name: "secsynch",
    summary: "a SecSynch keeps copies of a secret in other namespaces in step with it",
    definitions: || vec![SecSynch::crd()],
    rights: || {
        let group = "tutorial.study.dev";
        vec![
            allow(&["list", "watch", "patch"], group, "secsynches"),
            allow(&["patch"], group, "secsynches/status"),
            allow(
                &["get", "list", "watch", "create", "update", "delete"],
                "",
                "secrets",
            ),
            allow(Rights::CACHE, "", "namespaces"),
        ]
    },
    guards: Vec::new,
    place: Place::Anywhere,
    switches: &[WITHOUT_CONSENT, INTO_SYSTEM],
    controllers: |setup| Ok(vec![controller(setup)?]),
};

/// The index of SecSynches by the name of their secret.
const BY_SECRET: &str = "secret-name";
/// The index of SecSynches by uid.
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
    let synchroniser = Arc::new(Synchroniser {
        client: setup.client.clone(),
        clock: setup.clock,
        events: setup.recorder(OPERATOR.name),
        synches: synches.lister(),
        secrets: secrets.lister(),
        namespaces: namespaces.lister(),
        allowed: Allowed {
            without_consent: setup.is_on(WITHOUT_CONSENT),
            into_system: setup.is_on(INTO_SYSTEM),
        },
        verified: Mutex::default(),
    });
    let of_secret = Concerned {
        synches: synches.lister(),
        namespaces: namespaces.lister(),
    };
    let all = synches.lister();
    let changed = Predicate::changed(|old: &SecSynch, new: &SecSynch| {
        old.metadata.generation != new.metadata.generation || old.finalizers() != new.finalizers()
    });
    Ok(Controller::of(&synches)
        .with_predicate(changed)
        .watches(&secrets, move |secret| of_secret.by_secret(secret))
        .watches(&namespaces, move |namespace| {
            all.list()
                .iter()
                .filter(|synch| could_mean(&synch.spec, namespace))
                .map(|synch| ObjectKey::of(&**synch))
                .collect()
        })
        .with_options(setup.options(OPERATOR.name))
        .reconcile_with(move |request| synchroniser.clone().reconcile(request)))
}

/// Finds the SecSynches that a secret matters to.
struct Concerned {
    synches: Lister<SecSynch>,
    namespaces: Lister<Namespace>,
}

impl Concerned {
    fn by_secret(&self, secret: &PartialObjectMeta<Secret>) -> Vec<ObjectKey> {
        let found =
            |index: &str, value: &str| self.synches.by_index(index, value).unwrap_or_default();
        let mut concerned = secret
            .labels()
            .get(OWNER_UID)
            .map(|uid| found(BY_UID, uid))
            .unwrap_or_default();
        // Sources, and secrets that stand where a copy should.
        let namespace = secret.namespace().unwrap_or_default();
        let place = self.namespaces.get(&ObjectKey::cluster(&namespace));
        let is_meant = |synch: &SecSynch| {
            place
                .as_ref()
                .is_some_and(|place| could_mean(&synch.spec, place))
        };
        concerned.extend(
            found(BY_SECRET, &secret.name_any())
                .into_iter()
                .filter(|synch| synch.spec.source_namespace == namespace || is_meant(synch)),
        );
        concerned
            .iter()
            .map(|synch| ObjectKey::of(&**synch))
            .collect()
    }
}
