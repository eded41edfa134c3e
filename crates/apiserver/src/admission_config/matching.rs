//! Matches requests with the rules and selectors of webhooks, policies and bindings.
//! In: rules, selectors and the match policy of a configuration. Out: whether a request matches.
//! Mirrors the packages `predicates/rules` and `policy/matching` of `apiserver/pkg/admission`.

use std::collections::BTreeMap;

use serde_json::Value;

use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_resources::kinds::Selector;

/// The attributes of a request that rules match.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleTarget<'a> {
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub(crate) operation: &'a str,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    /// Empty for cluster-scoped resources; a namespace is in itself.
    pub(crate) namespace: &'a str,
    /// Empty if the name is not in the request.
    pub(crate) name: &'a str,
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default)]
struct Operations(u8);

impl Operations {
    const ALL: Self = Self(0b1111);

    /// The operation of this name, or all of them for `*`; none for an unknown name.
    fn of(name: &str) -> Self {
        match name {
            "CREATE" => Self(0b0001),
            "UPDATE" => Self(0b0010),
            "DELETE" => Self(0b0100),
            "CONNECT" => Self(0b1000),
            "*" => Self::ALL,
            _ => Self::default(),
        }
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// One rule.
#[derive(Clone, Debug)]
struct Rule {
    operations: Operations,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource; the latter is empty for the object itself.
    resources: Vec<(String, String)>,
    scope: Scope,
    /// Empty for all names.
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Namespaced,
    Cluster,
}

impl Rule {
    fn of(rule: &Value) -> Self {
        let texts = |field: &str| rule.texts(field).map(str::to_owned).collect();
        let resources = rule.texts("resources").map(|resource| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            (resource.to_owned(), subresource.to_owned())
        });
        Self {
            operations: rule
                .texts("operations")
                .map(Operations::of)
                .fold(Operations::default(), Operations::or),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: resources.collect(),
            scope: match rule.text("scope") {
                "Namespaced" => Scope::Namespaced,
                "Cluster" => Scope::Cluster,
                _ => Scope::All,
            },
            names: texts("resourceNames"),
        }
    }

    fn matches(&self, target: &RuleTarget<'_>) -> bool {
        let is_or_all = |items: &[String], text: &str| items.iter().any(|i| i == "*" || i == text);
        let is_namespace = target.group.is_empty() && target.resource == "namespaces";
        let is_cluster_scoped = is_namespace || target.namespace.is_empty();
        let resource = |(resource, subresource): &(String, String)| {
            (resource == "*" || resource == target.resource)
                && (subresource == "*" || subresource == target.subresource)
        };
        let in_scope = match self.scope {
            Scope::All => true,
            Scope::Namespaced => !is_cluster_scoped,
            Scope::Cluster => is_cluster_scoped,
        };
        in_scope
            && self.operations.intersects(Operations::of(target.operation))
            && is_or_all(&self.groups, target.group)
            && is_or_all(&self.versions, target.version)
            && self.resources.iter().any(resource)
            && (self.names.is_empty() || self.names.iter().any(|name| name == target.name))
    }
}

/// Which requests a configuration is about.
#[derive(Clone, Debug)]
pub(crate) struct Criteria {
    rules: Vec<Rule>,
    /// Whether requests match if there are no rules, as those of a binding do.
    matches_without_rules: bool,
    /// Those of all rules.
    operations: Operations,
    excluded: Vec<Rule>,
    /// Whether other versions of a resource are matched.
    equivalent: bool,
    namespace_selector: LabelSelector,
    object_selector: LabelSelector,
}

impl Criteria {
    /// The criteria of a webhook.
    pub(crate) fn of_webhook(webhook: &Value) -> Self {
        Self::new(webhook, "rules", false)
    }

    /// The criteria of a policy or a binding.
    pub(crate) fn of_policy(matched: &Value) -> Self {
        Self::new(matched, "resourceRules", true)
    }

