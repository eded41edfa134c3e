//! The choreography around one object: command → event → controller → command.
//! In: what the loops of a cluster record, in order. Out: the lines that belong to the story of some objects, or of all.
//! Holds: an event is told once, however many noticed it; memory is bounded, and what is forgotten is at worst told twice.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    hash::Hash,
    sync::Arc,
};

use bellerophon::{ObjectKey, TraceEvent};

/// How many objects, events and wakings a story remembers of each.
const REMEMBERED_MAX: usize = 20_000;

/// How many records a story looks back for what belongs to it after all.
const HELD_MAX: usize = 512;

/// Short forms of kinds that people type, and the kinds.
const SHORT: [(&str, &str); 13] = [
    ("cj", "cronjob"),
    ("cm", "configmap"),
    ("crd", "customresourcedefinition"),
    ("deploy", "deployment"),
    ("ds", "daemonset"),
    ("ep", "endpoints"),
    ("no", "node"),
    ("ns", "namespace"),
    ("po", "pod"),
    ("rs", "replicaset"),
    ("sa", "serviceaccount"),
    ("sts", "statefulset"),
    ("svc", "service"),
];

/// An object as people name it: `deployment/web`, `deploy/web`, or `web` of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    kind: Option<String>,
    name: String,
    namespace: String,
}

impl Subject {
    /// Reads `KIND/NAME` or `NAME`.
    pub(crate) fn parse(text: &str, namespace: &str) -> Self {
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) => (Some(kind.to_lowercase()), name),
            None => (None, text),
        };
        let long = |kind: String| {
            SHORT
                .iter()
                .find(|(short, _)| *short == kind)
                .map_or(kind, |(_, long)| (*long).to_owned())
        };
        Self {
            kind: kind.map(long),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
        }
    }

    /// Whether an object is meant. Kinds are recorded as `Deployment.apps`.
    fn is(&self, kind: &str, key: &ObjectKey) -> bool {
        let singular = kind.split('.').next().unwrap_or_default().to_lowercase();
        let same_kind = self.kind.as_ref().is_none_or(|wanted| {
            let plural = wanted.strip_suffix('s').is_some_and(|stem| {
                stem == singular || wanted.strip_suffix("es") == Some(&singular)
            });
            *wanted == singular || plural
        });
        same_kind
            && key.name() == self.name
            && key
                .namespace()
                .is_none_or(|namespace| namespace == self.namespace)
    }
}

/// One line of a story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Somebody who is no controller asked for something.
    Command(String),
    /// The server told of a change.
    Event(String),
    /// A controller was woken by it.
    Wakes(String),
    /// What a controller did then.
    Writes(String),
    /// A controller could not do what it wanted, and tries again.
    Fails(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(text) => write!(f, "command {text}"),
            Self::Event(text) => write!(f, "event   {text}"),
            Self::Wakes(text) => write!(f, "  wakes   {text}"),
            Self::Writes(text) => write!(f, "    writes  {text}"),
            Self::Fails(text) => write!(f, "    fails   {text}"),
        }
    }
}

/// A set that forgets its oldest members.
#[derive(Debug)]
struct Recent<T> {
    known: HashSet<T>,
    /// The same, oldest first.
    order: VecDeque<T>,
}

