//! Sums of quantities by the name of a quota resource.
//! Guarantees: sums are exact; a sum is written as its first quantity is, in
//! binary or decimal suffixes, as `Quantity.Add` does.

use std::collections::BTreeMap;

use bellerophon_apimachinery::quantity::Quantity as Sum;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Sums by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts(BTreeMap<String, Sum>);

impl Amounts {
    /// Counts the resources of a quota that these are, from zero on.
    pub(super) fn start(
        &mut self,
        hard: &BTreeMap<String, Quantity>,
        is_one: impl Fn(&str) -> bool,
    ) {
        for name in hard.keys().filter(|name| is_one(name)) {
            self.0.entry(name.clone()).or_insert(Sum::ZERO);
        }
    }

    /// Adds a quantity of a resource.
    pub(super) fn insert(&mut self, name: impl Into<String>, quantity: &Quantity) {
        let quantity = Sum::parse(&quantity.0).unwrap_or(Sum::ZERO);
        let sum = self.0.entry(name.into()).or_insert(Sum::ZERO);
        *sum = sum.plus(quantity);
    }

    /// Adds a number of a resource.
    pub(super) fn insert_count(&mut self, name: impl Into<String>, count: usize) {
        let sum = self.0.entry(name.into()).or_insert(Sum::ZERO);
        *sum = sum.plus(Sum::count(count));
    }

    /// Sets the number of a resource.
    pub(super) fn set_count(&mut self, name: &str, count: usize) {
        self.0.insert(name.to_owned(), Sum::count(count));
    }

    /// Adds what an object uses to the resources that are counted.
    pub(super) fn add(&mut self, used: &Self) {
        for (name, sum) in &mut self.0 {
            if let Some(used) = used.0.get(name) {
                *sum = sum.plus(*used);
            }
        }
    }

    /// The sums of the resources of a quota.
    pub(super) fn only(&self, hard: &BTreeMap<String, Quantity>) -> BTreeMap<String, Quantity> {
        let sums = self.0.iter().filter(|(name, _)| hard.contains_key(*name));
        sums.map(|(name, sum)| (name.clone(), Quantity(sum.to_string())))
            .collect()
    }

    #[cfg(test)]
    pub(super) fn shown(&self) -> String {
        let shown = self.0.iter();
        let shown = shown.map(|(name, sum)| format!("{name}={sum}"));
        shown.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_written_as_their_first_quantity() {
        let sum = |texts: &[&str]| {
            let mut amounts = Amounts::default();
            for text in texts {
                amounts.insert("a", &Quantity((*text).to_owned()));
            }
            amounts.shown()
        };
        assert_eq!(sum(&["500m", "1"]), "a=1500m");
        assert_eq!(sum(&["1Gi", "512Mi"]), "a=1536Mi");
        assert_eq!(sum(&["0", "1Gi"]), "a=1Gi");
        assert_eq!(sum(&["1G", "1Gi"]), "a=2073741824");
    }
}
