//! The course of a reflector, without IO: what it wants to do next, given all it has seen.
//! In: what the last wish brought. Out: the next wish, and changes for the fifo.
//! Holds: a watch resumes where it was wherever the server allows it; only a forgotten version, or a server that keeps
//! refusing to resume, leads to a new list; whatever a server does, it is asked about once a second at most.

use std::time::Duration;

use kube::Resource;

use super::backoff;
use crate::{
    fifo::{Arrival, Change},
    key::ObjectKey,
    source::{ListRequest, Page, SourceError, SourceEvent, WatchFrom},
};

/// Silence after which a live watch counts as dead. Servers send a bookmark about every minute, so a healthy watch is
/// rarely reopened, and a half-open one is noticed and replaced within 75 s.
pub(super) const WATCH_SILENCE_MAX: Duration = Duration::from_secs(70);
/// Silence after which a server is taken not to end its initial events at all.
pub(super) const INITIAL_SILENCE_MAX: Duration = Duration::from_secs(15);
/// Attempts in a row to stream the initial list before one is paged.
const STREAM_FAILURES_MAX: u32 = 3;
/// Refusals in a row to resume before the reflector lists again.
const REFUSALS_MAX: u32 = 3;

/// How a cache is filled at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitialList {
    /// By a watch that begins with all there is; paged if the server does not do that.
    #[default]
    Streamed,
    /// By pages.
    Paged,
}

/// What the reflector saw. `O` is an object.
#[derive(Debug)]
pub(super) enum Seen<O> {
    /// The watch is open.
    Opened,
    /// The watch has lived longer than its first second, and goes on.
    Settled,
    Event(SourceEvent<O>),
    Page(Page<O>),
    /// The stream ended; whether within its first second.
    Ended {
        young: bool,
    },
    /// Nothing came for as long as the reflector listens.
    Silent,
    Failed(SourceError),
    Rested,
}

/// What the reflector wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Want {
    Watch(WatchFrom),
    /// The next events of the open watch.
    Read {
        patience: Duration,
    },
    List(ListRequest),
    Rest(Duration),
}

#[derive(Debug)]
enum Phase<K> {
    OpeningInitial,
    Streaming(Collected<K>),
    Listing {
        request: ListRequest,
        collected: Collected<K>,
    },
    Opening {
        since: String,
    },
    Watching {
        since: String,
    },
    Resting {
        delay: Duration,
        then: Resume,
    },
}

/// Where to go on after a rest.
#[derive(Debug)]
enum Resume {
    Initial,
    Watch { since: String },
}

/// The initial list so far.
#[derive(Debug)]
struct Collected<K> {
    objects: Vec<Arrival<K>>,
    unreadable: Vec<ObjectKey>,
}

