//! The state machine of a reflector, without IO: the next operation, given all inputs so far.
//! In: the result of the last operation. Out: the next operation, and changes for the delta FIFO.
//! Guarantees: a watch resumes from its last version wherever the server allows it; only a compacted
//! version, or a server that keeps rejecting the resume, leads to a new list; whatever a server does,
//! it receives about one request a second at most.

use std::time::Duration;

use super::backoff;
use super::decode::{ReceivedEvent, ReceivedPage};
use crate::{
    fifo::{Change, ReceivedObject},
    key::ObjectKey,
    list_watch::{ListRequest, ListWatchError, WatchFrom},
};

/// Time without an event after which an open watch counts as dead. Servers send a bookmark about
/// every minute, so a healthy watch is rarely reopened, and a half-open one is replaced within 75 s.
pub(super) const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(70);
/// Time without an event after which a server is assumed not to send the end of the initial events.
pub(super) const INITIAL_EVENTS_TIMEOUT: Duration = Duration::from_secs(15);
/// Attempts in a row to stream the initial list before one is paged.
const STREAM_FAILURES_MAX: u32 = 3;
/// Rejections in a row of the resume before the reflector lists again.
const REJECTIONS_MAX: u32 = 3;

/// How a cache is filled at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitialList {
    /// By a watch that begins with every existing object (WatchList); paged if the server does not
    /// support that.
    #[default]
    Streamed,
    /// By pages.
    Paged,
}

/// The result of an operation.
#[derive(Debug)]
pub(super) enum Input {
    /// The watch is open.
    Opened,
    /// The watch is older than one second and still open.
    Established,
    Event(ReceivedEvent),
    Page(ReceivedPage),
    /// The stream ended; whether within its first second.
    Ended {
        short_lived: bool,
    },
    /// No event within the timeout of the read.
    TimedOut,
    Failed(ListWatchError),
    BackedOff,
}

/// What the reflector does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Watch(WatchFrom),
    /// The next events of the open watch.
    Read {
        timeout: Duration,
    },
    List(ListRequest),
    BackOff(Duration),
}

#[derive(Debug)]
enum Phase {
    OpeningInitial,
    Streaming(Collected),
    Listing {
        request: ListRequest,
        collected: Collected,
    },
    Opening {
        since: String,
    },
    Watching {
        since: String,
    },
    BackingOff {
        delay: Duration,
        then: Resume,
    },
}

/// What follows the back-off.
#[derive(Debug)]
enum Resume {
    Initial,
    Watch { since: String },
}

/// The initial list so far.
#[derive(Debug, Default)]
struct Collected {
    objects: Vec<ReceivedObject>,
    undecodable: Vec<ObjectKey>,
}

impl Collected {
    /// The object was deleted before the list was complete.
    fn forget(&mut self, key: &ObjectKey) {
        self.objects.retain(|object| object.key != *key);
        self.undecodable.retain(|undecodable| undecodable != key);
    }

    fn replace(self, resource_version: &str) -> Vec<Change> {
        let Self {
            objects,
            undecodable,
        } = self;
        vec![Change::Replaced {
            objects,
            undecodable,
            resource_version: resource_version.to_owned(),
        }]
    }
}

/// The state of one reflector.
#[derive(Debug)]
pub(super) struct ReflectorState {
    phase: Phase,
    page_size: u32,
    initial: InitialList,
    /// Failures since a watch last stayed open for more than a second.
    failures: u32,
    /// Failed attempts to stream the initial list since the last list.
    stream_failures: u32,
    /// Rejected attempts to resume since the last success.
    rejections: u32,
}

impl ReflectorState {
    pub(super) fn new(initial: InitialList, page_size: u32) -> Self {
        let mut course = Self {
            phase: Phase::OpeningInitial,
            page_size,
            initial,
            failures: 0,
            stream_failures: 0,
            rejections: 0,
        };
        course.phase = course.begin();
        course
    }

