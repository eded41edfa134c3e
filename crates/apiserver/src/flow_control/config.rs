//! The configuration of flow control: FlowSchemas and PriorityLevelConfigurations, compiled.
//! In: the stored objects. Out: levels, schemas in the order in which they are matched, and the
//! conditions that the FlowSchemas should have.
//! Guarantees: the mandatory objects are there even if they are not stored; a schema of a level
//! that does not exist is left out.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{json_ext::JsonExt as _, time::Time};
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::flow_control::{dangling, mandatory_objects};
use serde_json::Value;

use super::{
    matching::{Distinguisher, Rule},
    queue::Queuing,
    seats::Shares,
    shuffle_sharding::Dealer,
};

pub(super) const EXEMPT: &str = "exempt";
pub(super) const CATCH_ALL: &str = "catch-all";

/// A priority level.
#[derive(Clone, Debug)]
pub(super) struct LevelConfig {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) shares: Shares,
    pub(super) queuing: Queuing,
    /// The hand size, of a level with queues.
    pub(super) hand_size: Option<u32>,
}

impl LevelConfig {
    /// `None` if the object is not sound, in which case it counts as missing. Validation allows no
    /// such object. Mirrors `queueSetCompleterForPL`.
    fn read(object: &Object) -> Option<Self> {
        let spec = object.body.field("spec");
        let number = |value: &Value, field| value.int(field).and_then(|n| u32::try_from(n).ok());
        let exempt = spec.text("type") == "Exempt";
        if exempt != (object.meta.name == EXEMPT) {
            return None;
        }
        let settings = spec.get_set(if exempt { "exempt" } else { "limited" })?;
        let response = settings.field("limitResponse");
        let queues = response.get_set("queuing");
        let (queuing, hand_size) = match (exempt, response.text("type"), queues) {
            (true, _, _) => (Queuing::Exempt, None),
            (false, "Reject", None) => (Queuing::Reject, None),
            (false, "Queue", Some(queues)) => {
                let hand_size = number(queues, "handSize")?;
                let dealer = Dealer::new(number(queues, "queues")?, hand_size)?;
                let length_limit = number(queues, "queueLengthLimit")? as usize;
                let queuing = Queuing::Queue {
                    dealer,
                    length_limit,
                };
                (queuing, Some(hand_size))
            }
            _ => return None,
        };
        Some(Self {
            name: object.meta.name.clone(),
            uid: object.meta.uid.clone(),
            shares: Shares {
                nominal: number(settings, "nominalConcurrencyShares").unwrap_or_default(),
                lendable_percent: number(settings, "lendablePercent").unwrap_or_default(),
                borrowing_limit_percent: number(settings, "borrowingLimitPercent"),
            },
            queuing,
            hand_size,
        })
    }
}

/// A FlowSchema.
#[derive(Debug)]
pub(super) struct SchemaConfig {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) level: String,
    precedence: i64,
    pub(super) distinguisher: Distinguisher,
    pub(super) rules: Vec<Rule>,
}

impl SchemaConfig {
    fn read(object: &Object) -> Self {
        let spec = object.body.field("spec");
        Self {
            name: object.meta.name.clone(),
            uid: object.meta.uid.clone(),
            level: level_name(object).to_owned(),
            precedence: spec.number("matchingPrecedence"),
            distinguisher: Distinguisher::read(spec),
            rules: spec.list("rules").iter().map(Rule::read).collect(),
        }
    }
}

fn level_name(schema: &Object) -> &str {
    let spec = schema.body.field("spec");
    spec.field("priorityLevelConfiguration").text("name")
}

/// Everything that requests are classified by.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(super) levels: Vec<LevelConfig>,
    /// In the order in which they are matched.
    pub(super) schemas: Vec<SchemaConfig>,
}

impl Configuration {
    /// Compiles the stored objects. Mirrors `lockAndDigestConfigObjects`.
    pub(crate) fn compile(levels: &[Object], schemas: &[Object]) -> Self {
        let mut levels: Vec<LevelConfig> = levels.iter().filter_map(LevelConfig::read).collect();
        let known: BTreeSet<String> = levels.iter().map(|level| level.name.clone()).collect();
        let mut schemas: Vec<SchemaConfig> = schemas
            .iter()
            .filter(|schema| known.contains(level_name(schema)))
            .map(SchemaConfig::read)
            .collect();
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        for object in mandatory_objects() {
            let name = object.meta.name.as_str();
            match object.kind.as_str() {
                "PriorityLevelConfiguration" if !known.contains(name) => {
                    levels.extend(LevelConfig::read(&object));
                }
                "FlowSchema" if !schemas.iter().any(|schema| schema.name == name) => {
                    let place = if name == EXEMPT { 0 } else { schemas.len() };
                    schemas.insert(place, SchemaConfig::read(&object));
                }
                _ => {}
            }
        }
        Self { levels, schemas }
    }
}

/// The FlowSchemas whose condition is not the one that they should have, with the right one.
pub(crate) fn conditions_to_write(
    levels: &[Object],
    schemas: &[Object],
    now: Time,
) -> Vec<(String, Value)> {
    let known: BTreeSet<String> = levels
        .iter()
        .filter_map(LevelConfig::read)
        .map(|level| level.name)
        .collect();
    schemas
        .iter()
        .filter_map(|schema| {
            let level = level_name(schema);
            let wanted = dangling(level, known.contains(level), now);
            let same = |condition: &Value| {
                ["type", "status", "reason", "message"]
                    .iter()
                    .all(|field| condition.text(field) == wanted.text(field))
            };
            let conditions = schema.body.field("status").list("conditions");
            (!conditions.iter().any(same)).then(|| (schema.meta.name.clone(), wanted))
        })
        .collect()
}
