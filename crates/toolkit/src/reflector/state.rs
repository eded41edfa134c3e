//! The state machine of a reflector, without IO: the next operation, given all inputs so far.
//! In: the result of the last operation. Out: the next operation, and changes for the delta FIFO.
//! Guarantees: a watch resumes from its last version wherever the server allows it; only a
//! compacted version, or a server that keeps rejecting the resume, leads to a new list; whatever a
//! server does, it receives about one request a second at most.

use std::time::Duration;

use super::backoff;
use super::decode::{ReceivedEvent, ReceivedPage};
use crate::{
    fifo::{Change, ReceivedObject},
    key::ObjectKey,
    list_watch::{ListRequest, ListWatchError, WatchFrom},
};

/// Time without an event after which an open watch counts as dead. Servers send a bookmark about
/// every minute, so a healthy watch is rarely reopened, and a half-open one is replaced within 75
/// s.
pub(super) const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(70);
/// Time without an event after which a server is assumed not to send the end of the initial events.
pub(super) const INITIAL_EVENTS_TIMEOUT: Duration = Duration::from_secs(15);
/// Attempts in a row to stream the initial list before one is paged.
const STREAM_FAILURES_MAX: u32 = 3;
/// Rejections in a row of the resume before the reflector lists again.
const REJECTIONS_MAX: u32 = 3;

/// How a cache is filled at first.
///
/// ```
/// use bellerophon::informer::{InformerOptions, InitialList};
/// use k8s_openapi::api::core::v1::Pod;
///
/// // Pages bound the size of each response; a streamed list has one event per object.
/// let paged = InformerOptions::<Pod> {
///     initial_list: Some(InitialList::Paged),
///     page_size: Some(200),
///     ..InformerOptions::default()
/// };
/// ```
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

/// The next operation of the reflector.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Watch(WatchFrom),
    /// The next events of the open watch.
    Read {
        timeout: Duration,
    },
    List(ListRequest),
    BackOff {
        delay: Duration,
        /// The delay if a controller waits for the cache.
        delay_if_awaited: Duration,
    },
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
        delay_if_awaited: Duration,
        then: Resume,
    },
}

/// The phase after the back-off.
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
    /// Whether the open watch is older than one second.
    established: bool,
    /// Failures since a watch last stayed open for more than a second; at most 1 since a watch last
    /// delivered an event.
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
            established: false,
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
            Phase::BackingOff {
                delay,
                delay_if_awaited,
                ..
            } => Operation::BackOff {
                delay: *delay,
                delay_if_awaited: *delay_if_awaited,
            },
        }
    }

    /// Advances by one input. An input that does not fit the phase is left over from an earlier one
    /// and changes nothing.
    pub(super) fn next(mut self, seen: Input) -> (Self, Vec<Change>) {
        let mut changes = Vec::new();
        match seen {
            Input::Opened => self.established = false,
            Input::Established => self.established = true,
            _ => {}
        }
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
            // As client-go: a connection that worked and is lost ends the watch, like a timeout.
            (Phase::Watching { since }, Input::Failed(ListWatchError::Unreachable(_)))
                if self.established =>
            {
                self.reset_failures();
                Phase::Opening { since }
            }
            (Phase::Opening { since } | Phase::Watching { since }, Input::Failed(error)) => {
                self.watch_failed(since, &error)
            }
            (Phase::Watching { since }, Input::Event(event)) => {
                // A server that delivers events is not the reason for a longer delay.
                self.failures = self.failures.min(1);
                Self::follow(since, event, &mut changes)
            }
            // Without a pause, the requests to a server that accepts watches and closes them
            // immediately would be a busy loop.
            (Phase::Watching { since }, Input::Ended { short_lived: true }) => {
                self.back_off(None, Resume::Watch { since })
            }
            (Phase::Watching { since }, Input::Established) => {
                self.reset_failures();
                Phase::Watching { since }
            }
            (Phase::Watching { since }, Input::Ended { short_lived: false } | Input::TimedOut) => {
                self.reset_failures();
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
            // Events read together with an error or the end of the watch arrive after the phase has
            // changed.
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
            // The initial events are not a snapshot: live events may be among them.
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

    fn reset_failures(&mut self) {
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
            // Also after an event that cannot be decoded: resuming before it would receive it again
            // forever.
            since: version.unwrap_or(since),
        }
    }

    fn listed(&mut self) {
        self.stream_failures = 0;
        self.rejections = 0;
    }

    fn initial_failed(&mut self, error: &ListWatchError) -> Phase {
        if matches!(error, ListWatchError::Rejected(_)) && self.initial == InitialList::Streamed {
            // A server that rejects the stream does so always; it is not tried again with every
            // relist.
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
            // The first expiry is normal after a long interruption and is answered without a delay;
            // repeated ones back off.
            ListWatchError::Expired(_) if self.failures == 0 => {
                self.failures = 1;
                self.begin()
            }
            ListWatchError::Expired(_) => self.back_off(Some(error), Resume::Initial),
            // Another API server of the cluster may lag behind. Listing from it would make the
            // cache older, so the watch is retried first.
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
        let delay = backoff::delay(self.failures, retry_after);
        Phase::BackingOff {
            delay,
            delay_if_awaited: match error {
                // The connection may work again by now.
                None | Some(ListWatchError::Unreachable(_)) => backoff::FIRST,
                Some(_) => delay,
            },
            then,
        }
    }
}

#[cfg(test)]
mod tests;
