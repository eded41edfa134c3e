//! Work estimates: how many seats a request takes, and for how long after it is answered.
//! In: verb, query and name of a request, the size of its collection, its watchers. Out: [`Work`].
//! Guarantees: the estimates are those of kube-apiserver 1.36 (`fc/request`), except for the time
//! that watchers take.

use std::time::Duration;

use crate::{
    auth::{Attributes, Target},
    http::query::Query,
};

/// The resolution of virtual time: the number of units in a seat-second.
const UNITS_PER_SEAT_SECOND: f64 = 1e8;

/// How long a request is assumed to run before its real duration is known.
pub(super) const ESTIMATED_DURATION: Duration = Duration::from_millis(3);

/// Bytes of a list per seat.
const BYTES_PER_SEAT: u64 = 100_000;
/// The most bytes that a list from the watch cache counts for, since it is encoded piece by piece.
const CACHED_LIST_BYTES_MAX: u64 = 1_000_000;
const LIST_SEATS_MAX: u64 = 100;
const MUTATING_SEATS_MAX: u64 = 10;
/// Watchers per seat.
const WATCHERS_PER_SEAT: u64 = 10;
/// How long a seat of watchers is busy with an event: 4 µs for each of them, and some reserve.
/// kube-apiserver has 5 ms; with that, the watches of one user would delay the writes of another
/// one for work that the server does not have.
const EVENT_DURATION: Duration = Duration::from_micros(50);

/// Virtual time and work, in 1e-8 seat-seconds.
pub(super) type SeatSeconds = u64;

/// The seat-seconds of `seats` in this time.
pub(super) fn seat_seconds(seats: f64, duration: Duration) -> SeatSeconds {
    let nanoseconds = duration.as_nanos() as f64;
    (seats * nanoseconds / (1e9 / UNITS_PER_SEAT_SECOND)).round() as SeatSeconds
}

/// The time in which `seats` do this work.
pub(super) fn duration_per_seat(work: SeatSeconds, seats: u64) -> Duration {
    Duration::from_secs_f64(work as f64 / seats as f64 / UNITS_PER_SEAT_SECOND)
}

/// Work in seat-seconds, as the debug endpoints print it.
pub(super) fn show_seat_seconds(work: SeatSeconds) -> String {
    let unit = UNITS_PER_SEAT_SECOND as u64;
    format!("{}.{:08}ss", work / unit, work % unit)
}

/// The work of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Seats while the request is executed.
    pub(super) initial_seats: u64,
    /// Seats afterwards, for `additional_latency`.
    pub(super) final_seats: u64,
    pub(super) additional_latency: Duration,
}

impl Work {
    /// One seat, until the answer.
    pub(crate) const ONE: Self = Self::seats(1);

    const fn seats(initial_seats: u64) -> Self {
        Self {
            initial_seats,
            final_seats: 0,
            additional_latency: Duration::ZERO,
        }
    }

    /// The seats that are held in both phases.
    pub(super) fn width(&self) -> u64 {
        self.initial_seats.max(self.final_seats)
    }

    /// The work of the second phase.
    pub(super) fn final_work(&self) -> SeatSeconds {
        seat_seconds(self.final_seats as f64, self.additional_latency)
    }

    /// The work of both phases.
    pub(super) fn total(&self) -> SeatSeconds {
        seat_seconds(self.initial_seats as f64, ESTIMATED_DURATION) + self.final_work()
    }
}

/// Sizes of the collections in storage.
pub(crate) trait Collections {
    /// Objects and bytes of the collection; `None` if there is none.
    fn size(&self) -> Option<(usize, usize)>;

    /// Watchers of an object.
    fn watchers(&self, namespace: &str, name: &str) -> usize;
}

/// The work of a request in a level whose requests have at most `seats_max` seats.
pub(super) fn estimate(
    attributes: &Attributes<'_>,
    query: &Query,
    collections: &dyn Collections,
    seats_max: Option<u64>,
) -> Work {
    let Target::Resource {
        resource,
        subresource,
        namespace,
        name,
        ..
    } = attributes.target
    else {
        return Work::ONE;
    };
    match attributes.verb {
        "list" | "watch" => {
            let max = seats_max.unwrap_or(LIST_SEATS_MAX).min(LIST_SEATS_MAX);
            list(attributes.verb, name, query, collections, max)
        }
        // A token request produces no event.
        "create" if resource == "serviceaccounts" && subresource == "token" => Work::ONE,
        "create" | "update" | "patch" | "delete" => {
            let max = seats_max
                .unwrap_or(MUTATING_SEATS_MAX)
                .min(MUTATING_SEATS_MAX);
            mutating(collections.watchers(namespace, name) as u64, max)
        }
        _ => Work::ONE,
    }
}

