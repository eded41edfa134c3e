//! Whether the rules that a user holds cover the rules of a role.
//!
//! In: held rules, and the rules of a role. Out: the permissions that no held rule covers.
//! Guarantees: the decision is that of upstream's `Covers`, which breaks a rule down into every
//! combination of group, resource, name and verb. Here the values of a list are grouped by the held
//! rules that have them, so the cost grows with the lengths of the lists, not with their product.

use std::collections::{HashMap, HashSet};

use super::rbac::Rule;

/// Uncovered permissions that are collected. Further ones change no decision.
pub(super) const UNCOVERED_MAX: usize = 5_000;

/// Words of [`RuleSet`]s that one check may process, about 50 ms. Only rules whose lists are cut
/// into thousands of pieces by the rules of their writer need as many.
const STEPS_MAX: usize = 8_000_000;

/// One verb on one resource or path, as upstream's `BreakdownRule` returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Permission<'a> {
    Resource {
        group: &'a str,
        resource: &'a str,
        /// `None` for all names.
        name: Option<&'a str>,
        verb: &'a str,
    },
    Path {
        url: &'a str,
        verb: &'a str,
    },
}

impl<'a> Permission<'a> {
    /// The same for no verb, and the verb.
    pub(super) fn without_verb(self) -> (Self, &'a str) {
        match self {
            Self::Resource {
                group,
                resource,
                name,
                verb,
            } => {
                let verbless = Self::Resource {
                    group,
                    resource,
                    name,
                    verb: "",
                };
                (verbless, verb)
            }
            Self::Path { url, verb } => (Self::Path { url, verb: "" }, verb),
        }
    }
}

/// The check of a role was given up, because it needs too many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooComplex;

/// The permissions of `wanted` that no rule in `held` covers, in order of their rules and verbs;
/// the first [`UNCOVERED_MAX`] found.
///
/// # Errors
/// The check needs more than [`STEPS_MAX`] steps.
pub(super) fn uncovered<'a>(
    held: &[Rule<'_>],
    wanted: impl Iterator<Item = Rule<'a>>,
) -> Result<Vec<Permission<'a>>, TooComplex> {
    let mut search = Search::default();
    for rule in wanted {
        search.check_resources(held, rule)?;
        search.check_paths(held, rule)?;
        search.rule += 1;
    }
    let mut found = search.found;
    found.sort_by_key(|(order, _)| *order);
    Ok(found
        .into_iter()
        .map(|(_, permission)| permission)
        .collect())
}

/// A set of held rules, by index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RuleSet(Box<[u64]>);

impl RuleSet {
    fn empty(rules: usize) -> Self {
        Self(vec![0; rules.div_ceil(64)].into())
    }

    /// The rules that satisfy a condition.
    fn of(held: &[Rule<'_>], condition: impl Fn(Rule<'_>) -> bool) -> Self {
        let mut set = Self::empty(held.len());
        for (index, rule) in held.iter().enumerate() {
            if condition(*rule) {
                set.insert(index);
            }
        }
        set
    }

    fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn add_all(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    fn and(&self, other: &Self) -> Self {
        let words = self.0.iter().zip(&other.0);
        Self(words.map(|(word, other)| word & other).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The cost of an operation on it.
    fn words(&self) -> usize {
        self.0.len() + 1
    }
}

/// Values of one list that the same held rules have.
struct Class<'a> {
    /// With their positions in the list.
    values: Vec<(usize, &'a str)>,
    held_by: RuleSet,
}

/// One list of a rule: groups, resources, names, verbs or paths.
struct Dimension<'a> {
    classes: Vec<Class<'a>>,
}

impl<'a> Dimension<'a> {
    /// A list whose distinct values are held by the rules in `held_by`, by index.
    fn new(values: &Distinct<'a>, held_by: Vec<RuleSet>) -> Self {
        let mut by_rules: HashMap<RuleSet, usize> = HashMap::new();
        let mut classes: Vec<Class<'a>> = Vec::new();
        let mut class_of = Vec::with_capacity(held_by.len());
        for set in held_by {
            let class = *by_rules.entry(set).or_insert_with_key(|set| {
                classes.push(Class {
                    values: Vec::new(),
                    held_by: set.clone(),
                });
                classes.len() - 1
            });
            class_of.push(class);
        }
        for (position, value) in values.all.iter().enumerate() {
            let class = class_of[values.index[value]];
            classes[class].values.push((position, *value));
        }
        Self { classes }
    }

    /// The one value of a list that is not there, for which all rules in `held_by` are.
    fn absent(held_by: RuleSet) -> Self {
        let values = vec![(0, "")];
        Self {
            classes: vec![Class { values, held_by }],
        }
    }

    /// The held rules that have every value.
    fn full(&self, rules: usize) -> RuleSet {
        let mut classes = self.classes.iter().map(|class| class.held_by.clone());
        let first = classes.next().unwrap_or_else(|| RuleSet::empty(rules));
        classes.fold(first, |full, set| full.and(&set))
    }

    fn values(&self) -> impl Iterator<Item = (usize, &'a str)> {
        self.classes
            .iter()
            .flat_map(|class| class.values.iter().copied())
    }
}

/// The values of a list, and an index for each distinct one.
struct Distinct<'a> {
    all: Vec<&'a str>,
    index: HashMap<&'a str, usize>,
}

impl<'a> Distinct<'a> {
    fn of(rule: Rule<'a>, key: &str) -> Self {
        let all: Vec<&'a str> = rule.list(key).collect();
        let mut index = HashMap::new();
        for value in &all {
            let next = index.len();
            index.entry(*value).or_insert(next);
        }
        Self { all, index }
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Which held rules name each distinct value.
    fn named_by(&self, held: &[Rule<'_>], key: &str) -> Vec<RuleSet> {
        let mut sets = vec![RuleSet::empty(held.len()); self.index.len()];
        for (rule, held) in held.iter().enumerate() {
            for value in held.list(key) {
                if let Some(index) = self.index.get(value) {
                    sets[*index].insert(rule);
                }
            }
        }
        sets
    }

    /// Which held rules name each distinct value, or have `*`.
    fn held_by(&self, held: &[Rule<'_>], key: &str) -> Vec<RuleSet> {
        let mut sets = self.named_by(held, key);
        add_to_each(&mut sets, &RuleSet::of(held, |rule| rule.has(key, "*")));
        sets
    }

    /// The same for resources, where `*/log` has `pods/log`.
    fn resources_held_by(&self, held: &[Rule<'_>]) -> Vec<RuleSet> {
        let mut sets = self.held_by(held, "resources");
        let mut with_subresource: HashMap<&str, Vec<usize>> = HashMap::new();
        for (resource, index) in &self.index {
            if let Some((_, subresource)) = resource.split_once('/') {
                with_subresource
                    .entry(subresource)
                    .or_default()
                    .push(*index);
            }
        }
        for (rule, held) in held.iter().enumerate() {
            let subresources = held.list("resources").filter_map(|r| r.strip_prefix("*/"));
            for subresource in subresources.collect::<HashSet<_>>() {
                for index in with_subresource.get(subresource).into_iter().flatten() {
                    sets[*index].insert(rule);
                }
            }
        }
        sets
    }

    /// The same for paths, where `/logs/*` has everything below it.
    fn paths_held_by(&self, held: &[Rule<'_>]) -> Vec<RuleSet> {
        let mut sets = self.held_by(held, "nonResourceURLs");
        let mut sorted: Vec<(&str, usize)> = self.index.iter().map(|(p, i)| (*p, *i)).collect();
        sorted.sort_unstable();
        for (rule, held) in held.iter().enumerate() {
            let urls = held
                .list("nonResourceURLs")
                .filter(|url| url.ends_with('*'));
            let mut prefixes: Vec<&str> = urls.map(|url| url.trim_end_matches('*')).collect();
            prefixes.sort_unstable();
            // A prefix that begins with the one before it adds nothing.
            prefixes.dedup_by(|longer, shorter| longer.starts_with(*shorter));
            for prefix in prefixes {
                let first = sorted.partition_point(|(path, _)| *path < prefix);
                let below = sorted[first..].iter();
                for (_, index) in below.take_while(|(path, _)| path.starts_with(prefix)) {
                    sets[*index].insert(rule);
                }
            }
        }
        sets
    }
}

fn add_to_each(sets: &mut [RuleSet], rules: &RuleSet) {
    for set in sets {
        set.add_all(rules);
    }
}

/// Looks for combinations of values that no held rule covers.
#[derive(Default)]
struct Search<'a> {
    /// The index of the rule that is checked.
    rule: usize,
    steps: usize,
    /// With the positions of rule and verb.
    found: Vec<((usize, usize), Permission<'a>)>,
}

impl<'a> Search<'a> {
    fn check_resources(&mut self, held: &[Rule<'_>], rule: Rule<'a>) -> Result<(), TooComplex> {
        let groups = Distinct::of(rule, "apiGroups");
        let resources = Distinct::of(rule, "resources");
        let verbs = Distinct::of(rule, "verbs");
        let names = Distinct::of(rule, "resourceNames");
        if groups.is_empty() || resources.is_empty() || verbs.is_empty() {
            return Ok(());
        }
        for list in [&groups, &resources, &verbs, &names] {
            self.count(list.all.len() * RuleSet::empty(held.len()).words())?;
        }
        let for_any_name = RuleSet::of(held, |rule| rule.is_empty("resourceNames"));
        let is_named = !names.is_empty();
        let names = if is_named {
            let mut sets = names.named_by(held, "resourceNames");
            add_to_each(&mut sets, &for_any_name);
            Dimension::new(&names, sets)
        } else {
            Dimension::absent(for_any_name)
        };
        let dimensions = [
            Dimension::new(&groups, groups.held_by(held, "apiGroups")),
            Dimension::new(&resources, resources.resources_held_by(held)),
            names,
            Dimension::new(&verbs, verbs.held_by(held, "verbs")),
        ];
        let permission = |values: &[&'a str]| match *values {
            [group, resource, name, verb] => Some(Permission::Resource {
                group,
                resource,
                name: is_named.then_some(name),
                verb,
            }),
            _ => None,
        };
        self.check(held.len(), &dimensions, &permission)
    }

    fn check_paths(&mut self, held: &[Rule<'_>], rule: Rule<'a>) -> Result<(), TooComplex> {
        let urls = Distinct::of(rule, "nonResourceURLs");
        let verbs = Distinct::of(rule, "verbs");
        if urls.is_empty() || verbs.is_empty() {
            return Ok(());
        }
        for list in [&urls, &verbs] {
            self.count(list.all.len() * RuleSet::empty(held.len()).words())?;
        }
        let dimensions = [
            // As for resources, a rule with names covers only what has names.
            Dimension::absent(RuleSet::of(held, |rule| rule.is_empty("resourceNames"))),
            Dimension::new(&urls, urls.paths_held_by(held)),
            Dimension::new(&verbs, verbs.held_by(held, "verbs")),
        ];
        let permission = |values: &[&'a str]| match *values {
            [_, url, verb] => Some(Permission::Path { url, verb }),
            _ => None,
        };
        self.check(held.len(), &dimensions, &permission)
    }

    fn check(
        &mut self,
        rules: usize,
        dimensions: &[Dimension<'a>],
        permission: &dyn Fn(&[&'a str]) -> Option<Permission<'a>>,
    ) -> Result<(), TooComplex> {
        let all = RuleSet(vec![u64::MAX; rules.div_ceil(64)].into());
        // For each dimension, the held rules that have all values of it and of those behind it.
        let mut full_from = vec![all.clone()];
        for dimension in dimensions.iter().rev() {
            let behind = full_from.last().unwrap_or(&all);
            full_from.push(behind.and(&dimension.full(rules)));
        }
        full_from.reverse();
        let product = Product {
            dimensions,
            full_from,
            permission,
        };
        let mut covered = vec![HashSet::new(); dimensions.len()];
        self.visit(&product, 0, &all, &mut Vec::new(), &mut covered)
    }

    /// Checks the combinations of the classes picked so far, which the rules in `candidates` have,
    /// with all values of the other dimensions.
    fn visit<'p>(
        &mut self,
        product: &Product<'p, 'a>,
        depth: usize,
        candidates: &RuleSet,
        picked: &mut Vec<&'p Class<'a>>,
        covered: &mut [HashSet<RuleSet>],
    ) -> Result<(), TooComplex> {
        let Some(dimension) = product.dimensions.get(depth) else {
            return Ok(());
        };
        for class in &dimension.classes {
            self.count(candidates.words())?;
            let rest = candidates.and(&class.held_by);
            picked.push(class);
            if rest.is_empty() {
                self.record(product, picked, &mut Vec::new(), 0);
            } else if rest.and(&product.full_from[depth + 1]).is_empty()
                && !covered[depth].contains(&rest)
            {
                let found = self.found.len();
                self.visit(product, depth + 1, &rest, picked, covered)?;
                if self.found.len() == found {
                    covered[depth].insert(rest);
                }
            }
            picked.pop();
            if self.found.len() >= UNCOVERED_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Records the combinations of the picked classes with all values of the other dimensions.
    fn record(
        &mut self,
        product: &Product<'_, 'a>,
        picked: &[&Class<'a>],
        values: &mut Vec<&'a str>,
        position: usize,
    ) {
        if self.found.len() >= UNCOVERED_MAX {
            return;
        }
        if let Some(permission) = (product.permission)(values) {
            self.found.push(((self.rule, position), permission));
            return;
        }
        let next: Box<dyn Iterator<Item = (usize, &'a str)>> = match picked.get(values.len()) {
            Some(class) => Box::new(class.values.clone().into_iter()),
            None => Box::new(product.dimensions[values.len()].values()),
        };
        for (position, value) in next {
            values.push(value);
            self.record(product, picked, values, position);
            values.pop();
        }
    }

    fn count(&mut self, steps: usize) -> Result<(), TooComplex> {
        self.steps += steps;
        if self.steps > STEPS_MAX {
            Err(TooComplex)
        } else {
            Ok(())
        }
    }
}

/// The lists of a rule, whose combinations are its permissions.
struct Product<'p, 'a> {
    dimensions: &'p [Dimension<'a>],
    /// For each dimension, the held rules that have all values of it and of those behind it.
    full_from: Vec<RuleSet>,
    /// The permission of one value of each dimension; `None` while values are missing.
    permission: &'p dyn Fn(&[&'a str]) -> Option<Permission<'a>>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::entropy::Entropy;

    /// Upstream's `BreakdownRule`.
    fn breakdown(rule: Rule<'_>) -> Vec<Permission<'_>> {
        let mut permissions = Vec::new();
        for group in rule.list("apiGroups") {
            for resource in rule.list("resources") {
                for verb in rule.list("verbs") {
                    let named = |name| Permission::Resource {
                        group,
                        resource,
                        name,
                        verb,
                    };
                    if rule.is_empty("resourceNames") {
                        permissions.push(named(None));
                    }
                    permissions.extend(rule.list("resourceNames").map(|n| named(Some(n))));
                }
            }
        }
        for url in rule.list("nonResourceURLs") {
            permissions.extend(
                rule.list("verbs")
                    .map(|verb| Permission::Path { url, verb }),
            );
        }
        permissions
    }

    /// Upstream's `ruleCovers`.
    fn covers(held: Rule<'_>, permission: Permission<'_>) -> bool {
        match permission {
            Permission::Path { url, verb } => {
                held.has_or_all("verbs", verb)
                    && held.is_empty("resourceNames")
                    && held.covers_path(url)
            }
            Permission::Resource {
                group,
                resource,
                name,
                verb,
            } => {
                held.has_or_all("verbs", verb)
                    && held.has_or_all("apiGroups", group)
                    && held.covers_resource(resource)
                    && (held.is_empty("resourceNames")
                        || name.is_some_and(|name| held.has("resourceNames", name)))
            }
        }
    }

    fn checked(held: &Value, wanted: &Value) -> Result<usize, TooComplex> {
        let held: Vec<Rule<'_>> = Rule::each(held).collect();
        uncovered(&held, Rule::each(wanted)).map(|found| found.len())
    }

    fn random_list(entropy: &Entropy, values: &[&str]) -> Value {
        let picked = values.iter().filter(|_| entropy.below(3) == 0);
        let mut picked: Vec<&str> = picked.copied().collect();
        if !picked.is_empty() && entropy.below(4) == 0 {
            picked.push(picked[0]);
        }
        picked.into()
    }

    fn random_rules(entropy: &Entropy, rules_max: u64) -> Value {
        let rule = |_| {
            let mut rule = json!({
                "verbs": random_list(entropy, &["*", "get", "list", "watch", "create"]),
                "apiGroups": random_list(entropy, &["", "*", "apps", "batch"]),
                "resources": random_list(
                    entropy,
                    &["*", "pods", "pods/log", "*/log", "jobs", "jobs/log", "*/", "a/b/c"],
                ),
            });
            if entropy.below(2) == 0 {
                rule["resourceNames"] = random_list(entropy, &["", "a", "b", "*"]);
            }
            if entropy.below(3) == 0 {
                rule["nonResourceURLs"] = random_list(
                    entropy,
                    &["*", "/a", "/a*", "/a/**", "/a/b", "/c/*", "/c/d"],
                );
            }
            rule
        };
        let count = entropy.below(rules_max + 1);
        (0..count).map(rule).collect::<Vec<_>>().into()
    }

    #[test]
    fn coverage_is_that_of_the_rules_broken_down() {
        let entropy = Entropy::seeded(15);
        let mut decisions = [0, 0];
        for _ in 0..5_000 {
            let held_rules = random_rules(&entropy, 5);
            let wanted = random_rules(&entropy, 2);
            let held: Vec<Rule<'_>> = Rule::each(&held_rules).collect();
            let missing =
                |permission: &Permission<'_>| !held.iter().any(|h| covers(*h, *permission));
            let broken_down = Rule::each(&wanted).flat_map(breakdown);
            let mut expected: Vec<Permission<'_>> = broken_down.filter(missing).collect();
            let found = uncovered(&held, Rule::each(&wanted));
            let mut found = found.expect("small rules need few steps");
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected, "{held_rules} {wanted}");
            decisions[usize::from(found.is_empty())] += 1;
        }
        assert!(decisions[0] > 500, "{decisions:?}");
        assert!(decisions[1] > 500, "{decisions:?}");
    }

    #[test]
    fn verbs_keep_their_order_within_a_resource() {
        let held = json!([
            {"verbs": ["b"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]},
            {"verbs": ["a", "c"], "apiGroups": [""], "resources": ["jobs"]},
        ]);
        let wanted =
            json!([{"verbs": ["d", "b", "c", "a"], "apiGroups": [""], "resources": ["pods"]}]);
        let held: Vec<Rule<'_>> = Rule::each(&held).collect();
        let found = uncovered(&held, Rule::each(&wanted)).expect("few steps");
        let verbs: Vec<&str> = found
            .iter()
            .map(|permission| match permission {
                Permission::Resource { verb, .. } | Permission::Path { verb, .. } => *verb,
            })
            .collect();
        assert_eq!(verbs, ["d", "b", "c", "a"]);
    }

    fn many(prefix: &str, count: usize) -> Vec<String> {
        (0..count).map(|i| format!("{prefix}{i}")).collect()
    }

    /// Rules used to be broken down: 250 groups, resources and verbs took 12 s and 2 GB. The 27
    /// billion permissions of this rule would take neither in any machine.
    #[test]
    fn long_lists_are_not_multiplied() {
        let wanted = json!([{
            "verbs": many("v", 3_000), "apiGroups": many("g", 3_000), "resources": many("r", 3_000),
        }]);
        let of_verb = |verb| json!({"verbs": [verb], "apiGroups": ["*"], "resources": ["*"]});
        let by_verb = |count| {
            many("v", count)
                .into_iter()
                .map(of_verb)
                .collect::<Vec<_>>()
        };
        let of_groups =
            |groups: &[String]| json!({"verbs": ["*"], "apiGroups": groups, "resources": ["*"]});
        let groups = many("g", 3_000);
        let halves = json!([of_groups(&groups[..1_500]), of_groups(&groups[1_500..])]);
        assert_eq!(checked(&json!([]), &wanted), Ok(UNCOVERED_MAX));
        assert_eq!(checked(&json!(by_verb(300)), &wanted), Ok(UNCOVERED_MAX));
        assert_eq!(checked(&json!(by_verb(3_000)), &wanted), Ok(0));
        assert_eq!(checked(&json!([of_verb("*".to_owned())]), &wanted), Ok(0));
        assert_eq!(checked(&halves, &wanted), Ok(0));
    }

    /// Held rules by which no two combinations of group and resource are alike.
    #[test]
    fn check_that_needs_too_many_steps_is_given_up() {
        let wanted = json!([{
            "verbs": many("v", 1_000), "apiGroups": many("g", 1_000), "resources": many("r", 1_000),
        }]);
        let bit = |list: Vec<String>, bit: usize| -> Vec<String> {
            let has = |(i, value)| (i >> bit & 1 == 1).then_some(value);
            list.into_iter().enumerate().filter_map(has).collect()
        };
        let verbs = many("v", 1_000);
        let mut held = vec![
            json!({"verbs": verbs[..500], "apiGroups": ["*"], "resources": ["*"]}),
            json!({"verbs": verbs[500..], "apiGroups": ["*"], "resources": ["*"]}),
        ];
        for i in 0..10 {
            let verbs = bit(verbs.clone(), i);
            let groups = bit(many("g", 1_000), i);
            let resources = bit(many("r", 1_000), i);
            held.push(json!({"verbs": verbs, "apiGroups": groups, "resources": ["*"]}));
            held.push(json!({"verbs": verbs, "apiGroups": ["*"], "resources": resources}));
        }
        assert_eq!(checked(&json!(held), &wanted), Err(TooComplex));
    }
}
