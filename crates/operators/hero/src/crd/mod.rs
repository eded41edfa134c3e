//! The custom resources: Bellerophon (a store), Backup and ScheduledBackup.
//!
//! Guarantees: both versions of Bellerophon have the same schema, so an object that is valid in one
//! is valid in the other, and a round trip through either loses nothing.

#[expect(
    clippy::duplicated_attributes,
    reason = "every column has a name, a type and a path"
)]
mod backup; // Backup and ScheduledBackup
#[expect(
    clippy::duplicated_attributes,
    reason = "every column has a name, a type and a path"
)]
#[expect(
    unreachable_pub,
    reason = "the derive of validation rules repeats the type inside of a function"
)]
mod spec; // the spec
mod status; // the status
pub(crate) mod v1alpha0; // the older version

pub use backup::{
    Backup, BackupPhase, BackupSpec, BackupStatus, ScheduledBackup, ScheduledBackupSpec,
    ScheduledBackupStatus,
};
pub use spec::{
    Autopilot, BackupPolicy, BellerophonSpec, Bootstrap, ClaimPolicy, Readers, RestoreSource,
    Storage, Weapons,
};
pub use status::{
    AutopilotStatus, BellerophonStatus, MemberPhase, MemberRole, MemberStatus, Phase, RestorePhase,
    RestoreStatus,
};

use bellerophon::Kind;
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, CustomResourceDefinitionVersion,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{CustomResourceExt as _, Resource};
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

use spec::BellerophonDefinition;

/// The API group of all kinds.
pub const GROUP: &str = "stable.bellerophon.io";

/// The stored version.
pub const VERSION: &str = "v1beta7";

/// The older version, which is served too.
pub const OLD_VERSION: &str = "v1alpha0";

/// The shortest text of a deprecation warning that names the replacement.
const DEPRECATION: &str =
    "stable.bellerophon.io/v1alpha0 Bellerophon is deprecated; use stable.bellerophon.io/v1beta7";

/// A replicated store: the desired members and their state.
///
/// The type is written by hand, since derived custom resources have no field besides `spec` and
/// `status`.
#[derive(Clone, Debug, Deserialize, Kind, PartialEq, Resource, Serialize)]
#[resource(inherit = "BellerophonDefinition")]
#[serde(rename_all = "camelCase")]
pub struct Bellerophon {
    /// Always [`GROUP`] and [`VERSION`].
    #[serde(default = "api_version")]
    api_version: String,
    /// Always `Bellerophon`.
    #[serde(default = "kind")]
    kind: String,
    /// Name, namespace, labels.
    pub metadata: ObjectMeta,
    /// The desired store.
    pub spec: BellerophonSpec,
    /// The weapons of the hero. The operator keeps them and does not interpret them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weapons: Option<Weapons>,
    /// The observed store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<BellerophonStatus>,
}

fn api_version() -> String {
    format!("{GROUP}/{VERSION}")
}

fn kind() -> String {
    "Bellerophon".to_owned()
}

impl Bellerophon {
    /// An object with a name and a spec.
    pub fn new(name: &str, spec: BellerophonSpec) -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec,
            weapons: None,
            status: None,
        }
    }

    /// The definition of both versions.
    ///
    /// # Panics
    /// Never: the schema of the spec is that of an object.
    pub fn crd() -> CustomResourceDefinition {
        let mut crd = BellerophonDefinition::crd();
        let stored = crd
            .spec
            .versions
            .first_mut()
            .expect("a derived definition has one version");
        add_weapons(stored);
        let mut old = stored.clone();
        old.name = OLD_VERSION.to_owned();
        old.storage = false;
        old.deprecated = Some(true);
        old.deprecation_warning = Some(DEPRECATION.to_owned());
        crd.spec.versions.push(old);
        crd
    }
}

/// Adds the top-level field `weapons` to the schema of a version.
fn add_weapons(version: &mut CustomResourceDefinitionVersion) {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<Weapons>();
    let schema = bellerophon_operator::crd_json::from_value(schema.to_value())
        .expect("a derived schema is a schema");
    let root = version
        .schema
        .as_mut()
        .and_then(|schema| schema.open_api_v3_schema.as_mut())
        .expect("a derived version has a schema");
    let properties = root.properties.get_or_insert_default();
    properties.insert("weapons".to_owned(), schema);
}