/// Mirrors `listWorkEstimator` with size-based costs.
fn list(verb: &str, name: &str, query: &Query, collections: &dyn Collections, max: u64) -> Work {
    let given = |key: &str| query.get(key).filter(|value| !value.is_empty());
    let version = given("resourceVersion");
    let watch = verb == "watch";
    if watch {
        let sends_initial_events = query.flag("sendInitialEvents");
        let sends_by_default = matches!(version, None | Some("0"));
        if !sends_initial_events && !sends_by_default {
            return Work::ONE;
        }
    }
    let limit = match given("limit").map(str::parse::<u64>) {
        None => None,
        Some(Ok(limit)) => Some(limit).filter(|limit| *limit > 0),
        // The request fails in validation.
        Some(Err(_)) => return Work::seats(max),
    };
    let Some((objects, bytes)) = collections.size() else {
        return Work::ONE;
    };
    let objects = objects as u64;
    let mean_bytes = (bytes as u64).checked_div(objects).unwrap_or_default();
    // Mirrors `ShouldDelegateList`: old versions and further pages are not in the cache.
    let exact = match given("resourceVersionMatch") {
        Some(rule) => rule == "Exact",
        None => {
            given("continue").is_some() || (limit.is_some() && !matches!(version, None | Some("0")))
        }
    };
    let cached = watch || !exact;
    let selects = given("labelSelector").is_some() || given("fieldSelector").is_some();
    let limited = limit.map_or(objects, |limit| limit.min(objects));
    let loaded = match () {
        () if !name.is_empty() => 1,
        () if !cached && selects => limited.max(objects / 2),
        () => limited,
    };
    let mut loaded_bytes = loaded * mean_bytes;
    if cached {
        loaded_bytes = loaded_bytes.min(CACHED_LIST_BYTES_MAX);
    }
    Work::seats(loaded_bytes.div_ceil(BYTES_PER_SEAT).clamp(1, max))
}

/// Mirrors `mutatingWorkEstimator`: below one seat of watchers, their work is not counted.
fn mutating(watchers: u64, max: u64) -> Work {
    if watchers < WATCHERS_PER_SEAT {
        return Work::ONE;
    }
    let seats = watchers.div_ceil(WATCHERS_PER_SEAT);
    let final_seats = seats.min(max);
    Work {
        initial_seats: 1,
        final_seats,
        additional_latency: duration_per_seat(
            seat_seconds(seats as f64, EVENT_DURATION),
            final_seats,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        auth::User,
        http::{request_info::RequestInfo, route::Route},
    };

    struct Size(Option<(usize, usize)>, usize);

    impl Collections for Size {
        fn size(&self) -> Option<(usize, usize)> {
            self.0
        }

        fn watchers(&self, _: &str, _: &str) -> usize {
            self.1
        }
    }

    fn work(request: &str, collections: &Size, seats_max: Option<u64>) -> Work {
        let (method, url) = request.split_once(' ').expect("method and URL");
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let method = method.parse().expect("a method");
        let query = Query::parse(query).expect("a query");
        let request_info = match Route::parse(path) {
            Route::Resource(resource) => RequestInfo::of_resource(&method, &resource, &query),
            _ => RequestInfo::of_path(&method, path),
        };
        let user = User::anonymous();
        estimate(
            &Attributes::of(&request_info, &user),
            &query,
            collections,
            seats_max,
        )
    }

    #[test]
    fn lists_take_a_seat_per_100_kilobytes() {
        let pods = "GET /api/v1/pods";
        let many = Size(Some((1000, 5_000_000)), 0);
        for (query, seats) in [
            ("", 10),
            ("?limit=100", 5),
            ("?limit=500&continue=x", 25),
            ("?continue=x", 50),
            ("?continue=x&limit=10&labelSelector=a", 25),
            ("?labelSelector=a", 10),
            ("?limit=10&labelSelector=a", 1),
            ("?resourceVersion=7&resourceVersionMatch=Exact", 50),
            (
                "?resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=10",
                1,
            ),
            ("?resourceVersion=7&limit=100", 5),
            ("?resourceVersion=7&limit=1000", 50),
            ("?fieldSelector=metadata.name%3Dx", 1),
            ("?limit=x", 100),
            ("?watch=1", 10),
            ("?watch=1&resourceVersion=0", 10),
            ("?watch=1&resourceVersion=7", 1),
            ("?watch=1&resourceVersion=7&sendInitialEvents=true", 10),
        ] {
            let found = work(&format!("{pods}{query}"), &many, None);
            assert_eq!(found, Work::seats(seats), "{query}");
        }
        assert_eq!(work(pods, &Size(None, 0), None), Work::ONE);
        assert_eq!(work(pods, &Size(Some((0, 0)), 0), None), Work::ONE);
        let huge = Size(Some((1000, 50_000_000)), 0);
        assert_eq!(
            work("GET /api/v1/pods?continue=x", &huge, None),
            Work::seats(100)
        );
        assert_eq!(
            work("GET /api/v1/pods?continue=x", &huge, Some(8)),
            Work::seats(8)
        );
    }

    #[test]
    fn watchers_of_a_changed_object_take_seats_after_the_answer() {
        let update = "PUT /api/v1/namespaces/a/pods/b";
        let watched = |watchers| Size(Some((1, 1)), watchers);
        assert_eq!(work(update, &watched(9), None), Work::ONE);
        let few = work(update, &watched(25), None);
        assert_eq!(few.initial_seats, 1);
        assert_eq!(few.final_seats, 3);
        assert_eq!(few.additional_latency, Duration::from_micros(50));
        let many = work(update, &watched(1000), Some(8));
        assert_eq!(many.final_seats, 8);
        assert_eq!(many.additional_latency, Duration::from_micros(625));
        assert_eq!(many.width(), 8);
        assert_eq!(many.final_work(), seat_seconds(100.0, EVENT_DURATION));
        for other in [
            "GET /api/v1/namespaces/a/pods/b",
            "DELETE /api/v1/namespaces/a/pods",
            "POST /api/v1/namespaces/a/serviceaccounts/b/token",
            "GET /version",
        ] {
            assert_eq!(work(other, &watched(1000), None), Work::ONE, "{other}");
        }
    }

    #[test]
    fn work_is_counted_in_units_of_seat_seconds() {
        assert_eq!(Work::ONE.total(), 300_000);
        assert_eq!(show_seat_seconds(1_000_300_000), "10.00300000ss");
        assert_eq!(duration_per_seat(300_000, 3), Duration::from_millis(1));
    }
}
