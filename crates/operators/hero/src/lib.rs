//! The Bellerophon operator: installs, upgrades, scales, backs up and heals the replicated store.
//!
//! ```text
//! Bellerophon ─→ observe (live reads: objects, members) ─→ plan (pure, one step) ─→ apply (one mutation)
//!                     ↑                                                                │
//!                     └──────────── the status has facts and intents ←─────────────────┘
//! ```
//!
//! `observe`, `plan` and `apply` do not depend on the toolkit's controller, so that another runtime
//! can drive them.

mod apply; // the only code that changes a store
mod backup; // Backups and ScheduledBackups
pub mod crd; // the custom resources
mod events; // Events
pub mod member_api; // client of members
mod metrics; // Prometheus metrics
pub mod names; // names, labels, ports
mod objects; // Kubernetes objects of a store
mod observe; // live reads
mod observed; // input of the plan
pub mod plan; // the next step
mod reconciler; // one step per reconcile
pub mod sampler; // rates
mod step; // steps of a reconcile
mod store_members; // members over the network
mod tls; // certificates and tokens
mod version; // supported upgrades

pub use apply::{Applier, ApplyError};
pub use crd::{Backup, Bellerophon, ScheduledBackup};
pub use objects::revision;
pub use observe::{Objects, Observer};
pub use observed::{BackupState, ClaimState, Observed, PodPhase, PodState, Report, SharedObject};
pub use step::Step;
pub use store_members::{Route, StoreMembers};
pub use tls::TlsError;

use std::sync::Arc;

use bellerophon::{informer::InformerOptions, manager::Manager, prelude::*};
use bellerophon_operator::{Operator, Placement, RoleAggregation, Switches, allow};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{CustomResourceExt as _, ResourceExt as _};

use crate::{member_api::MemberApi, metrics::HeroMetrics, reconciler::HeroReconciler};

/// The description of the operator.
pub const OPERATOR: Operator = Operator {
    name: "hero",
    summary: "a Bellerophon becomes a replicated store: installed, upgraded, scaled, backed up, healed",
    crds: || vec![Bellerophon::crd(), Backup::crd(), ScheduledBackup::crd()],
    permissions: || {
        let own = |verbs: &[&str], resource: &str| allow(verbs, crd::GROUP, resource);
        vec![
            own(&["get", "list", "watch", "patch"], "heroes"),
            own(&["patch"], "heroes/status"),
            own(
                &["get", "list", "watch", "patch", "create", "delete"],
                "backups",
            ),
            own(&["patch"], "backups/status"),
            own(
                &["get", "list", "watch", "patch", "create", "delete"],
                "scheduledbackups",
            ),
            own(&["patch"], "scheduledbackups/status"),
            allow(
                &["get", "list", "watch", "create", "patch", "delete"],
                "",
                "pods",
            ),
            // Members are reached through the API server if the operator runs outside of the
            // cluster.
            allow(&["get", "create"], "", "pods/portforward"),
            allow(
                &["get", "list", "watch", "create", "patch", "delete"],
                "",
                "persistentvolumeclaims",
            ),
            allow(&["list", "create", "patch"], "", "services"),
            allow(&["list", "create", "patch", "delete"], "", "secrets"),
            allow(
                &["get", "create", "patch"],
                "policy",
                "poddisruptionbudgets",
            ),
        ]
    },
    admission_policies: Vec::new,
    role_aggregation: RoleAggregation::EditAndView,
    placement: Placement::Deployment,
    feature_switches: &[],
    // Without it, both versions have the same fields; with it, the older one has its own.
    webhooks: Some(|mgr, _switches| {
        mgr.webhook::<Bellerophon>()
            .convert::<crd::v1alpha0::BellerophonV1alpha0>();
    }),
    setup: |mgr, _switches: &Switches| {
        let route = Route::of_environment(mgr.client());
        setup(mgr, Arc::new(StoreMembers::new(route)));
    },
};

/// Adds the controllers to a Manager.
pub fn setup(mgr: &mut Manager, members: Arc<dyn MemberApi>) {
    let metrics = HeroMetrics::register(mgr.metrics());
    let observer = Observer {
        members,
        rng: mgr.rng().clone(),
        sampler: sampler::Sampler::default(),
    };
    let reconciler = HeroReconciler {
        observer: Arc::new(observer),
        heroes: mgr.lister(),
        metrics: metrics.clone(),
    };
    let pods = mgr.informer(InformerOptions::<Pod>::labels(names::HERO_LABEL));
    let claims = mgr.informer(InformerOptions::<PersistentVolumeClaim>::labels(
        names::HERO_LABEL,
    ));
    mgr.controller::<Bellerophon>()
        // The status that this controller writes does not enqueue its own object again.
        .predicate(Predicate::generation_changed())
        .owns::<Pod>()
        .informer(&pods)
        // Claims have no owner.
        .watches::<PersistentVolumeClaim>(hero_of)
        .informer(&claims)
        .name(OPERATOR.name)
        .reconcile(reconciler);
    mgr.controller::<Backup>()
        .predicate(Predicate::generation_changed())
        .owns::<Pod>()
        .informer(&pods)
        .name("hero-backup")
        .reconcile(backup::BackupReconciler { metrics });
    mgr.controller::<ScheduledBackup>()
        .predicate(Predicate::generation_changed())
        .owns::<Backup>()
        .name("hero-schedule")
        .reconcile(backup::ScheduleReconciler);
}

/// The Bellerophon of a claim.
fn hero_of(claim: &PersistentVolumeClaim) -> Vec<ObjectKey> {
    let hero = claim.labels().get(names::HERO_LABEL);
    hero.map(|hero| ObjectKey::in_namespace_of(claim, hero))
        .into_iter()
        .collect()
}
