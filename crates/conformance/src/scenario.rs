//! A scenario: requests in order, and the recorded response to each.
//! Input: one entry of a recording. Output: steps with exactly one action each.
//! Guarantees: an unknown key, and a step without an action, are errors.

use indexmap::IndexMap;
use serde::Deserialize;

use crate::json::Json;

/// Requests to a server, in order, in a separate namespace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What the scenario shows, as a sentence. Unique within its file.
    pub name: String,
    /// Whether it does without the namespace `{ns}` and its service account.
    #[serde(default)]
    pub(crate) no_namespace: bool,
    pub(crate) steps: Vec<Step>,
}

/// Whether others may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It reads and changes only objects with its own namespace or id.
    Own,
    /// It reads or changes shared objects: policies, defaults, lists of the whole cluster.
    Cluster,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct Step {
    pub(crate) action: Action,
    pub(crate) headers: IndexMap<String, Option<String>>,
    pub(crate) comparison: Comparison,
}

/// The expected response, and which fields of it are compared.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) expect: Json,
    /// The paths of the body that alone count, if only some do.
    pub(crate) only: Option<Vec<String>>,
    /// The paths of the answer that do not count.
    pub(crate) ignore: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A request that is answered once.
    Request(Box<RequestStep>),
    /// A watch that is read in the background under this name.
    Watch { name: String, path: String },
    /// What the watch of this name has seen.
    Collect {
        name: String,
        events: usize,
        seconds: f64,
        ended: bool,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct RequestStep {
    pub(crate) method: String,
    pub(crate) path: String,
    /// A text is sent as it is, anything else as JSON.
    pub(crate) body: Option<Json>,
    pub(crate) content_type: String,
    pub(crate) big: Option<Big>,
    pub(crate) repeat_until: Option<Until>,
    /// Names for later steps, and where in the body their values are.
    pub(crate) save: IndexMap<String, String>,
    /// Names for later steps, and the header their values are in.
    pub(crate) save_header: IndexMap<String, String>,
}

/// A long text put into the body, too long to be worth recording.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Big {
    pub(crate) path: String,
    pub(crate) bytes: usize,
}

/// Repeat the request until the body has this value at this path; null also means no value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Until {
    pub(crate) path: String,
    pub(crate) value: Json,
}

/// A step as recordings spell it: all keys side by side.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(rename = "do")]
    method: Option<String>,
    watch: Option<String>,
    collect: Option<String>,
    path: Option<String>,
    #[serde(default)]
    headers: IndexMap<String, Option<String>>,
    body: Option<Json>,
    #[serde(rename = "type")]
    content_type: Option<String>,
    big: Option<Big>,
    repeat_until: Option<Until>,
    #[serde(default)]
    save: IndexMap<String, String>,
    #[serde(default)]
    save_header: IndexMap<String, String>,
    events: Option<usize>,
    seconds: Option<f64>,
    #[serde(default)]
    ended: bool,
    expect: Json,
    only: Option<Vec<String>>,
    #[serde(default)]
    ignore: Vec<String>,
}

/// The default time that a collection waits for its events.
const COLLECT_SECONDS: f64 = 3.0;

impl TryFrom<Written> for Step {
    type Error = String;

    fn try_from(step: Written) -> Result<Self, String> {
        let path = step
            .path
            .ok_or_else(|| "a step with a request needs a path".to_owned());
        let action = match (step.method, step.watch, step.collect) {
            (Some(method), None, None) => Action::Request(Box::new(RequestStep {
                method,
                path: path?,
                body: step.body,
                content_type: step
                    .content_type
                    .unwrap_or_else(|| "application/json".to_owned()),
                big: step.big,
                repeat_until: step.repeat_until,
                save: step.save,
                save_header: step.save_header,
            })),
            (None, Some(name), None) => Action::Watch { name, path: path? },
            (None, None, Some(name)) => Action::Collect {
                name,
                events: step.events.unwrap_or(1),
                seconds: step.seconds.unwrap_or(COLLECT_SECONDS),
                ended: step.ended,
            },
            _ => return Err("a step has exactly one of `do`, `watch` and `collect`".to_owned()),
        };
        let comparison = Comparison {
            expect: step.expect,
            only: step.only,
            ignore: step.ignore,
        };
        Ok(Self {
            action,
            headers: step.headers,
            comparison,
        })
    }
}

/// Resources whose objects change how others are answered.
const SHARED: &[&str] = &[
    "/admissionregistration.k8s.io/",
    "/apiregistration.k8s.io/",
    "/rbac.authorization.k8s.io/",
    "/storageclasses",
    "/priorityclasses",
    "/ingressclasses",
];

impl Scenario {
    /// Whether it sends a request without credentials, which a service in this process may
    /// attribute to its administrator.
    pub fn is_anonymous(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step.headers.get("Authorization"), Some(None)))
    }

    /// Which objects it may change, by the paths of its requests.
    pub fn reach(&self) -> Reach {
        let alone = self.steps.iter().any(|step| match &step.action {
            // What is created has the id of the scenario in its body, even where the path has none.
            Action::Request(request) => {
                is_shared(&request.path) || (request.method != "POST" && is_common(&request.path))
            }
            Action::Watch { path, .. } => is_shared(path) || is_common(path),
            Action::Collect { .. } => false,
        });
        if alone { Reach::Cluster } else { Reach::Own }
    }
}

fn is_shared(path: &str) -> bool {
    SHARED.iter().any(|resource| path.contains(resource))
}

/// Whether the path has nothing that belongs to one scenario alone.
fn is_common(path: &str) -> bool {
    !path.contains('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(steps: &str) -> Result<Scenario, serde_json::Error> {
        serde_json::from_str(&format!(r#"{{"name":"n","steps":[{steps}]}}"#))
    }

    #[test]
    fn misspelt_steps_are_refused() {
        let cases = [
            (r#"{"do":"GET","path":"/","expect":{}}"#, true),
            (r#"{"watch":"w","path":"/","expect":{}}"#, true),
            (r#"{"collect":"w","expect":{}}"#, true),
            (r#"{"do":"GET","expect":{}}"#, false),
            (r#"{"do":"GET","watch":"w","path":"/","expect":{}}"#, false),
            (r#"{"path":"/","expect":{}}"#, false),
            (r#"{"do":"GET","path":"/"}"#, false),
            (r#"{"do":"GET","path":"/","expect":{},"ignroe":[]}"#, false),
        ];
        for (steps, accepted) in cases {
            assert_eq!(scenario(steps).is_ok(), accepted, "{steps}");
        }
    }

    #[test]
    fn scenarios_of_shared_objects_run_alone() {
        let cases = [
            ("GET", "/api/v1/namespaces/{ns}/pods", Reach::Own),
            ("POST", "/api/v1/nodes", Reach::Own),
            ("GET", "/api/v1/nodes/n-{id}", Reach::Own),
            ("GET", "/api/v1/nodes", Reach::Cluster),
            ("GET", "/apis", Reach::Cluster),
            ("DELETE", "/api/v1/namespaces/default", Reach::Cluster),
            (
                "POST",
                "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
                Reach::Cluster,
            ),
            (
                "POST",
                "/apis/storage.k8s.io/v1/storageclasses",
                Reach::Cluster,
            ),
        ];
        for (method, path, reach) in cases {
            let scenario = scenario(&format!(
                r#"{{"do":"{method}","path":"{path}","expect":{{}}}}"#
            ))
            .expect("the step is sound");
            assert_eq!(scenario.reach(), reach, "{method} {path}");
        }
    }
}