impl<K> Collected<K> {
    fn nothing() -> Self {
        Self {
            objects: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// It went before the list was complete.
    fn forget(&mut self, key: &ObjectKey) {
        self.objects.retain(|object| object.key != *key);
        self.unreadable.retain(|unreadable| unreadable != key);
    }

    fn replace(self, resource_version: &str) -> Vec<Change<K>> {
        let Self {
            objects,
            unreadable,
        } = self;
        vec![Change::Replaced {
            objects,
            unreadable,
            resource_version: resource_version.to_owned(),
        }]
    }
}

/// Where a reflector stands.
#[derive(Debug)]
pub(super) struct Course<K> {
    phase: Phase<K>,
    page_size: u32,
    initial: InitialList,
    /// Failures since a watch last lived longer than its first second.
    failures: u32,
    /// Failed attempts to stream the initial list since the last list.
    stream_failures: u32,
    /// Refused attempts to resume since the last success.
    refusals: u32,
}

impl<K: Resource> Course<K> {
    pub(super) fn new(initial: InitialList, page_size: u32) -> Self {
        let mut course = Self {
            phase: Phase::OpeningInitial,
            page_size,
            initial,
            failures: 0,
            stream_failures: 0,
            refusals: 0,
        };
        course.phase = course.begin();
        course
    }

    /// What to do next.
    pub(super) fn want(&self) -> Want {
        match &self.phase {
            Phase::OpeningInitial => Want::Watch(WatchFrom::InitialEvents),
            Phase::Streaming(_) => Want::Read {
                patience: INITIAL_SILENCE_MAX,
            },
            Phase::Listing { request, .. } => Want::List(request.clone()),
            Phase::Opening { since } => Want::Watch(WatchFrom::Version(since.clone())),
            Phase::Watching { .. } => Want::Read {
                patience: WATCH_SILENCE_MAX,
            },
            Phase::Resting { delay, .. } => Want::Rest(*delay),
        }
    }

    /// Goes on by one step. What does not fit the phase is left over from an earlier one and changes nothing.
    pub(super) fn next(mut self, seen: Seen<Arrival<K>>) -> (Self, Vec<Change<K>>) {
        let mut changes = Vec::new();
        let phase = std::mem::replace(&mut self.phase, Phase::OpeningInitial);
        self.phase = match (phase, seen) {
            (Phase::OpeningInitial, Seen::Opened) => Phase::Streaming(Collected::nothing()),
            (Phase::OpeningInitial, Seen::Failed(error)) => self.initial_failed(&error),
            (Phase::Streaming(collected), Seen::Event(event)) => {
                self.collect(collected, event, &mut changes)
            }
            (Phase::Streaming(_), Seen::Ended { .. }) => self.initial_failed(
                &SourceError::Unreachable("the initial events broke off".into()),
            ),
            (Phase::Streaming(_), Seen::Silent) => self.initial_failed(&SourceError::Rejected(
                "the initial events never ended".into(),
            )),
            (Phase::Streaming(_), Seen::Failed(error)) => self.initial_failed(&error),
            (Phase::Listing { request, collected }, Seen::Page(page)) => {
                self.turn_page(request, collected, page, &mut changes)
            }
            (Phase::Listing { request, .. }, Seen::Failed(error)) => {
                self.page_failed(&request, &error)
            }
            (Phase::Opening { since }, Seen::Opened) => Phase::Watching { since },
            (Phase::Opening { since } | Phase::Watching { since }, Seen::Failed(error)) => {
                self.watch_failed(since, &error)
            }
            (Phase::Watching { since }, Seen::Event(event)) => {
                Self::follow(since, event, &mut changes)
            }
            (Phase::Watching { since }, Seen::Ended { young: true }) => {
                self.rest(None, Resume::Watch { since })
            }
            (Phase::Watching { since }, Seen::Settled) => {
                self.settled();
                Phase::Watching { since }
            }
            (Phase::Watching { since }, Seen::Ended { young: false } | Seen::Silent) => {
                self.settled();
                Phase::Opening { since }
            }
            (
                Phase::Resting {
                    then: Resume::Initial,
                    ..
                },
                Seen::Rested,
            ) => self.begin(),
            (
                Phase::Resting {
                    then: Resume::Watch { since },
                    ..
                },
                Seen::Rested,
            ) => Phase::Opening { since },
            (phase, _) => phase,
        };
        (self, changes)
    }

    fn begin(&self) -> Phase<K> {
        match self.initial {
            InitialList::Streamed if self.stream_failures < STREAM_FAILURES_MAX => {
                Phase::OpeningInitial
            }
            _ => Phase::Listing {
                request: self.first_page(),
                collected: Collected::nothing(),
            },
        }
    }

    fn first_page(&self) -> ListRequest {
        ListRequest {
            limit: Some(self.page_size),
            continue_token: None,
        }
    }

    fn collect(
        &mut self,
        mut collected: Collected<K>,
        event: SourceEvent<Arrival<K>>,
        changes: &mut Vec<Change<K>>,
    ) -> Phase<K> {
        match event {
            SourceEvent::Applied(object) => collected.objects.push(object),
            SourceEvent::Deleted { key, .. } => collected.forget(&key),
            SourceEvent::Undecodable(undecodable) => collected.unreadable.extend(undecodable.key),
            SourceEvent::Bookmark {
                ends_initial_events: false,
                ..
            } => {}
            SourceEvent::Bookmark {
                resource_version,
                ends_initial_events: true,
            } => {
                changes.extend(collected.replace(&resource_version));
                self.listed();
                return Phase::Watching {
                    since: resource_version,
                };
            }
        }
        Phase::Streaming(collected)
    }

    fn turn_page(
        &mut self,
        request: ListRequest,
        mut collected: Collected<K>,
        page: Page<Arrival<K>>,
        changes: &mut Vec<Change<K>>,
    ) -> Phase<K> {
        collected.objects.extend(page.objects);
        collected.unreadable.extend(
            page.undecodable
                .into_iter()
                .filter_map(|undecodable| undecodable.key),
        );
        if page.continue_token.is_some() {
            return Phase::Listing {
                request: ListRequest {
                    continue_token: page.continue_token,
                    ..request
                },
                collected,
            };
        }
        changes.extend(collected.replace(&page.resource_version));
        self.listed();
        Phase::Opening {
            since: page.resource_version,
        }
    }

    fn settled(&mut self) {
        (self.failures, self.refusals) = (0, 0);
    }

    fn follow(
        since: String,
        event: SourceEvent<Arrival<K>>,
        changes: &mut Vec<Change<K>>,
    ) -> Phase<K> {
        let version = match event {
            SourceEvent::Applied(object) => {
                let version = object.object.resource_version();
                changes.push(Change::Applied(object));
                version
            }
            SourceEvent::Deleted {
                key,
                object,
                resource_version,
            } => {
                let object = object.map(|last| last.object);
                changes.push(Change::Deleted {
                    key,
                    object,
                    resource_version: resource_version.clone(),
                });
                resource_version
            }
            SourceEvent::Bookmark {
                resource_version, ..
            } => {
                changes.push(Change::Bookmark {
                    resource_version: resource_version.clone(),
                });
                Some(resource_version)
            }
            SourceEvent::Undecodable(undecodable) => undecodable.resource_version,
        };
        Phase::Watching {
            since: version.unwrap_or(since),
        }
    }

    fn listed(&mut self) {
        (self.stream_failures, self.refusals) = (0, 0);
    }

    fn initial_failed(&mut self, error: &SourceError) -> Phase<K> {
        if matches!(error, SourceError::Rejected(_)) && self.initial == InitialList::Streamed {
            self.initial = InitialList::Paged;
            return self.begin();
        }
        self.stream_failures += 1;
        self.rest(Some(error), Resume::Initial)
    }

    fn page_failed(&mut self, request: &ListRequest, error: &SourceError) -> Phase<K> {
        // The list was changed for too long between its pages: all at once, then.
        if matches!(error, SourceError::Expired(_)) && request.continue_token.is_some() {
            return Phase::Listing {
                request: ListRequest::default(),
                collected: Collected::nothing(),
            };
        }
        // Another attempt may stream again.
        self.stream_failures = 0;
        self.rest(Some(error), Resume::Initial)
    }

    fn watch_failed(&mut self, since: String, error: &SourceError) -> Phase<K> {
        match error {
            SourceError::Expired(_) if self.failures == 0 => {
                self.failures = 1;
                self.begin()
            }
            SourceError::Expired(_) => self.rest(Some(error), Resume::Initial),
            SourceError::TooLarge(_) | SourceError::Rejected(_) | SourceError::Other(_) => {
                self.refusals += 1;
                let again = if self.refusals < REFUSALS_MAX {
                    Resume::Watch { since }
                } else {
                    Resume::Initial
                };
                self.rest(Some(error), again)
            }
            _ => self.rest(Some(error), Resume::Watch { since }),
        }
    }

    fn rest(&mut self, error: Option<&SourceError>, then: Resume) -> Phase<K> {
        self.failures = self.failures.saturating_add(1);
        let retry_after = match error {
            Some(SourceError::Busy { retry_after, .. }) => *retry_after,
            _ => None,
        };
        Phase::Resting {
            delay: backoff::delay(self.failures, retry_after),
            then,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::{cached::Cached, source::Undecodable};

    fn seen(word: &str) -> Seen<Arrival<ConfigMap>> {
        let (verb, rest) = word.split_once(':').unwrap_or((word, ""));
        let gone = || String::new();
        match verb {
            "opened" => Seen::Opened,
            "settled" => Seen::Settled,
            "ended" => Seen::Ended { young: false },
            "young" => Seen::Ended { young: true },
            "silent" => Seen::Silent,
            "rested" => Seen::Rested,
            "page" => {
                let (version, token) = rest
                    .split_once('+')
                    .map_or((rest, None), |(version, token)| {
                        (version, Some(token.to_owned()))
                    });
                Seen::Page(Page {
                    objects: vec![object("1")],
                    undecodable: vec![],
                    resource_version: version.into(),
                    continue_token: token,
                })
            }
            "apply" => Seen::Event(SourceEvent::Applied(object(rest))),
            "bookmark" => Seen::Event(SourceEvent::Bookmark {
                resource_version: rest.into(),
                ends_initial_events: false,
            }),
            "end" => Seen::Event(SourceEvent::Bookmark {
                resource_version: rest.into(),
                ends_initial_events: true,
            }),
            "410" => Seen::Failed(SourceError::Expired(gone())),
            "422" => Seen::Failed(SourceError::Rejected(gone())),
            "429" => Seen::Failed(SourceError::Busy {
                message: gone(),
                retry_after: Some(Duration::from_secs(7)),
            }),
            "403" => Seen::Failed(SourceError::Forbidden(gone())),
            "504" => Seen::Failed(SourceError::TooLarge(gone())),
            "refused" => Seen::Failed(SourceError::Unreachable(gone())),
            other => panic!("no such thing to see: {other}"),
        }
    }

    fn object(version: &str) -> Arrival<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.resource_version = Some(version.into());
        Arrival {
            key: ObjectKey::of(&object),
            object: Cached::decoded(object),
        }
    }

    /// The wishes in turn, and `!n` where a list of n objects was handed on.
    fn check(initial: InitialList, script: &str, wanted: &str) {
        let mut course = Course::new(initial, 500);
        let mut wishes = vec![print(&course.want())];
        for word in script.split_whitespace() {
            let (next, changes) = course.next(seen(word));
            for change in changes {
                if let Change::Replaced { objects, .. } = change {
                    wishes.push(format!("!{}", objects.len()));
                }
            }
            wishes.push(print(&next.want()));
            course = next;
        }
        assert_eq!(wishes.join(" "), wanted, "after {script}");
    }

    fn print(want: &Want) -> String {
        match want {
            Want::Watch(WatchFrom::InitialEvents) => "stream".into(),
            Want::Watch(WatchFrom::Version(version)) => format!("watch@{version}"),
            Want::Read { .. } => "read".into(),
            Want::List(ListRequest {
                limit,
                continue_token,
            }) => match (limit, continue_token) {
                (None, _) => "list-all".into(),
                (_, None) => "list".into(),
                (_, Some(token)) => format!("list+{token}"),
            },
            Want::Rest(delay) => format!("rest{}", delay.as_millis()),
        }
    }

    #[test]
    fn streamed_list_goes_on_as_the_watch() {
        check(
            InitialList::Streamed,
            "opened apply:3 apply:2 end:5 apply:6 ended",
            "stream read read read !2 read read watch@6",
        );
    }

    /// An object that could not be read used to count as listed although it went before the end of the list, so that its
    /// earlier form stayed in the cache.
    #[test]
    fn object_that_goes_during_the_list_is_not_listed() {
        let key = ObjectKey::of(&ConfigMap::default());
        let gone = || SourceEvent::Deleted {
            key: key.clone(),
            object: None,
            resource_version: None,
        };
        let garbled = Undecodable {
            key: Some(key.clone()),
            resource_version: None,
            reason: String::new(),
        };
        for first in [
            SourceEvent::Applied(object("3")),
            SourceEvent::Undecodable(garbled),
        ] {
            let (mut course, _) = Course::new(InitialList::Streamed, 500).next(Seen::Opened);
            for event in [first, gone()] {
                (course, _) = course.next(Seen::Event(event));
            }
            let (_, changes) = course.next(seen("end:5"));
            assert!(
                matches!(&changes[..], [Change::Replaced { objects, unreadable, .. }] if objects.is_empty() && unreadable.is_empty()),
                "{changes:?}"
            );
        }
    }

    #[test]
    fn server_without_streaming_is_paged_at_once_and_remembered() {
        check(
            InitialList::Streamed,
            "422 page:9 opened 410",
            "stream list !1 watch@9 read list",
        );
        check(
            InitialList::Streamed,
            "opened apply:1 silent page:9",
            "stream read read list !1 watch@9",
        );
    }

    #[test]
    fn streaming_that_keeps_failing_is_paged_for_once() {
        let script = "refused rested refused rested opened young rested page:9";
        check(
            InitialList::Streamed,
            script,
            "stream rest800 stream rest1600 stream read rest3200 list !1 watch@9",
        );
    }

    #[test]
    fn pages_follow_each_other_and_an_expired_one_lists_whole() {
        check(
            InitialList::Paged,
            "page:9+a page:9+b page:9",
            "list list+a list+b !3 watch@9",
        );
        check(
            InitialList::Paged,
            "page:9+a 410 page:12",
            "list list+a list-all !1 watch@12",
        );
    }

    #[test]
    fn forgotten_version_lists_again_at_the_start_and_in_the_stream() {
        check(
            InitialList::Paged,
            "page:9 410 page:12",
            "list !1 watch@9 list !1 watch@12",
        );
        check(
            InitialList::Paged,
            "page:9 opened apply:10 410",
            "list !1 watch@9 read read list",
        );
    }

    #[test]
    fn server_that_forgets_at_once_is_asked_ever_more_rarely() {
        let script = "page:9 410 page:9 410 rested page:9 410";
        check(
            InitialList::Paged,
            script,
            "list !1 watch@9 list !1 watch@9 rest1600 list !1 watch@9 rest3200",
        );
    }

    #[test]
    fn busy_refused_and_forbidden_watches_resume_without_a_list() {
        let script = "page:9 429 rested refused rested 403 rested opened";
        check(
            InitialList::Paged,
            script,
            "list !1 watch@9 rest7000 watch@9 rest1600 watch@9 rest3200 watch@9 read",
        );
    }

    #[test]
    fn lagging_server_is_waited_for_then_listed() {
        let script = "page:9 504 rested 504 rested 504 rested page:3";
        check(
            InitialList::Paged,
            script,
            "list !1 watch@9 rest800 watch@9 rest1600 watch@9 rest3200 list !1 watch@3",
        );
    }

    #[test]
    fn silent_watch_is_reopened_where_it_was() {
        check(
            InitialList::Paged,
            "page:9 opened bookmark:15 silent",
            "list !1 watch@9 read read watch@15",
        );
    }

    #[test]
    fn watch_that_ends_at_once_rests_whatever_it_said() {
        check(
            InitialList::Paged,
            "page:9 opened young",
            "list !1 watch@9 read rest800",
        );
        check(
            InitialList::Paged,
            "page:9 opened apply:10 young",
            "list !1 watch@9 read read rest800",
        );
    }

    #[test]
    fn settled_watch_ends_the_back_off() {
        let script = "page:9 refused rested refused rested opened settled bookmark:10 refused";
        check(
            InitialList::Paged,
            script,
            "list !1 watch@9 rest800 watch@9 rest1600 watch@9 read read read rest800",
        );
        let script = "page:9 refused rested opened ended refused";
        check(
            InitialList::Paged,
            script,
            "list !1 watch@9 rest800 watch@9 read watch@9 rest800",
        );
    }
}