    fn new(matched: &Value, rules: &str, matches_without_rules: bool) -> Self {
        let read = |list: &str| -> Vec<Rule> { matched.list(list).iter().map(Rule::of).collect() };
        let rules = read(rules);
        let operations = match rules.is_empty() && matches_without_rules {
            true => Operations::ALL,
            false => rules
                .iter()
                .map(|rule| rule.operations)
                .fold(Operations::default(), Operations::or),
        };
        Self {
            rules,
            matches_without_rules,
            operations,
            excluded: read("excludeResourceRules"),
            equivalent: matched.text("matchPolicy") != "Exact",
            namespace_selector: LabelSelector::of(matched.field("namespaceSelector")),
            object_selector: LabelSelector::of(matched.field("objectSelector")),
        }
    }

    /// The plural names of the resources that are matched; `None` if all may be.
    pub(super) fn resources(&self) -> Option<Vec<&str>> {
        if self.rules.is_empty() && self.matches_without_rules {
            return None;
        }
        let named = self.rules.iter().flat_map(|rule| &rule.resources);
        let named: Vec<&str> = named.map(|(resource, _)| resource.as_str()).collect();
        (!named.contains(&"*")).then_some(named)
    }

    /// Whether a request with this operation, and objects with these labels, may match. Cheaper
    /// than [`Self::matched`].
    pub(crate) fn may_match<'a>(
        &self,
        operation: &str,
        labels: impl Iterator<Item = &'a BTreeMap<String, String>>,
    ) -> bool {
        self.operations.intersects(Operations::of(operation)) && self.selects_object(labels)
    }