    /// The next operation.
    pub(super) fn operation(&self) -> Operation {
        match &self.phase {
            Phase::OpeningInitial => Operation::Watch(WatchFrom::InitialEvents),
            Phase::Streaming(_) => Operation::Read {
                timeout: INITIAL_EVENTS_TIMEOUT,
            },
            Phase::Listing { request, .. } => Operation::List(request.clone()),
            Phase::Opening { since } => Operation::Watch(WatchFrom::Version(since.clone())),
            Phase::Watching { .. } => Operation::Read {
                timeout: WATCH_IDLE_TIMEOUT,
            },
            Phase::BackingOff { delay, .. } => Operation::BackOff(*delay),
        }
    }

    /// Advances by one input. An input that does not fit the phase is left over from an earlier one
    /// and changes nothing.
    pub(super) fn next(mut self, seen: Input) -> (Self, Vec<Change>) {
        let mut changes = Vec::new();
        let phase = std::mem::replace(&mut self.phase, Phase::OpeningInitial);
        self.phase = match (phase, seen) {
            (Phase::OpeningInitial, Input::Opened) => Phase::Streaming(Collected::default()),
            (Phase::OpeningInitial, Input::Failed(error)) => self.initial_failed(&error),
            (Phase::Streaming(collected), Input::Event(event)) => {
                self.collect(collected, event, &mut changes)
            }
            (Phase::Streaming(_), Input::Ended { .. }) => self.initial_failed(
                &ListWatchError::Unreachable("the initial events were interrupted".into()),
            ),
            (Phase::Streaming(_), Input::TimedOut) => self.initial_failed(
                &ListWatchError::Rejected("the initial events never ended".into()),
            ),
            (Phase::Streaming(_), Input::Failed(error)) => self.initial_failed(&error),
            (Phase::Listing { request, collected }, Input::Page(page)) => {
                self.add_page(request, collected, page, &mut changes)
            }
            (Phase::Listing { request, .. }, Input::Failed(error)) => {
                self.page_failed(&request, &error)
            }
            (Phase::Opening { since }, Input::Opened) => Phase::Watching { since },
            (Phase::Opening { since } | Phase::Watching { since }, Input::Failed(error)) => {
                self.watch_failed(since, &error)
            }
            (Phase::Watching { since }, Input::Event(event)) => {
                Self::follow(since, event, &mut changes)
            }
            (Phase::Watching { since }, Input::Ended { short_lived: true }) => {
                self.back_off(None, Resume::Watch { since })
            }
            (Phase::Watching { since }, Input::Established) => {
                self.established();
                Phase::Watching { since }
            }
            (Phase::Watching { since }, Input::Ended { short_lived: false } | Input::TimedOut) => {
                self.established();
                Phase::Opening { since }
            }
            (
                Phase::BackingOff {
                    then: Resume::Initial,
                    ..
                },
                Input::BackedOff,
            ) => self.begin(),
            (
                Phase::BackingOff {
                    then: Resume::Watch { since },
                    ..
                },
                Input::BackedOff,
            ) => Phase::Opening { since },
            (phase, _) => phase,
        };
        (self, changes)
    }

