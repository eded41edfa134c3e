//! Audit policies: which requests are recorded, and how much of them.
//! In: an `audit.k8s.io/v1` Policy in YAML or JSON. Out: the level and stages of a request.
//! Guarantees: the first rule that matches decides; a request that no rule matches is not recorded.
//! Mirrors `apiserver/pkg/audit/policy` and the validation of `apis/audit`.

use bellerophon_codec::decode::{self, Media};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{auth::User, http::request_info::RequestInfo};

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Level {
    None,
    Metadata,
    Request,
    RequestResponse,
}

/// When in the life of a request an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

/// A policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct Policy {
    api_version: String,
    kind: String,
    metadata: Value,
    rules: Vec<Rule>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: bool,
}

/// A rule. An empty list matches everything.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

/// Resources of a group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// The decision of a policy for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyDecision {
    pub(crate) level: Level,
    pub(crate) omit_stages: Vec<Stage>,
    pub(crate) omit_managed_fields: bool,
}

impl Policy {
    /// Parses a policy.
    ///
    /// # Errors
    /// A policy that is not valid; the text names the rule.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let read = decode::read(text.as_bytes(), Media::Yaml)?;
        let policy: Self =
            serde_json::from_value(Value::Object(read.object)).map_err(|e| e.to_string())?;
        if policy.api_version != "audit.k8s.io/v1" || policy.kind != "Policy" {
            return Err(format!(
                "expected a Policy of audit.k8s.io/v1, got {} of {}",
                policy.kind, policy.api_version
            ));
        }
        if policy.rules.is_empty() {
            return Err("the policy has no rules".to_owned());
        }
        for (i, rule) in policy.rules.iter().enumerate() {
            rule.validate()
                .map_err(|why| format!("rules[{i}]: {why}"))?;
        }
        Ok(policy)
    }

    /// The level and stages of a request.
    pub(crate) fn evaluate(&self, request: &RequestInfo, user: &User) -> PolicyDecision {
        match self.rules.iter().find(|rule| rule.matches(request, user)) {
            None => PolicyDecision {
                level: Level::None,
                omit_stages: self.omit_stages.clone(),
                omit_managed_fields: self.omit_managed_fields,
            },
            Some(rule) => PolicyDecision {
                level: rule.level,
                omit_stages: [self.omit_stages.as_slice(), &rule.omit_stages].concat(),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            },
        }
    }
}

impl Rule {
    fn validate(&self) -> Result<(), String> {
        let is_of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if is_of_resources && !self.non_resource_urls.is_empty() {
            return Err(
                "rules cannot apply to both regular resources and non-resource URLs".to_owned(),
            );
        }
        for url in &self.non_resource_urls {
            let inner = url.strip_suffix('*').unwrap_or(url);
            if url != "*" && (!url.starts_with('/') || inner.contains('*')) {
                return Err(format!(
                    "nonResourceURLs: {url:?} must be \"*\" or begin with /, with * at the end only"
                ));
            }
        }
        for group in &self.resources {
            if group.group.contains('/') {
                return Err(format!("resources: {:?} is no group", group.group));
            }
            if !group.resource_names.is_empty() && group.resources.is_empty() {
                return Err("resources: using resourceNames requires at least one resource".into());
            }
        }
        Ok(())
    }

    fn matches(&self, request: &RequestInfo, user: &User) -> bool {
        let has = |list: &[String], text: &str| list.is_empty() || list.iter().any(|x| x == text);
        let in_groups =
            self.user_groups.is_empty() || self.user_groups.iter().any(|group| user.is_in(group));
        if !has(&self.users, &user.name) || !in_groups || !has(&self.verbs, &request.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            let target = &request.resource;
            return request.is_resource()
                && has(&self.namespaces, &target.namespace)
                && (self.resources.is_empty()
                    || self.resources.iter().any(|group| group.matches(request)));
        }
        if !self.non_resource_urls.is_empty() {
            return !request.is_resource()
                && self
                    .non_resource_urls
                    .iter()
                    .any(|url| match url.strip_suffix('*') {
                        Some(prefix) => request.path.starts_with(prefix),
                        None => request.path == *url,
                    });
        }
        true
    }
}

