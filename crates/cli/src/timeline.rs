//! The timeline of objects: which watch event enqueued which controller, and what it wrote.
//!
//! Input: the trace events of a cluster, in order. Output: the entries of some objects and of all
//! objects that controllers wrote because of them.
//!
//! Guarantees: an event is printed once, however many controllers received it; memory is bounded,
//! and an entry may be printed twice after its first occurrence was evicted.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    hash::Hash,
    sync::Arc,
};

use bellerophon::ObjectKey;
use bellerophon::trace::{AcceptedWrite, TraceEvent};

/// The maximum number of members of each set.
const MEMBERS_MAX: usize = 20_000;

/// The maximum number of deferred trace events.
const DEFERRED_MAX: usize = 512;

/// The short names of kubectl, and their kinds.
const SHORT_NAMES: [(&str, &str); 13] = [
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

/// An object as on kubectl's command line: `deployment/web`, `deploy/web`, or `web` of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectSelector {
    kind: Option<String>,
    name: String,
    namespace: String,
}

impl ObjectSelector {
    /// Parses `KIND/NAME` or `NAME`.
    pub(crate) fn parse(text: &str, namespace: &str) -> Self {
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) => (Some(kind.to_lowercase()), name),
            None => (None, text),
        };
        let full_name = |kind: String| {
            SHORT_NAMES
                .iter()
                .find(|(short, _)| *short == kind)
                .map_or(kind, |(_, full)| (*full).to_owned())
        };
        Self {
            kind: kind.map(full_name),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
        }
    }

    /// Whether an object matches. Trace events have kinds such as `Deployment.apps`.
    pub(crate) fn matches(&self, kind: &str, key: &ObjectKey) -> bool {
        // Users write `deployments/web` or `deployment/web`, as for kubectl. Discovery would need a
        // request.
        let singular = kind.split('.').next().unwrap_or_default().to_lowercase();
        let matches_kind = self.kind.as_ref().is_none_or(|selected| {
            let is_plural = selected.strip_suffix('s').is_some_and(|stem| {
                stem == singular || selected.strip_suffix("es") == Some(&singular)
            });
            *selected == singular || is_plural
        });
        matches_kind
            && key.name() == self.name
            && key
                .namespace()
                .is_none_or(|namespace| namespace == self.namespace)
    }
}

/// One line of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TimelineEntry {
    /// A client that is not a controller made a request.
    Command(String),
    /// A watch event of an object.
    Event(String),
    /// An event enqueued a key of a controller.
    Enqueues(String),
    /// A controller wrote an object.
    Writes(String),
    /// A reconcile failed and is retried.
    Fails(String),
}

impl fmt::Display for TimelineEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(text) => write!(f, "command {text}"),
            Self::Event(text) => write!(f, "event   {text}"),
            Self::Enqueues(text) => write!(f, "  enqueues {text}"),
            Self::Writes(text) => write!(f, "    writes  {text}"),
            Self::Fails(text) => write!(f, "    fails   {text}"),
        }
    }
}

/// A set that evicts its oldest members.
#[derive(Debug)]
struct BoundedSet<T> {
    members: HashSet<T>,
    /// Insertions, oldest first. Invariant: every member is in it; removed members may be too.
    insertions: VecDeque<T>,
}

impl<T: Clone + Eq + Hash> BoundedSet<T> {
    fn new() -> Self {
        Self {
            members: HashSet::new(),
            insertions: VecDeque::new(),
        }
    }

    /// Inserts a member. Returns whether it is new.
    fn insert(&mut self, member: T) -> bool {
        if !self.members.insert(member.clone()) {
            return false;
        }
        self.insertions.push_back(member);
        if self.insertions.len() > MEMBERS_MAX
            && let Some(oldest) = self.insertions.pop_front()
        {
            self.members.remove(&oldest);
        }
        true
    }

    fn contains(&self, member: &T) -> bool {
        self.members.contains(member)
    }

