//! The state machine of a reflector, by scripts of inputs.

use bellerophon_kinds::Kind;
use k8s_openapi::api::core::v1::ConfigMap;

use super::super::decode::Undecodable;
use super::*;
use crate::cached::CachedObject;

fn input(word: &str) -> Input {
    let (verb, rest) = word.split_once(':').unwrap_or((word, ""));
    let message = || String::new();
    match verb {
        "opened" => Input::Opened,
        "established" => Input::Established,
        "ended" => Input::Ended { short_lived: false },
        "short_lived" => Input::Ended { short_lived: true },
        "timed_out" => Input::TimedOut,
        "backed_off" => Input::BackedOff,
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
        "410" => Input::Failed(ListWatchError::Expired(message())),
        "422" => Input::Failed(ListWatchError::Rejected(message())),
        "429" => Input::Failed(ListWatchError::Busy {
            message: message(),
            retry_after: Some(Duration::from_secs(7)),
        }),
        "403" => Input::Failed(ListWatchError::Forbidden(message())),
        "504" => Input::Failed(ListWatchError::TooLarge(message())),
        "refused" => Input::Failed(ListWatchError::Unreachable(message())),
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

/// The operations in order, and `!n` where a list of n objects is complete.
fn check(initial: InitialList, script: &str, expected: &str) {
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
    assert_eq!(operations.join(" "), expected, "after {script}");
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
        Operation::BackOff { delay, .. } => format!("backoff{}", delay.as_millis()),
    }
}

#[test]
fn streamed_list_continues_as_the_watch() {
    check(
        InitialList::Streamed,
        "opened apply:3 apply:2 end:5 apply:6 ended",
        "stream read read read !2 read read watch@6",
    );
}

/// An undecodable object that was deleted before the end of the list used to count as listed, so
/// that its earlier state stayed in the cache.
#[test]
fn object_deleted_during_the_list_is_not_listed() {
    let key = ObjectKey::from_object(&ConfigMap::default());
    let deleted = || ReceivedEvent::Deleted {
        key: key.clone(),
        object: None,
        resource_version: None,
    };
    let undecodable = Undecodable {
        key: Some(key.clone()),
        resource_version: None,
        reason: String::new(),
    };
    for first in [
        ReceivedEvent::Applied(object("3")),
        ReceivedEvent::Undecodable(undecodable),
    ] {
        let (mut state, _) = ReflectorState::new(InitialList::Streamed, 500).next(Input::Opened);
        for event in [first, deleted()] {
            (state, _) = state.next(Input::Event(event));
        }
        let (_, changes) = state.next(input("end:5"));
        let [
            Change::Replaced {
                objects,
                undecodable,
                ..
            },
        ] = &changes[..]
        else {
            panic!("no list: {changes:?}");
        };
        assert!(objects.is_empty(), "{objects:?}");
        assert!(undecodable.is_empty(), "{undecodable:?}");
    }
}

#[test]
fn server_without_streaming_is_paged_from_then_on() {
    check(
        InitialList::Streamed,
        "422 page:9 opened 410",
        "stream list !1 watch@9 read list",
    );
    check(
        InitialList::Streamed,
        "opened apply:1 timed_out page:9",
        "stream read read list !1 watch@9",
    );
}

#[test]
fn streaming_that_fails_three_times_is_paged_once() {
    let script = "refused backed_off refused backed_off opened short_lived backed_off page:9";
    check(
        InitialList::Streamed,
        script,
        "stream backoff800 stream backoff1600 stream read backoff3200 list !1 watch@9",
    );
}

#[test]
fn expired_continue_token_requests_the_whole_list() {
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
fn compacted_version_relists_at_the_start_and_in_the_stream() {
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
fn relists_of_a_server_that_always_compacts_back_off() {
    let script = "page:9 410 page:9 410 backed_off page:9 410";
    check(
        InitialList::Paged,
        script,
        "list !1 watch@9 list !1 watch@9 backoff1600 list !1 watch@9 backoff3200",
    );
}

#[test]
fn busy_unreachable_and_forbidden_watches_resume_without_a_list() {
    let script = "page:9 429 backed_off refused backed_off 403 backed_off opened";
    check(
        InitialList::Paged,
        script,
        "list !1 watch@9 backoff7000 watch@9 backoff1600 watch@9 backoff3200 watch@9 read",
    );
}

#[test]
fn lagging_server_is_retried_then_listed() {
    let script = "page:9 504 backed_off 504 backed_off 504 backed_off page:3";
    check(
        InitialList::Paged,
        script,
        "list !1 watch@9 backoff800 watch@9 backoff1600 watch@9 backoff3200 list !1 watch@3",
    );
}

#[test]
fn watch_without_events_is_reopened_at_its_version() {
    check(
        InitialList::Paged,
        "page:9 opened bookmark:15 timed_out",
        "list !1 watch@9 read read watch@15",
    );
}

#[test]
fn short_lived_watch_backs_off_whatever_it_sent() {
    check(
        InitialList::Paged,
        "page:9 opened short_lived",
        "list !1 watch@9 read backoff800",
    );
    check(
        InitialList::Paged,
        "page:9 opened apply:10 short_lived",
        "list !1 watch@9 read read backoff800",
    );
}

#[test]
fn established_watch_ends_the_back_off() {
    let script = "page:9 refused backed_off refused backed_off opened established bookmark:10 403";
    check(
        InitialList::Paged,
        script,
        "list !1 watch@9 backoff800 watch@9 backoff1600 watch@9 read read read backoff800",
    );
    let script = "page:9 refused backed_off opened ended refused";
    check(
        InitialList::Paged,
        script,
        "list !1 watch@9 backoff800 watch@9 read watch@9 backoff800",
    );
}

/// A lost connection used to delay the watch by 0.8 to 1.6 s, however long it had worked.
#[test]
fn lost_connection_of_an_established_watch_resumes_without_delay() {
    check(
        InitialList::Paged,
        "page:9 opened established bookmark:10 refused refused",
        "list !1 watch@9 read read read watch@10 backoff800",
    );
    check(
        InitialList::Streamed,
        "opened established end:5 refused opened refused",
        "stream read read !0 read watch@5 read backoff800",
    );
}

/// Watches that ended within a second used to double the delay, also if they had delivered events.
#[test]
fn watch_that_delivers_events_does_not_double_the_delay() {
    let script = "page:9 refused backed_off refused backed_off opened bookmark:10 refused \
                  backed_off opened bookmark:11 short_lived";
    check(
        InitialList::Paged,
        script,
        "list !1 watch@9 backoff800 watch@9 backoff1600 watch@9 read read backoff1600 \
         watch@10 read read backoff1600",
    );
}

#[test]
fn only_the_delay_of_an_unreachable_server_is_shortened() {
    let delays = |script: &str| {
        let mut state = ReflectorState::new(InitialList::Paged, 500);
        for word in script.split_whitespace() {
            (state, _) = state.next(input(word));
        }
        match state.operation() {
            Operation::BackOff {
                delay,
                delay_if_awaited,
            } => [delay, delay_if_awaited].map(|delay| delay.as_millis()),
            other => panic!("no back-off: {other:?}"),
        }
    };
    assert_eq!(delays("refused backed_off refused"), [1600, 800]);
    assert_eq!(delays("page:9 opened short_lived"), [800, 800]);
    assert_eq!(delays("page:9 429"), [7000, 7000]);
    assert_eq!(delays("refused backed_off 403"), [1600, 1600]);
}