impl<T: Clone + Eq + Hash> Recent<T> {
    fn new() -> Self {
        Self {
            known: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// Whether it is new.
    fn insert(&mut self, member: T) -> bool {
        if !self.known.insert(member.clone()) {
            return false;
        }
        self.order.push_back(member);
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }

    fn contains(&self, member: &T) -> bool {
        self.known.contains(member)
    }
}

type Object = (Arc<str>, ObjectKey);

/// Picks what belongs to the story of some objects out of everything that happens.
#[derive(Debug)]
pub(crate) struct Story {
    /// Empty for everything.
    subjects: Vec<Subject>,
    /// Objects that were written because of a subject.
    related: Recent<Object>,
    /// Controllers that were woken by a related object, with the key they were woken for.
    woken: Recent<Object>,
    /// Changes that were told, with their version.
    told: Recent<(Object, Option<String>)>,
    /// What belonged to nothing when it happened, oldest first: a watch can be faster than the answer to the write that
    /// makes its object part of the story.
    held: VecDeque<TraceEvent>,
}

impl Story {
    /// The story of an object, or of everything.
    pub(crate) fn of(subjects: Vec<Subject>) -> Self {
        Self {
            subjects,
            related: Recent::new(),
            woken: Recent::new(),
            told: Recent::new(),
            held: VecDeque::new(),
        }
    }

    /// What there is to tell now that this happened.
    pub(crate) fn tell(&mut self, event: &TraceEvent) -> Vec<Line> {
        let known = self.related.order.len();
        let mut lines: Vec<_> = self.line(event).into_iter().collect();
        if lines.is_empty() {
            self.hold(event);
        }
        if self.related.order.len() > known {
            for held in std::mem::take(&mut self.held) {
                lines.extend(self.tell(&held));
            }
        }
        lines
    }

    fn hold(&mut self, event: &TraceEvent) {
        if !self.subjects.is_empty() && belongs_late(event) {
            self.held.push_back(event.clone());
            if self.held.len() > HELD_MAX {
                self.held.pop_front();
            }
        }
    }

    fn line(&mut self, event: &TraceEvent) -> Option<Line> {
        let at = |version: &Option<String>| {
            version
                .as_ref()
                .map_or(String::new(), |version| format!(" at {version}"))
        };
        match event {
            TraceEvent::Noticed {
                kind,
                key,
                resource_version,
                event,
            } => {
                let object = (kind.clone(), key.clone());
                let new =
                    self.belongs(&object) && self.told.insert((object, resource_version.clone()));
                new.then(|| {
                    Line::Event(format!(
                        "{kind} {key} {}{}",
                        event.as_str(),
                        at(resource_version)
                    ))
                })
            }
            TraceEvent::Enqueued {
                controller,
                key,
                because_kind,
                because_key,
                because_version,
            } => {
                let belongs = self.belongs(&(because_kind.clone(), because_key.clone()));
                let new = belongs && self.woken.insert((controller.clone(), key.clone()));
                let because = || format!("{because_kind} {because_key}{}", at(because_version));
                new.then(|| {
                    Line::Wakes(format!("{controller} for {key}, because of {}", because()))
                })
            }
            TraceEvent::Wrote {
                controller,
                reconciling,
                kind,
                key,
                resource_version,
            } => {
                let object = (kind.clone(), key.clone());
                if !self
                    .woken
                    .contains(&(controller.clone(), reconciling.clone()))
                    && !self.belongs(&object)
                {
                    return None;
                }
                self.related.insert(object);
                let what = if resource_version.is_some() {
                    ""
                } else {
                    "deletion of "
                };
                Some(Line::Writes(format!(
                    "{controller}: {what}{kind} {key}{}",
                    at(resource_version)
                )))
            }
            TraceEvent::Called {
                controller,
                reconciling,
                kind,
                key,
                what,
            } => {
                let woken = self
                    .woken
                    .contains(&(controller.clone(), reconciling.clone()));
                let belongs = woken || self.belongs(&(kind.clone(), key.clone()));
                belongs.then(|| Line::Writes(format!("{controller}: {what} of {kind} {key}")))
            }
            // A cache is told before the controllers, and of what concerns none of them.
            TraceEvent::Listed { .. } | TraceEvent::Cached { .. } | TraceEvent::Started { .. } => {
                None
            }
            TraceEvent::Ended {
                controller,
                key,
                result,
                took,
            } => {
                let woken = (controller.clone(), key.clone());
                let belongs = self.woken.contains(&woken);
                self.woken.forget(&woken);
                (belongs && *result == "error")
                    .then(|| Line::Fails(format!("{controller} for {key} after {took:?}")))
            }
        }
    }

    fn belongs(&self, object: &Object) -> bool {
        let is_meant = self.subjects.is_empty()
            || self
                .subjects
                .iter()
                .any(|subject| subject.is(&object.0, &object.1));
        is_meant || self.related.contains(object)
    }
}

/// Whether it can turn out to belong to a story after it happened.
fn belongs_late(event: &TraceEvent) -> bool {
    use TraceEvent::{Called, Enqueued, Noticed, Wrote};
    matches!(
        event,
        Noticed { .. } | Enqueued { .. } | Wrote { .. } | Called { .. }
    )
}

impl<T: Clone + Eq + Hash> Recent<T> {
    /// Forgets one now; its place in the order is freed when its turn comes.
    fn forget(&mut self, member: &T) {
        self.known.remove(member);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bellerophon::CauseEvent;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("default", name)
    }

    fn noticed(kind: &str, name: &str, version: &str) -> TraceEvent {
        TraceEvent::Noticed {
            kind: kind.into(),
            key: key(name),
            resource_version: Some(version.into()),
            event: CauseEvent::Added,
        }
    }

    fn enqueued(controller: &str, name: &str, because: (&str, &str)) -> TraceEvent {
        let (because_kind, because_key) = (because.0.into(), key(because.1));
        TraceEvent::Enqueued {
            controller: controller.into(),
            key: key(name),
            because_kind,
            because_key,
            because_version: None,
        }
    }

    fn wrote(
        controller: &str,
        for_: &str,
        kind: &str,
        name: &str,
        version: Option<&str>,
    ) -> TraceEvent {
        let resource_version = version.map(str::to_owned);
        TraceEvent::Wrote {
            controller: controller.into(),
            reconciling: key(for_),
            kind: kind.into(),
            key: key(name),
            resource_version,
        }
    }

    fn ended(controller: &str, name: &str, result: &'static str) -> TraceEvent {
        TraceEvent::Ended {
            controller: controller.into(),
            key: key(name),
            result,
            took: Duration::from_millis(2),
        }
    }

    fn told(subject: Option<&str>, events: &[TraceEvent]) -> Vec<String> {
        let mut story = Story::of(
            subject
                .map(|text| Subject::parse(text, "default"))
                .into_iter()
                .collect(),
        );
        events
            .iter()
            .flat_map(|event| story.tell(event))
            .map(|line| line.to_string().trim().to_owned())
            .collect()
    }

    #[test]
    fn story_follows_what_was_written_because_of_its_subject() {
        let events = [
            noticed("Deployment.apps", "web", "1"),
            noticed("Deployment.apps", "web", "1"),
            noticed("Deployment.apps", "other", "2"),
            enqueued("deployment", "web", ("Deployment.apps", "web")),
            enqueued("deployment", "other", ("Deployment.apps", "other")),
            wrote(
                "deployment",
                "other",
                "ReplicaSet.apps",
                "other-1",
                Some("3"),
            ),
            wrote("deployment", "web", "ReplicaSet.apps", "web-1", Some("4")),
            ended("deployment", "web", "success"),
            noticed("ReplicaSet.apps", "web-1", "4"),
            enqueued("replicaset", "web-1", ("ReplicaSet.apps", "web-1")),
            wrote("replicaset", "web-1", "Pod", "web-1-a", Some("5")),
            ended("replicaset", "web-1", "error"),
            wrote("deployment", "web", "Deployment.apps", "web", Some("6")),
            wrote("gc", "web-1-a", "Pod", "web-1-a", None),
        ];
        let story = [
            "event   Deployment.apps default/web added at 1",
            "wakes   deployment for default/web, because of Deployment.apps default/web",
            "writes  deployment: ReplicaSet.apps default/web-1 at 4",
            "event   ReplicaSet.apps default/web-1 added at 4",
            "wakes   replicaset for default/web-1, because of ReplicaSet.apps default/web-1",
            "writes  replicaset: Pod default/web-1-a at 5",
            "fails   replicaset for default/web-1 after 2ms",
            "writes  deployment: Deployment.apps default/web at 6",
            "writes  gc: deletion of Pod default/web-1-a",
        ];
        assert_eq!(told(Some("deploy/web"), &events), story);
        assert_eq!(told(None, &events).len(), story.len() + 3, "all of it");
        assert_eq!(told(Some("pod/web"), &events), [""; 0]);
    }

    #[test]
    fn binding_belongs_to_the_story_of_its_pod() {
        let called = |name: &str| TraceEvent::Called {
            controller: "scheduler".into(),
            reconciling: key(name),
            kind: "Pod".into(),
            key: key(name),
            what: "binding to node-1".into(),
        };
        let events = [noticed("Pod", "web", "1"), called("web"), called("other")];
        assert_eq!(
            told(Some("pod/web"), &events),
            [
                "event   Pod default/web added at 1",
                "writes  scheduler: binding to node-1 of Pod default/web"
            ]
        );
    }

    #[test]
    fn event_that_outran_its_write_is_told_after_it() {
        let events = [
            noticed("Deployment.apps", "web", "1"),
            enqueued("deployment", "web", ("Deployment.apps", "web")),
            noticed("ReplicaSet.apps", "web-1", "2"),
            enqueued("replicaset", "web-1", ("ReplicaSet.apps", "web-1")),
            wrote("replicaset", "web-1", "Pod", "web-1-a", Some("3")),
            wrote("deployment", "web", "ReplicaSet.apps", "web-1", Some("2")),
        ];
        let story = told(Some("deployment/web"), &events);
        assert_eq!(story.len(), events.len(), "{story:#?}");
        assert_eq!(
            story[2],
            "writes  deployment: ReplicaSet.apps default/web-1 at 2"
        );
        assert_eq!(story[5], "writes  replicaset: Pod default/web-1-a at 3");
    }

    #[test]
    fn subjects_are_named_as_people_name_them() {
        let cases = [
            ("web", "Pod", true),
            ("pod/web", "Pod", true),
            ("pods/web", "Pod", true),
            ("po/web", "Pod", true),
            ("Deployment/web", "Deployment.apps", true),
            ("ingresses/web", "Ingress.networking.k8s.io", true),
            ("svc/web", "Service", true),
            ("pod/web", "PodDisruptionBudget.policy", false),
            ("pod/other", "Pod", false),
        ];
        for (text, kind, wanted) in cases {
            assert_eq!(
                Subject::parse(text, "default").is(kind, &key("web")),
                wanted,
                "{text} of {kind}"
            );
        }
        assert!(
            !Subject::parse("pod/web", "team-a").is("Pod", &key("web")),
            "elsewhere"
        );
        assert!(
            Subject::parse("node/n", "default").is("Node", &ObjectKey::cluster("n")),
            "cluster-scoped"
        );
    }

    #[test]
    fn memory_of_a_story_is_bounded() {
        let mut recent = Recent::new();
        for number in 0..REMEMBERED_MAX + 10 {
            assert!(recent.insert(number));
            recent.forget(&number);
        }
        assert!(recent.order.len() == REMEMBERED_MAX && recent.known.is_empty());
    }
}