    /// The one of the targets that the rules match: the first is that of the request, the others
    /// are its equivalents in other versions.
    pub(crate) fn matched(&self, targets: &[RuleTarget<'_>]) -> Option<usize> {
        if self.any(&self.excluded, targets).is_some() {
            return None;
        }
        if self.rules.is_empty() && self.matches_without_rules {
            return Some(0);
        }
        self.any(&self.rules, targets)
    }

    fn any(&self, rules: &[Rule], targets: &[RuleTarget<'_>]) -> Option<usize> {
        let (own, others) = targets.split_first()?;
        if rules.iter().any(|rule| rule.matches(own)) {
            return Some(0);
        }
        if !self.equivalent {
            return None;
        }
        // Earlier rules come first, whatever they match.
        rules
            .iter()
            .find_map(|rule| others.iter().position(|target| rule.matches(target)))
            .map(|at| at + 1)
    }

    /// Whether matching needs the namespace of a request.
    pub(crate) fn selects_namespaces(&self) -> bool {
        !self.namespace_selector.is_empty()
    }

    /// Whether a namespace with these labels is selected.
    pub(crate) fn selects_namespace(&self, labels: &BTreeMap<String, String>) -> bool {
        self.namespace_selector.matches(labels)
    }

    /// Whether one of the objects of a request is selected.
    fn selects_object<'a>(
        &self,
        mut labels: impl Iterator<Item = &'a BTreeMap<String, String>>,
    ) -> bool {
        self.object_selector.is_empty() || labels.any(|labels| self.object_selector.matches(labels))
    }
}

/// A label selector of a configuration; `None` if it is invalid and selects nothing.
#[derive(Clone, Debug)]
pub(crate) struct LabelSelector(Option<Selector<'static>>);

impl LabelSelector {
    /// Reads a selector; one that is not there selects everything.
    pub(crate) fn of(selector: &Value) -> Self {
        if selector.is_null() {
            return Self(Some(Selector::of_labels(None)));
        }
        Self(Selector::read(Some(selector)).map(Selector::into_owned))
    }

    fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(Selector::is_empty)
    }

    /// Whether an object with these labels is selected.
    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        let selector = self.0.as_ref();
        selector.is_some_and(|selector| selector.matches_label(label))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target<'a>(operation: &'a str, version: &'a str, resource: &'a str) -> RuleTarget<'a> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        RuleTarget {
            operation,
            group: "apps",
            version,
            resource,
            subresource,
            namespace: "n",
            name: "a",
        }
    }

    fn rule(resources: Value, extra: Value) -> Value {
        let mut rule = json!({"operations": ["CREATE"], "apiGroups": ["apps"],
            "apiVersions": ["v1"], "resources": resources, "scope": "*"});
        for (key, value) in extra.as_object().into_iter().flatten() {
            rule[key] = value.clone();
        }
        rule
    }

    #[test]
    fn rules_match_operation_group_version_resource_and_scope() {
        let cases = [
            (rule(json!(["deployments"]), json!({})), "deployments", true),
            (
                rule(json!(["deployments"]), json!({})),
                "deployments/scale",
                false,
            ),
            (
                rule(json!(["deployments/*"]), json!({})),
                "deployments/scale",
                true,
            ),
            (
                rule(json!(["*/scale"]), json!({})),
                "deployments/scale",
                true,
            ),
            (rule(json!(["*"]), json!({})), "deployments", true),
            (rule(json!(["*/*"]), json!({})), "deployments", true),
            (
                rule(json!(["*"]), json!({"scope": "Cluster"})),
                "deployments",
                false,
            ),
            (
                rule(json!(["*"]), json!({"operations": ["UPDATE"]})),
                "deployments",
                false,
            ),
            (
                rule(json!(["*"]), json!({"operations": ["*"]})),
                "deployments",
                true,
            ),
            (
                rule(json!(["*"]), json!({"apiGroups": [""]})),
                "deployments",
                false,
            ),
        ];
        for (rule, resource, expected) in cases {
            let criteria = Criteria::of_webhook(&json!({ "rules": [rule] }));
            let found = criteria.matched(&[target("CREATE", "v1", resource)]);
            assert_eq!(found.is_some(), expected, "{rule} {resource}");
        }
    }

    #[test]
    fn equivalent_versions_match_unless_the_policy_is_exact() {
        let rules = json!([rule(json!(["deployments"]), json!({}))]);
        let targets = [
            target("CREATE", "v2", "deployments"),
            target("CREATE", "v1", "deployments"),
        ];
        let equivalent =
            Criteria::of_webhook(&json!({"rules": rules, "matchPolicy": "Equivalent"}));
        assert_eq!(equivalent.matched(&targets), Some(1));
        let exact = Criteria::of_webhook(&json!({"rules": rules, "matchPolicy": "Exact"}));
        assert_eq!(exact.matched(&targets), None);
    }

    #[test]
    fn excluded_rules_and_names_narrow_a_policy() {
        let all = rule(json!(["*"]), json!({}));
        let named = rule(json!(["deployments"]), json!({"resourceNames": ["b"]}));
        let check = |matched: Value| {
            Criteria::of_policy(&matched)
                .matched(&[target("CREATE", "v1", "deployments")])
                .is_some()
        };
        assert!(check(json!({ "resourceRules": [all] })));
        assert!(!check(json!({ "resourceRules": [named] })));
        let excluded = rule(json!(["deployments"]), json!({}));
        assert!(!check(
            json!({"resourceRules": [all], "excludeResourceRules": [excluded]})
        ));
        assert!(check(json!({})), "a binding without rules is about all");
        assert!(
            Criteria::of_webhook(&json!({}))
                .matched(&[target("CREATE", "v1", "x")])
                .is_none()
        );
    }

    #[test]
    fn selectors_select_labels() {
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let web = labels(&[("app", "web"), ("empty", "")]);
        let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, expected) in [
            (json!(null), true),
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "other"}}), false),
            (json!({"matchLabels": {"empty": ""}}), true),
            (json!({"matchLabels": {"absent": ""}}), false),
            (expression("app", "In", json!(["db", "web"])), true),
            (expression("app", "NotIn", json!(["db", "web"])), false),
            (expression("absent", "NotIn", json!(["db"])), true),
            (expression("empty", "In", json!([""])), true),
            (expression("empty", "NotIn", json!([""])), false),
            (expression("app", "Exists", json!([])), true),
            (expression("app", "DoesNotExist", json!([])), false),
            (expression("absent", "DoesNotExist", json!([])), true),
            (expression("app", "Unknown", json!([])), false),
            (expression("not a key", "NotIn", json!(["x"])), false),
        ] {
            let found = LabelSelector::of(&selector).matches(&web);
            assert_eq!(found, expected, "{selector}");
        }
    }
}
