//! The strategy of a kind: preparation, defaults and validation.
//! In: objects that are written. Out: prepared objects, or their errors.
//! Guarantees: a strategy never reads storage or the clock; given the same objects it does the
//! same.

use bellerophon_apimachinery::{field::FieldError, time::Time};
use bellerophon_codec::object::Object;

use super::Components;

/// When `metadata.generation` grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind keeps none.
    None,
    /// Starts at 1 and grows with every change of `spec`.
    Spec,
    /// Starts at 1 and grows with every change of `spec` or of the annotations.
    SpecAndAnnotations,
    /// Starts at 1 and grows with every change outside `metadata` and `status`.
    Body,
    /// Starts at 1 and grows with every change outside `metadata`.
    All,
}

/// The kinds of reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// TokenReview.
    Token,
    /// SelfSubjectReview.
    Own,
    /// SubjectAccessReview.
    Access,
    /// LocalSubjectAccessReview.
    LocalAccess,
    /// SelfSubjectAccessReview.
    OwnAccess,
    /// SelfSubjectRulesReview.
    OwnRules,
}

/// The behaviour of a POST to the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// Stores the object.
    Store,
    /// Returns a review; nothing is stored.
    Review(Review),
    /// Binds the pod that the body names: the old path of `pods/binding`.
    Binding,
}

/// Where requests to the subresource `proxy` are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyTarget {
    /// The kubelet of a node, or a port of it.
    Node,
    /// A port of a pod.
    Pod,
    /// An endpoint of a Service.
    Service,
}

/// The fields that writes to a subresource cannot own; the subresource is empty for the object
/// itself.
pub(crate) type ResetPaths = (&'static str, &'static [&'static [&'static str]]);

/// The reset fields of kinds whose status writes leave metadata alone.
pub const STATUS_RESETS_METADATA: &[ResetPaths] = &[("status", &[&["metadata"], &["spec"]])];

/// The response to a completed DELETE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteAnswer {
    /// A `Status` that names the object.
    Status,
    /// The object as it last was.
    Object,
}

/// The behaviour of a kind, as plain functions over objects.
///
/// Create runs `default`, `prepare_create`, `validate`, `validate_create`. Update runs `default`,
/// `prepare_update`, then `validate` on the new object and `validate_update` on both. A status
/// write runs `default`, `prepare_status`, `validate_status`. `stamp` follows each prepare.
/// Metadata is checked before, once for all kinds. Where a row is stored as another, `default` sees
/// the object as served and all else as it is stored.
#[derive(Clone, Copy)]
pub struct Strategy {
    /// Fills in what the client left out. Runs on every decoded object, so it must be idempotent.
    pub default: fn(&mut Object),
    /// Brings a new object into the shape it is stored in (drops the status, sets what the server
    /// owns).
    pub prepare_create: fn(&mut Object),
    /// Takes from the old object what a plain update may not change (its status, first of all).
    pub prepare_update: fn(&mut Object, &Object),
    /// Takes from the old object what a status write may not change.
    pub prepare_status: fn(&mut Object, &Object),
    /// Writes the server's time where the kind keeps it. Runs after every prepare, with the old
    /// object when there is one.
    pub stamp: fn(&mut Object, Option<&Object>, Time),
    /// The object whose fields are tracked in managedFields, where that is not the object itself.
    pub tracked: fn(&Object) -> Option<Object>,
    /// The errors of the object as such.
    pub validate: fn(&Object, &mut Vec<FieldError>),
    /// The errors of the object only because it is new; runs after `validate`.
    pub validate_create: fn(&Object, &mut Vec<FieldError>),
    /// The errors of the change from the second object to the first.
    pub validate_update: fn(&Object, &Object, &mut Vec<FieldError>),
    /// The errors of the new status (first object), compared with the old.
    pub validate_status: fn(&Object, &Object, &mut Vec<FieldError>),
    /// Warnings for the client that wrote the object.
    pub warnings: fn(&Object, Option<&Object>) -> Vec<String>,
    /// The errors of a name of this kind; each string is the detail of an `Invalid value`.
    pub name: fn(&str) -> Vec<String>,
    /// When the generation grows.
    pub generation: Generation,
    /// Whether a PUT may leave out `metadata.resourceVersion`.
    pub unconditional_update: bool,
    /// Whether a PUT to a name that does not exist creates it.
    pub create_on_update: bool,
    /// The response to DELETE.
    pub delete_answer: DeleteAnswer,
    /// The grace period of a deletion: from the seconds that the client requests and the object;
    /// `None` for kinds that are removed immediately.
    pub grace_period: fn(&Object, Option<i64>) -> Option<i64>,
    /// Whether dependents are orphaned by default.
    pub orphans: bool,
    /// Marks an object whose deletion begins (`true` when it changed) and returns whether it may be
    /// removed once nothing in its metadata blocks it.
    pub deletion: Deletion,
    /// The effect of a write, before its response is sent.
    pub effect: Effect,
    /// Annotations that are fields in kube-apiserver and become annotations with the rest of the
    /// body: metadata shown alone does not have them.
    pub field_annotations: &'static [&'static str],
    /// The behaviour of a POST to the collection.
    pub creation: Creation,
    /// The warning about a DELETE without a propagation policy.
    pub delete_warning: Option<&'static str>,
    /// The fields that writes cannot own, where they differ from those of most kinds: the status
    /// for writes to the object, the spec for writes to the status. Mirrors `GetResetFields`.
    pub reset_fields: &'static [ResetPaths],
    /// Whether objects of the kind cannot own others. Mirrors `BannedOwners`.
    pub is_banned_owner: bool,
    /// Where requests to the subresource `proxy` are sent.
    pub proxy: Option<ProxyTarget>,
    /// Computes the objects of a kind that is not stored.
    pub computed: Option<fn(&Components) -> Vec<Object>>,
}

