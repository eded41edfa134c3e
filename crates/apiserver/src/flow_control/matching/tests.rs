//! Rules on generated requests, compared with what the API documents.

use serde_json::json;

use super::*;
use crate::entropy::Entropy;

/// A request in the terms of the transcription below.
struct Sample {
    user: User,
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    namespace: &'static str,
    path: Option<&'static str>,
}

impl Sample {
    fn attributes(&self) -> Attributes<'_> {
        let target = match self.path {
            Some(path) => Target::Path(path),
            None => Target::Resource {
                group: self.group,
                resource: self.resource,
                subresource: self.subresource,
                namespace: self.namespace,
                name: "",
            },
        };
        Attributes {
            user: &self.user,
            verb: self.verb,
            target,
        }
    }
}

struct Pick<'a>(&'a Entropy);

impl Pick<'_> {
    fn one<T: Copy>(&self, choices: &[T]) -> T {
        let index = self.0.below(choices.len() as u64);
        choices[usize::try_from(index).expect("an index")]
    }

    /// Some of the choices, or `*`.
    fn some(&self, choices: &[&'static str]) -> Value {
        match self.0.below(4) {
            0 => json!(["*"]),
            1 => json!([self.one(choices)]),
            2 => json!([self.one(choices), "*"]),
            _ => json!([self.one(choices), self.one(choices)]),
        }
    }
}

const USERS: [&str; 6] = [
    "alice",
    "system:serviceaccount:a:builder",
    "system:serviceaccount:a:other",
    "system:serviceaccount:ab:builder",
    "system:serviceaccount:a",
    "*",
];
const GROUPS: [&str; 3] = ["system:authenticated", "system:masters", "team"];
const VERBS: [&str; 3] = ["get", "list", "create"];
const API_GROUPS: [&str; 2] = ["", "apps"];
const RESOURCES: [&str; 4] = ["pods", "pods/status", "deployments", "deployments/scale"];
const NAMESPACES: [&str; 3] = ["a", "ab", "b"];
const PATHS: [&str; 7] = [
    "/",
    "/healthz",
    "/healthz/",
    "/healthz/*",
    "/healthz/ping",
    "/api*",
    "*",
];

fn subject(pick: &Pick<'_>) -> Value {
    match pick.0.below(4) {
        0 => json!({"kind": "User", "user": {"name": pick.one(&USERS)}}),
        1 => {
            json!({"kind": "Group", "group": {"name": pick.one(&["*", "team", "system:masters"])}})
        }
        2 => json!({"kind": "ServiceAccount", "serviceAccount": {
            "namespace": pick.one(&NAMESPACES), "name": pick.one(&["*", "builder", "other"])}}),
        _ => json!({"kind": "Group"}),
    }
}

fn rule(pick: &Pick<'_>) -> Value {
    json!({
        "subjects": [subject(pick), subject(pick)],
        "resourceRules": [{
            "verbs": pick.some(&VERBS), "apiGroups": pick.some(&API_GROUPS),
            "resources": pick.some(&RESOURCES), "namespaces": pick.some(&NAMESPACES),
            "clusterScope": pick.one(&[true, false]),
        }],
        "nonResourceRules": [{"verbs": pick.some(&VERBS), "nonResourceURLs": [pick.one(&PATHS), pick.one(&PATHS)]}],
    })
}

fn sample(pick: &Pick<'_>) -> Sample {
    let resource = pick.one(&["pods", "deployments"]);
    Sample {
        user: User {
            name: pick.one(&USERS).to_owned(),
            groups: vec![pick.one(&GROUPS).to_owned()],
            ..User::default()
        },
        verb: pick.one(&VERBS),
        group: pick.one(&API_GROUPS),
        resource,
        subresource: pick.one(&["", "", "status", "scale"]),
        namespace: pick.one(&["", "a", "ab", "b"]),
        path: pick.one(&[
            None,
            None,
            None,
            Some("/healthz"),
            Some("/healthz/ping"),
            Some("/healthzzz"),
            Some("/apis"),
            Some("/"),
        ]),
    }
}

/// The rules as the API documents them, on the JSON of the object.
fn documented(rule: &Value, request: &Sample) -> bool {
    let listed = |list: &Value, wanted: &str| {
        let items: Vec<&str> = list
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        items == ["*"] || items.contains(&wanted)
    };
    let subject = |subject: &Value| {
        let user = request.user.name.as_str();
        let name = |field: &str| subject[field]["name"].as_str().map(str::to_owned);
        match subject["kind"].as_str() {
            Some("User") => name("user").is_some_and(|name| name == "*" || name == user),
            Some("Group") => {
                name("group").is_some_and(|name| name == "*" || request.user.groups.contains(&name))
            }
            Some("ServiceAccount") => {
                let namespace = subject["serviceAccount"]["namespace"]
                    .as_str()
                    .unwrap_or_default();
                match name("serviceAccount").as_deref() {
                    Some("*") => user.starts_with(&format!("system:serviceaccount:{namespace}:")),
                    Some(name) => user == format!("system:serviceaccount:{namespace}:{name}"),
                    None => false,
                }
            }
            _ => false,
        }
    };
    let items = |field: &str| rule[field].as_array().cloned().unwrap_or_default();
    let resource = if request.subresource.is_empty() {
        request.resource.to_owned()
    } else {
        format!("{}/{}", request.resource, request.subresource)
    };
    let matches = match request.path {
        None => items("resourceRules").iter().any(|r| {
            listed(&r["verbs"], request.verb)
                && listed(&r["apiGroups"], request.group)
                && listed(&r["resources"], &resource)
                && if request.namespace.is_empty() {
                    r["clusterScope"] == true
                } else {
                    listed(&r["namespaces"], request.namespace)
                }
        }),
        Some(path) => items("nonResourceRules").iter().any(|r| {
            let covers = |url: &str| {
                let mut prefix = url.strip_suffix('*').unwrap_or(url).to_owned();
                if !prefix.ends_with('/') {
                    prefix.push('/');
                }
                url == "*" || url == path || path.starts_with(&prefix)
            };
            listed(&r["verbs"], request.verb)
                && r["nonResourceURLs"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .any(covers)
        }),
    };
    items("subjects").iter().any(subject) && matches
}

#[test]
fn rules_match_as_documented_on_generated_requests() {
    let entropy = Entropy::seeded(7);
    let pick = Pick(&entropy);
    let mut matched = 0;
    for _ in 0..1000 {
        let request = sample(&pick);
        for _ in 0..10 {
            let rule = rule(&pick);
            let found = Rule::read(&rule).matches(&request.attributes());
            let attributes = request.attributes();
            assert_eq!(found, documented(&rule, &request), "{rule} {attributes:?}");
            matched += usize::from(found);
        }
    }
    assert!(
        (500..9500).contains(&matched),
        "both outcomes occur: {matched}"
    );
}

#[test]
fn flows_are_distinguished_by_user_or_namespace() {
    let entropy = Entropy::seeded(1);
    let request = Sample {
        namespace: "a",
        path: None,
        ..sample(&Pick(&entropy))
    };
    let spec = |kind| json!({"distinguisherMethod": {"type": kind}});
    let of = |spec: &Value| {
        Distinguisher::read(spec)
            .of(&request.attributes())
            .to_owned()
    };
    assert_eq!(of(&spec("ByUser")), request.user.name);
    assert_eq!(of(&spec("ByNamespace")), "a");
    assert_eq!(of(&json!({})), "");
}