    fn begin(&self) -> Phase {
        match self.initial {
            InitialList::Streamed if self.stream_failures < STREAM_FAILURES_MAX => {
                Phase::OpeningInitial
            }
            _ => Phase::Listing {
                request: self.first_page(),
                collected: Collected::default(),
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
        mut collected: Collected,
        event: ReceivedEvent,
        changes: &mut Vec<Change>,
    ) -> Phase {
        match event {
            ReceivedEvent::Applied(object) => collected.objects.push(object),
            ReceivedEvent::Deleted { key, .. } => collected.forget(&key),
            ReceivedEvent::Undecodable(undecodable) => {
                collected.undecodable.extend(undecodable.key)
            }
            ReceivedEvent::Bookmark {
                ends_initial_events: false,
                ..
            } => {}
            ReceivedEvent::Bookmark {
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

    fn add_page(
        &mut self,
        request: ListRequest,
        mut collected: Collected,
        page: ReceivedPage,
        changes: &mut Vec<Change>,
    ) -> Phase {
        collected.objects.extend(page.objects);
        collected.undecodable.extend(
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

    fn established(&mut self) {
        self.failures = 0;
        self.rejections = 0;
    }

    fn follow(since: String, event: ReceivedEvent, changes: &mut Vec<Change>) -> Phase {
        let version = match event {
            ReceivedEvent::Applied(object) => {
                let version = object.object.resource_version();
                changes.push(Change::Applied(object));
                version
            }
            ReceivedEvent::Deleted {
                key,
                object,
                resource_version,
            } => {
                changes.push(Change::Deleted {
                    key,
                    object,
                    resource_version: resource_version.clone(),
                });
                resource_version
            }
            ReceivedEvent::Bookmark {
                resource_version, ..
            } => {
                changes.push(Change::Bookmark {
                    resource_version: resource_version.clone(),
                });
                Some(resource_version)
            }
            ReceivedEvent::Undecodable(undecodable) => undecodable.resource_version,
        };
        Phase::Watching {
            since: version.unwrap_or(since),
        }
    }

    fn listed(&mut self) {
        self.stream_failures = 0;
        self.rejections = 0;
    }

    fn initial_failed(&mut self, error: &ListWatchError) -> Phase {
        if matches!(error, ListWatchError::Rejected(_)) && self.initial == InitialList::Streamed {
            self.initial = InitialList::Paged;
            return self.begin();
        }
        self.stream_failures += 1;
        self.back_off(Some(error), Resume::Initial)
    }

    fn page_failed(&mut self, request: &ListRequest, error: &ListWatchError) -> Phase {
        // The continue token expired between two pages: request the whole list in one response.
        if matches!(error, ListWatchError::Expired(_)) && request.continue_token.is_some() {
            return Phase::Listing {
                request: ListRequest::default(),
                collected: Collected::default(),
            };
        }
        // The next attempt may stream again.
        self.stream_failures = 0;
        self.back_off(Some(error), Resume::Initial)
    }

    fn watch_failed(&mut self, since: String, error: &ListWatchError) -> Phase {
        match error {
            ListWatchError::Expired(_) if self.failures == 0 => {
                self.failures = 1;
                self.begin()
            }
            ListWatchError::Expired(_) => self.back_off(Some(error), Resume::Initial),
            ListWatchError::TooLarge(_)
            | ListWatchError::Rejected(_)
            | ListWatchError::Other(_) => {
                self.rejections += 1;
                let resume = if self.rejections < REJECTIONS_MAX {
                    Resume::Watch { since }
                } else {
                    Resume::Initial
                };
                self.back_off(Some(error), resume)
            }
            _ => self.back_off(Some(error), Resume::Watch { since }),
        }
    }

    fn back_off(&mut self, error: Option<&ListWatchError>, then: Resume) -> Phase {
        self.failures = self.failures.saturating_add(1);
        let retry_after = match error {
            Some(ListWatchError::Busy { retry_after, .. }) => *retry_after,
            _ => None,
        };
        Phase::BackingOff {
            delay: backoff::delay(self.failures, retry_after),
            then,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use bellerophon_kinds::Kind;

    use super::super::decode::Undecodable;
    use crate::cached::CachedObject;

    fn input(word: &str) -> Input {
        let (verb, rest) = word.split_once(':').unwrap_or((word, ""));
        let gone = || String::new();
        match verb {
            "opened" => Input::Opened,
            "settled" => Input::Established,
            "ended" => Input::Ended { short_lived: false },
            "short_lived" => Input::Ended { short_lived: true },
            "silent" => Input::TimedOut,
            "rested" => Input::BackedOff,
            "page" => {
                let (version, token) = rest
                    .split_once('+')
                    .map_or((rest, None), |(version, token)| {
                        (version, Some(token.to_owned()))
                    });
                Input::Page(ReceivedPage {
                    objects: vec![object("1")],
                    undecodable: vec![],
                    resource_version: version.into(),
                    continue_token: token,
                })
            }
            "apply" => Input::Event(ReceivedEvent::Applied(object(rest))),
            "bookmark" => Input::Event(ReceivedEvent::Bookmark {
                resource_version: rest.into(),
                ends_initial_events: false,
            }),
            "end" => Input::Event(ReceivedEvent::Bookmark {
                resource_version: rest.into(),
                ends_initial_events: true,
            }),
            "410" => Input::Failed(ListWatchError::Expired(gone())),
            "422" => Input::Failed(ListWatchError::Rejected(gone())),
            "429" => Input::Failed(ListWatchError::Busy {
                message: gone(),
                retry_after: Some(Duration::from_secs(7)),
            }),
            "403" => Input::Failed(ListWatchError::Forbidden(gone())),
            "504" => Input::Failed(ListWatchError::TooLarge(gone())),
            "refused" => Input::Failed(ListWatchError::Unreachable(gone())),
            other => panic!("no such input: {other}"),
        }
    }

    fn object(version: &str) -> ReceivedObject {
        let mut object = ConfigMap::default();
        object.metadata.resource_version = Some(version.into());
        ReceivedObject {
            key: ObjectKey::from_object(&object),
            object: CachedObject::decoded(std::sync::Arc::new(object), ConfigMap::codec()),
        }
    }

    /// The operations in turn, and `!n` where a list of n objects was handed on.
    fn check(initial: InitialList, script: &str, wanted: &str) {
        let mut state = ReflectorState::new(initial, 500);
        let mut operations = vec![print(&state.operation())];
        for word in script.split_whitespace() {
            let (next, changes) = state.next(input(word));
            for change in changes {
                if let Change::Replaced { objects, .. } = change {
                    operations.push(format!("!{}", objects.len()));
                }
            }
            operations.push(print(&next.operation()));
            state = next;
        }
        assert_eq!(operations.join(" "), wanted, "after {script}");
    }

    fn print(operation: &Operation) -> String {
        match operation {
            Operation::Watch(WatchFrom::InitialEvents) => "stream".into(),
            Operation::Watch(WatchFrom::Version(version)) => format!("watch@{version}"),
            Operation::Read { .. } => "read".into(),
            Operation::List(ListRequest {
                limit,
                continue_token,
            }) => match (limit, continue_token) {
                (None, _) => "list-all".into(),
                (_, None) => "list".into(),
                (_, Some(token)) => format!("list+{token}"),
            },
            Operation::BackOff(delay) => format!("rest{}", delay.as_millis()),
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
        let key = ObjectKey::from_object(&ConfigMap::default());
        let gone = || ReceivedEvent::Deleted {
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
            ReceivedEvent::Applied(object("3")),
            ReceivedEvent::Undecodable(garbled),
        ] {
            let (mut state, _) =
                ReflectorState::new(InitialList::Streamed, 500).next(Input::Opened);
            for event in [first, gone()] {
                (state, _) = state.next(Input::Event(event));
            }
            let (_, changes) = state.next(input("end:5"));
            assert!(
                matches!(&changes[..], [Change::Replaced { objects, undecodable, .. }] if objects.is_empty() && undecodable.is_empty()),
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
        let script = "refused rested refused rested opened short_lived rested page:9";
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
            "page:9 opened short_lived",
            "list !1 watch@9 read rest800",
        );
        check(
            InitialList::Paged,
            "page:9 opened apply:10 short_lived",
            "list !1 watch@9 read read rest800",
        );
    }

    #[test]
    fn established_watch_ends_the_back_off() {
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
