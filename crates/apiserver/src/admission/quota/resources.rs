//! Quantities by the name of a quota resource. Mirrors `k8s.io/apiserver/pkg/quota/v1`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_apimachinery::quantity::Quantity;
use bellerophon_codec::object::Object;

/// Quantities by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources(BTreeMap<String, Quantity>);

impl Resources {
    /// `hard` or `used` of the status of a quota.
    pub(super) fn of(quota: &Object, field: &str) -> Self {
        Self::read(quota.body.field("status").field(field))
    }

    /// The quantities of a map; what is none is left out.
    pub(super) fn read(map: &Value) -> Self {
        let entries = map.as_object().into_iter().flatten();
        Self(
            entries
                .filter_map(|(name, value)| Some((name.clone(), Quantity::of(value)?)))
                .collect(),
        )
    }

    pub(super) fn to_value(&self) -> Value {
        let entries = self.0.iter();
        Value::Object(
            entries
                .map(|(name, quantity)| (name.clone(), quantity.to_string().into()))
                .collect::<Map<_, _>>(),
        )
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn has(&self, resource: &str) -> bool {
        self.0.contains_key(resource)
    }

    pub(super) fn get(&self, resource: &str) -> Option<Quantity> {
        self.0.get(resource).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, resource: impl Into<String>, quantity: Quantity) {
        self.0.insert(resource.into(), quantity);
    }

    /// Both together. Mirrors `Add`.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (name, quantity) in &other.0 {
            sum.0
                .entry(name.clone())
                .and_modify(|total| *total = total.plus(*quantity))
                .or_insert(*quantity);
        }
        sum
    }

    /// The larger one of each. Mirrors `Max`.
    pub(super) fn raise(&mut self, others: &Self) {
        for (name, quantity) in &others.0 {
            self.0
                .entry(name.clone())
                .and_modify(|most| *most = (*most).max(*quantity))
                .or_insert(*quantity);
        }
    }

    /// The increase over `before`; zero for a decrease. Mirrors `SubtractWithNonNegativeResult`.
    pub(super) fn increase_over(&self, before: &Self) -> Self {
        let entries = self.0.iter().map(|(name, quantity)| {
            let increase = match before.0.get(name) {
                None => *quantity,
                Some(before) => quantity.minus(*before).max(Quantity::ZERO),
            };
            (name.clone(), increase)
        });
        Self(entries.collect())
    }

    /// Mirrors `RemoveZeros`.
    pub(super) fn without_zeros(mut self) -> Self {
        self.0.retain(|_, quantity| quantity.sign() != 0);
        self
    }

    /// The quantities of the resources that `others` names. Mirrors `Mask`.
    pub(super) fn only(mut self, others: &Self) -> Self {
        self.0.retain(|name, _| others.has(name));
        self
    }

    /// Whether there is more of a resource than `limits` allow.
    pub(super) fn exceeds(&self, limits: &Self, resource: &str) -> bool {
        match (self.0.get(resource), limits.0.get(resource)) {
            (Some(quantity), Some(limit)) => quantity > limit,
            _ => false,
        }
    }

    /// Resources of a quantity below zero.
    pub(super) fn negative(&self) -> Vec<&str> {
        let entries = self.0.iter();
        entries
            .filter(|(_, quantity)| quantity.sign() < 0)
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

/// `pods=1,requests.cpu=500m`. Mirrors `prettyPrint`.
pub(super) fn print(resources: &Resources, names: &[&str]) -> String {
    let parts = names
        .iter()
        .filter_map(|name| Some(format!("{name}={}", resources.get(name)?)));
    parts.collect::<Vec<_>>().join(",")
}

/// Names in their order. Mirrors `prettyPrintResourceNames`.
pub(super) fn names_of(names: &[&str]) -> String {
    let mut names = names.to_vec();
    names.sort_unstable();
    names.join(",")
}