    /// Removes a member. Its insertion is removed once it is the oldest.
    fn remove(&mut self, member: &T) {
        self.members.remove(member);
    }

    /// The number of insertions that are not evicted.
    fn insertions(&self) -> usize {
        self.insertions.len()
    }
}

/// A kind and a key; or a controller and the key it reconciles.
type KindAndKey = (Arc<str>, ObjectKey);

/// Selects the entries of some objects from all trace events.
#[derive(Debug)]
pub(crate) struct Timeline {
    /// Empty for all objects.
    selectors: Vec<ObjectSelector>,
    /// Objects that were written because of a selected object.
    related: BoundedSet<KindAndKey>,
    /// Controllers with a key that a selected or related object enqueued.
    enqueued: BoundedSet<KindAndKey>,
    /// Events that were printed, with their resource version.
    printed: BoundedSet<(KindAndKey, Option<String>)>,
    /// Trace events of objects that are not selected or related so far, oldest first: a watch event
    /// can precede the response to the write that makes its object related.
    deferred: VecDeque<TraceEvent>,
}

impl Timeline {
    /// The timeline of these objects, or of all if there are none.
    pub(crate) fn new(selectors: Vec<ObjectSelector>) -> Self {
        Self {
            selectors,
            related: BoundedSet::new(),
            enqueued: BoundedSet::new(),
            printed: BoundedSet::new(),
            deferred: VecDeque::new(),
        }
    }

    /// The entries to print after a trace event: its own, and those of deferred events of an object
    /// that it makes related.
    pub(crate) fn add(&mut self, event: &TraceEvent) -> Vec<TimelineEntry> {
        let related_before = self.related.insertions();
        let mut entries: Vec<_> = self.entry(event).into_iter().collect();
        if entries.is_empty() {
            self.defer(event);
        }
        // A write has made another object related, whose earlier events are now part of the
        // timeline.
        if self.related.insertions() > related_before {
            for deferred in std::mem::take(&mut self.deferred) {
                entries.extend(self.add(&deferred));
            }
        }
        entries
    }

    fn defer(&mut self, event: &TraceEvent) {
        if !self.selectors.is_empty() && can_become_related(event) {
            self.deferred.push_back(event.clone());
            if self.deferred.len() > DEFERRED_MAX {
                self.deferred.pop_front();
            }
        }
    }

    fn entry(&mut self, event: &TraceEvent) -> Option<TimelineEntry> {
        match event {
            TraceEvent::Accepted(write) => self.command(write),
            TraceEvent::Delivered {
                kind,
                key,
                resource_version,
                event,
            } => {
                let object = (kind.clone(), key.clone());
                if !self.is_related(&object)
                    || !self.printed.insert((object, resource_version.clone()))
                {
                    return None;
                }
                let event = event.as_str();
                let version = at_version(resource_version);
                Some(TimelineEntry::Event(format!(
                    "{kind} {key} {event}{version}"
                )))
            }
            TraceEvent::Enqueued {
                controller,
                key,
                cause_kind,
                cause_key,
                cause_version,
            } => {
                let cause = (cause_kind.clone(), cause_key.clone());
                if !self.is_related(&cause)
                    || !self.enqueued.insert((controller.clone(), key.clone()))
                {
                    return None;
                }
                let version = at_version(cause_version);
                Some(TimelineEntry::Enqueues(format!(
                    "{controller} for {key}, because of {cause_kind} {cause_key}{version}"
                )))
            }
            TraceEvent::Wrote {
                controller,
                reconciling,
                kind,
                key,
                resource_version,
            } => {
                let object = (kind.clone(), key.clone());
                if !self.is_enqueued(controller, reconciling) && !self.is_related(&object) {
                    return None;
                }
                self.related.insert(object);
                let version = at_version(resource_version);
                let deletion = match resource_version {
                    Some(_) => "",
                    None => "deletion of ",
                };
                Some(TimelineEntry::Writes(format!(
                    "{controller}: {deletion}{kind} {key}{version}"
                )))
            }
            TraceEvent::SubresourceWritten {
                controller,
                reconciling,
                kind,
                key,
                subresource,
            } => {
                let object = (kind.clone(), key.clone());
                let is_related =
                    self.is_enqueued(controller, reconciling) || self.is_related(&object);
                is_related.then(|| {
                    TimelineEntry::Writes(format!("{controller}: {subresource} of {kind} {key}"))
                })
            }
            // Informers record every event of their cache, whether a controller handles it or not.
            TraceEvent::Listed { .. } | TraceEvent::Cached { .. } | TraceEvent::Started { .. } => {
                None
            }
            TraceEvent::Finished {
                controller,
                key,
                result,
                took,
                ..
            } => {
                let is_related = self.is_enqueued(controller, key);
                // Writes of later reconciles belong to the timeline only if a related object
                // enqueued them again.
                self.enqueued.remove(&(controller.clone(), key.clone()));
                (is_related && *result == "error")
                    .then(|| TimelineEntry::Fails(format!("{controller} for {key} after {took:?}")))
            }
        }
    }