/// The deletion of a kind, besides its metadata.
#[derive(Clone, Copy)]
pub struct Deletion {
    /// Changes the object when its deletion begins.
    pub begin: fn(&mut Object, Time),
    /// Whether something outside its metadata still holds the object.
    pub held: fn(&Object) -> bool,
    /// Whether the mark is the time alone: no grace period, no new generation.
    pub time_only: bool,
}

impl Deletion {
    /// Nothing besides its metadata.
    pub(crate) const PLAIN: Self = Self {
        begin: |_, _| {},
        held: |_| false,
        time_only: false,
    };
}

/// The effect of a write on the server besides the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The catalog: the object defines a custom resource.
    Definition,
    /// Whether a definition may go: the object is of a custom resource.
    Instance,
    /// Which service addresses and node ports are taken.
    Addresses,
    /// Which requests are executed first: the object configures flow control.
    FlowControl,
    /// Which server serves a version of a group.
    ApiService,
    /// Configures webhooks or policies.
    Admission,
}

impl Strategy {
    /// A kind with nothing special: no defaults, no checks beyond its schema, no generation.
    pub const PLAIN: Self = Self {
        default: |_| {},
        prepare_create: |_| {},
        prepare_update: |_, _| {},
        prepare_status: keep_all_but_status,
        stamp: |_, _, _| {},
        tracked: |_| None,
        validate: |_, _| {},
        validate_create: |_, _| {},
        validate_update: |_, _, _| {},
        validate_status: |_, _, _| {},
        warnings: |_, _| Vec::new(),
        name: bellerophon_apimachinery::names::dns_subdomain,
        generation: Generation::None,
        unconditional_update: true,
        create_on_update: false,
        delete_answer: DeleteAnswer::Status,
        grace_period: |_, _| None,
        orphans: false,
        deletion: Deletion::PLAIN,
        effect: Effect::None,
        field_annotations: &[],
        creation: Creation::Store,
        delete_warning: None,
        reset_fields: &[],
        is_banned_owner: false,
        proxy: None,
        computed: None,
    };

    /// A kind of reviews: they are answered and not stored.
    pub const fn reviewing(review: Review) -> Self {
        Self {
            creation: Creation::Review(review),
            ..Self::PLAIN
        }
    }

    /// A kind with `spec`, `status` and a generation: writes to the object leave the status alone,
    /// and the reverse.
    pub const WITH_STATUS: Self = Self {
        prepare_create: drop_status,
        prepare_update: keep_status,
        generation: Generation::Spec,
        ..Self::PLAIN
    };
}

/// Drops the status a client sent.
pub(crate) fn drop_status(object: &mut Object) {
    object.body.remove("status");
}

/// Puts the old status back.
pub fn keep_status(new: &mut Object, old: &Object) {
    match old.body.get("status") {
        Some(status) => new.body.insert("status".into(), status.clone()),
        None => new.body.remove("status"),
    };
}

/// Puts everything but the status and the field owners back.
pub(crate) fn keep_all_but_status(new: &mut Object, old: &Object) {
    let status = new.body.remove("status");
    let managed_fields = std::mem::take(&mut new.meta.managed_fields);
    let resource_version = std::mem::take(&mut new.meta.resource_version);
    let labels = std::mem::take(&mut new.meta.labels);
    let annotations = std::mem::take(&mut new.meta.annotations);
    let finalizers = std::mem::take(&mut new.meta.finalizers);
    let owners = std::mem::take(&mut new.meta.owner_references);
    *new = Object {
        meta: bellerophon_codec::object::ObjectMeta {
            managed_fields,
            resource_version,
            labels,
            annotations,
            finalizers,
            owner_references: owners,
            ..old.meta.clone()
        },
        api_version: std::mem::take(&mut new.api_version),
        kind: std::mem::take(&mut new.kind),
        body: old.body.clone(),
    };
    match status {
        Some(status) => new.body.insert("status".into(), status),
        None => new.body.remove("status"),
    };
}