impl GroupResources {
    fn matches(&self, request: &RequestInfo) -> bool {
        let target = &request.resource;
        if self.group != target.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !self.resource_names.contains(&target.name) {
            return false;
        }
        let combined = match target.subresource.as_str() {
            "" => target.resource.clone(),
            subresource => format!("{}/{subresource}", target.resource),
        };
        self.resources.iter().any(|pattern| {
            pattern == "*"
                || *pattern == combined
                || pattern.strip_prefix("*/").is_some_and(|subresource| {
                    !subresource.is_empty() && subresource == target.subresource
                })
                || pattern.strip_suffix("/*") == Some(&target.resource)
        })
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::http::{query::Query, route::Route};

    fn request(method: &str, path: &str) -> RequestInfo {
        let method: Method = method.parse().expect("a method");
        match Route::parse(path) {
            Route::Resource(resource) => {
                RequestInfo::of_resource(&method, &resource, &Query::default())
            }
            _ => RequestInfo::of_path(&method, path),
        }
    }

    fn level(rules: &str, method: &str, path: &str) -> Level {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
        let policy = Policy::parse(&text).expect(rules);
        let user = User {
            name: "ann".into(),
            groups: vec!["devs".into()],
            ..User::default()
        };
        policy.evaluate(&request(method, path), &user).level
    }

    #[test]
    fn first_matching_rule_decides() {
        let pods = "/api/v1/namespaces/a/pods";
        let log = "/api/v1/namespaces/a/pods/p/log";
        for (rules, method, path, expected) in [
            ("- level: Metadata", "GET", pods, Level::Metadata),
            (
                "- {level: Request, verbs: [list]}",
                "GET",
                pods,
                Level::Request,
            ),
            ("- {level: Request, verbs: [get]}", "GET", pods, Level::None),
            ("- {level: Request, users: [bob]}", "GET", pods, Level::None),
            (
                "- {level: Request, userGroups: [devs]}",
                "GET",
                pods,
                Level::Request,
            ),
            (
                "- {level: None, namespaces: [a]}\n- level: Request",
                "GET",
                pods,
                Level::None,
            ),
            (
                "- {level: Request, namespaces: [b]}",
                "GET",
                pods,
                Level::None,
            ),
            (
                "- {level: Request, resources: [{group: '', resources: [pods]}]}",
                "GET",
                log,
                Level::None,
            ),
            (
                "- {level: Request, resources: [{group: '', resources: ['pods/*']}]}",
                "GET",
                log,
                Level::Request,
            ),
            (
                "- {level: Request, resources: [{group: '', resources: ['*/log']}]}",
                "GET",
                log,
                Level::Request,
            ),
            (
                "- {level: Request, resources: [{group: apps}]}",
                "GET",
                pods,
                Level::None,
            ),
            (
                "- {level: Metadata, nonResourceURLs: ['/healthz*']}",
                "GET",
                "/healthz/ping",
                Level::Metadata,
            ),
            (
                "- {level: Metadata, nonResourceURLs: ['*']}",
                "GET",
                pods,
                Level::None,
            ),
        ] {
            assert_eq!(
                level(rules, method, path),
                expected,
                "{rules} {method} {path}"
            );
        }
    }

    #[test]
    fn stages_of_policy_and_rule_are_omitted() {
        let policy = Policy::parse(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
             omitManagedFields: true\nrules:\n- {level: Metadata, omitStages: [Panic]}",
        )
        .expect("a policy");
        let decision = policy.evaluate(&request("GET", "/version"), &User::default());
        assert_eq!(
            decision,
            PolicyDecision {
                level: Level::Metadata,
                omit_stages: vec![Stage::RequestReceived, Stage::Panic],
                omit_managed_fields: true,
            }
        );
    }

    #[test]
    fn invalid_policies_are_refused_with_their_rule() {
        let head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";
        for (text, expected) in [
            (head.to_owned(), "the policy has no rules"),
            (
                format!("{head}rules: [{{level: Loud}}]"),
                "unknown variant `Loud`",
            ),
            (
                format!("{head}rules: [{{level: None, namespaces: [a], nonResourceURLs: ['*']}}]"),
                "rules[0]: rules cannot apply to both",
            ),
            (
                format!("{head}rules: [{{level: None, nonResourceURLs: ['a']}}]"),
                "rules[0]: nonResourceURLs: \"a\" must be",
            ),
            (
                "apiVersion: v1\nkind: Policy\nrules: [{level: None}]".to_owned(),
                "expected a Policy of audit.k8s.io/v1",
            ),
        ] {
            let error = Policy::parse(&text).expect_err(&text);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