    /// The command of a client outside of this process. Writes of controllers have separate
    /// entries.
    fn command(&self, write: &AcceptedWrite) -> Option<TimelineEntry> {
        let attributes = &write.attributes;
        let object = (attributes.kind.clone(), write.key.clone());
        (!attributes.is_in_process && self.is_related(&object))
            .then(|| TimelineEntry::Command(write.to_string()))
    }

    fn is_enqueued(&self, controller: &Arc<str>, key: &ObjectKey) -> bool {
        self.enqueued.contains(&(controller.clone(), key.clone()))
    }

    /// Whether an object is selected, or was written because of a selected one.
    fn is_related(&self, object: &KindAndKey) -> bool {
        let (kind, key) = object;
        self.selectors.is_empty()
            || self
                .selectors
                .iter()
                .any(|selector| selector.matches(kind, key))
            || self.related.contains(object)
    }
}

fn at_version(version: &Option<String>) -> String {
    match version {
        Some(version) => format!(" at {version}"),
        None => String::new(),
    }
}

/// Whether the object of a trace event can become related after the event.
fn can_become_related(event: &TraceEvent) -> bool {
    use TraceEvent::{Delivered, Enqueued, SubresourceWritten, Wrote};
    matches!(
        event,
        Delivered { .. } | Enqueued { .. } | Wrote { .. } | SubresourceWritten { .. }
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bellerophon::queue::CauseEvent;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("default", name)
    }

    fn noticed(kind: &str, name: &str, version: &str) -> TraceEvent {
        TraceEvent::Delivered {
            kind: kind.into(),
            key: key(name),
            resource_version: Some(version.into()),
            event: CauseEvent::Added,
        }
    }

    fn enqueued(controller: &str, name: &str, cause: (&str, &str)) -> TraceEvent {
        let (kind, cause_name) = cause;
        TraceEvent::Enqueued {
            controller: controller.into(),
            key: key(name),
            cause_kind: kind.into(),
            cause_key: key(cause_name),
            cause_version: None,
        }
    }

    fn wrote(
        controller: &str,
        reconciling: &str,
        kind: &str,
        name: &str,
        version: Option<&str>,
    ) -> TraceEvent {
        TraceEvent::Wrote {
            controller: controller.into(),
            reconciling: key(reconciling),
            kind: kind.into(),
            key: key(name),
            resource_version: version.map(str::to_owned),
        }
    }

    fn ended(controller: &str, name: &str, result: &'static str) -> TraceEvent {
        TraceEvent::Finished {
            controller: controller.into(),
            key: key(name),
            result,
            took: Duration::from_millis(2),
            requeue_after: None,
            error: None,
        }
    }

    /// The lines of a timeline of one object, or of all.
    fn lines(selector: Option<&str>, events: &[TraceEvent]) -> Vec<String> {
        let selectors = selector
            .map(|text| ObjectSelector::parse(text, "default"))
            .into_iter()
            .collect();
        let mut timeline = Timeline::new(selectors);
        events
            .iter()
            .flat_map(|event| timeline.add(event))
            .map(|entry| entry.to_string().trim().to_owned())
            .collect()
    }

    #[test]
    fn timeline_follows_writes_caused_by_the_selected_object() {
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
        let expected = [
            "event   Deployment.apps default/web added at 1",
            "enqueues deployment for default/web, because of Deployment.apps default/web",
            "writes  deployment: ReplicaSet.apps default/web-1 at 4",
            "event   ReplicaSet.apps default/web-1 added at 4",
            "enqueues replicaset for default/web-1, because of ReplicaSet.apps default/web-1",
            "writes  replicaset: Pod default/web-1-a at 5",
            "fails   replicaset for default/web-1 after 2ms",
            "writes  deployment: Deployment.apps default/web at 6",
            "writes  gc: deletion of Pod default/web-1-a",
        ];
        assert_eq!(lines(Some("deploy/web"), &events), expected);
        assert_eq!(lines(None, &events).len(), expected.len() + 3);
        assert_eq!(lines(Some("pod/web"), &events), [""; 0]);
    }

    #[test]
    fn binding_is_an_entry_of_its_pod() {
        let called = |name: &str| TraceEvent::SubresourceWritten {
            controller: "scheduler".into(),
            reconciling: key(name),
            kind: "Pod".into(),
            key: key(name),
            subresource: "binding to node-1".into(),
        };
        let events = [noticed("Pod", "web", "1"), called("web"), called("other")];
        assert_eq!(
            lines(Some("pod/web"), &events),
            [
                "event   Pod default/web added at 1",
                "writes  scheduler: binding to node-1 of Pod default/web"
            ]
        );
    }

    #[test]
    fn event_that_precedes_its_write_is_printed_after_it() {
        let events = [
            noticed("Deployment.apps", "web", "1"),
            enqueued("deployment", "web", ("Deployment.apps", "web")),
            noticed("ReplicaSet.apps", "web-1", "2"),
            enqueued("replicaset", "web-1", ("ReplicaSet.apps", "web-1")),
            wrote("replicaset", "web-1", "Pod", "web-1-a", Some("3")),
            wrote("deployment", "web", "ReplicaSet.apps", "web-1", Some("2")),
        ];
        let lines = lines(Some("deployment/web"), &events);
        assert_eq!(lines.len(), events.len(), "{lines:#?}");
        assert_eq!(
            lines[2],
            "writes  deployment: ReplicaSet.apps default/web-1 at 2"
        );
        assert_eq!(lines[5], "writes  replicaset: Pod default/web-1-a at 3");
    }

    #[test]
    fn objects_are_selected_as_with_kubectl() {
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
        for (text, kind, expected) in cases {
            let selector = ObjectSelector::parse(text, "default");
            assert_eq!(
                selector.matches(kind, &key("web")),
                expected,
                "{text} of {kind}"
            );
        }
        let in_team_a = ObjectSelector::parse("pod/web", "team-a");
        assert!(!in_team_a.matches("Pod", &key("web")), "another namespace");
        let node = ObjectSelector::parse("node/n", "default");
        assert!(
            node.matches("Node", &ObjectKey::cluster("n")),
            "cluster-scoped"
        );
    }

    #[test]
    fn memory_of_a_set_is_bounded() {
        let mut set = BoundedSet::new();
        for number in 0..MEMBERS_MAX + 10 {
            assert!(set.insert(number));
            set.remove(&number);
        }
        assert_eq!(set.insertions(), MEMBERS_MAX);
        assert!(set.members.is_empty());
    }
}
