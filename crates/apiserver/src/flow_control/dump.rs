//! The debug endpoints: priority levels, queues and requests as tables.
//! In: the state of flow control. Out: text with the columns of kube-apiserver 1.36.

use std::{fmt::Write as _, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{
    FlowControl,
    level::Level,
    queue::{Queue, Queuing},
    request::Request,
    work_estimate::show_seat_seconds,
};

/// The narrowest column.
const COLUMN_MIN: usize = 8;

/// At most this many idle queues of a level are listed.
const IDLE_QUEUES_MAX: u32 = 1024;

/// The zero time of Go: the request waits.
const NOT_STARTED: &str = "0001-01-01T00:00:00Z";

type Row = Vec<String>;

/// The table of a name, such as `dump_queues`; `None` if there is none. `now` is the time of day.
pub(crate) fn dump(
    flow_control: &FlowControl,
    name: &str,
    details: bool,
    now: Timestamp,
) -> Option<String> {
    let rows: fn(&[&Level], &Clock, bool) -> Vec<Row> = match name {
        "dump_priority_levels" => |levels, _, _| priority_levels(levels),
        "dump_queues" => |levels, _, _| queues(levels),
        "dump_requests" => requests,
        _ => return None,
    };
    let clock = Clock {
        instant: Instant::now(),
        time: now,
    };
    let rows = flow_control.with_state(|state| {
        state.advance(clock.instant);
        let mut levels: Vec<&Level> = state.levels().collect();
        levels.sort_by(|a, b| a.config.name.cmp(&b.config.name));
        rows(&levels, &clock, details)
    });
    Some(table(&rows))
}

/// One moment on both clocks.
struct Clock {
    instant: Instant,
    time: Timestamp,
}

impl Clock {
    /// The time of day of an earlier moment.
    fn show(&self, earlier: Instant) -> String {
        let ago = SignedDuration::try_from(self.instant - earlier).unwrap_or_default();
        self.time
            .checked_sub(ago)
            .map_or_else(|_| NOT_STARTED.to_owned(), |time| time.to_string())
    }
}

fn headings(names: &[&str]) -> Row {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn priority_levels(levels: &[&Level]) -> Vec<Row> {
    let head = headings(&[
        "PriorityLevelName",
        "ActiveQueues",
        "IsIdle",
        "IsQuiescing",
        "WaitingRequests",
        "ExecutingRequests",
        "DispatchedRequests",
        "RejectedRequests",
        "TimedoutRequests",
        "CancelledRequests",
    ]);
    let rows = levels.iter().map(|level| {
        let queues = &level.queues;
        let active = queues.queues().filter(|(_, queue)| queue.waiting > 0);
        let idle = queues.waiting() == 0 && queues.executing() == 0;
        vec![
            level.config.name.clone(),
            active.count().to_string(),
            idle.to_string(),
            level.quiescing.to_string(),
            queues.waiting().to_string(),
            queues.executing().to_string(),
            queues.counts.dispatched.to_string(),
            queues.counts.rejected.to_string(),
            "0".to_owned(),
            queues.counts.cancelled.to_string(),
        ]
    });
    std::iter::once(head).chain(rows).collect()
}

fn queues(levels: &[&Level]) -> Vec<Row> {
    let mut rows = vec![headings(&[
        "PriorityLevelName",
        "Index",
        "PendingRequests",
        "ExecutingRequests",
        "SeatsInUse",
        "NextDispatchR",
        "InitialSeatsSum",
        "MaxSeatsSum",
        "TotalWorkSum",
    ])];
    let idle = Queue::default();
    for level in levels {
        let configured = match level.queues.queuing() {
            Queuing::Queue { dealer, .. } => dealer.queues().min(IDLE_QUEUES_MAX),
            _ => 0,
        };
        let mut row = |index: u32, queue: &Queue| {
            rows.push(vec![
                level.config.name.clone(),
                index.to_string(),
                queue.waiting.to_string(),
                queue.executing.to_string(),
                queue.seats_in_use.to_string(),
                show_seat_seconds(queue.next_dispatch_r),
                queue.waiting_initial_seats.to_string(),
                queue.waiting_seats.to_string(),
                show_seat_seconds(queue.waiting_work),
            ]);
        };
        let mut next = 0;
        for (index, queue) in level.queues.queues() {
            (next..index.min(configured)).for_each(|index| row(index, &idle));
            row(index, queue);
            next = index + 1;
        }
        (next..configured).for_each(|index| row(index, &idle));
    }
    rows
}

fn requests(levels: &[&Level], clock: &Clock, details: bool) -> Vec<Row> {
    let mut head = headings(&[
        "PriorityLevelName",
        "FlowSchemaName",
        "QueueIndex",
        "RequestIndexInQueue",
        // As kube-apiserver spells it.
        "FlowDistingsher",
        "ArriveTime",
        "InitialSeats",
        "FinalSeats",
        "AdditionalLatency",
        "StartTime",
    ]);
    if details {
        head.extend(headings(&[
            "UserName",
            "Verb",
            "APIPath",
            "Namespace",
            "Name",
            "APIVersion",
            "Resource",
            "SubResource",
        ]));
    }
    let mut rows = vec![head];
    for level in levels {
        let mut row = |index: Option<usize>, request: &Request| {
            let shown = |index: Option<u64>| index.map_or("-1".to_owned(), |i| i.to_string());
            let mut cells = vec![
                level.config.name.clone(),
                request.metrics.flow_schema.clone(),
                shown(request.queue.map(u64::from)),
                shown(index.map(|index| index as u64)),
                request.details.flow_distinguisher.to_string(),
                clock.show(request.arrived),
                request.work.initial_seats.to_string(),
                request.work.final_seats.to_string(),
                go_duration(request.work.additional_latency),
                request
                    .started
                    .map_or_else(|| NOT_STARTED.to_owned(), |at| clock.show(at)),
            ];
            if details {
                cells.push(request.details.user.clone());
                cells.extend(request.details.request_info.columns());
            }
            rows.push(cells);
        };
        for (_, queue) in level.queues.queues() {
            for (position, request) in level.queues.waiting_in(queue).enumerate() {
                row(Some(position), request);
            }
        }
        for request in level.queues.executing_requests() {
            row(None, request);
        }
    }
    rows
}

/// Columns of equal width, separated by commas, as Go's tabwriter makes them.
fn table(rows: &[Row]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let longest = rows.iter().map(|row| row[column].chars().count()).max();
            (longest.unwrap_or_default() + ", ".len()).max(COLUMN_MIN)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == columns {
                text.push_str(cell);
            } else {
                let cell = format!("{cell},");
                let width = widths[column];
                write!(text, "{cell:width$}").expect("writing to memory does not fail");
            }
        }
        text.push('\n');
    }
    text
}

/// A duration below a minute as Go prints it.
fn go_duration(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos() as f64;
    match duration {
        Duration::ZERO => "0s".to_owned(),
        d if d < Duration::from_micros(1) => format!("{nanoseconds}ns"),
        d if d < Duration::from_millis(1) => format!("{}µs", nanoseconds / 1e3),
        d if d < Duration::from_secs(1) => format!("{}ms", nanoseconds / 1e6),
        _ => format!("{}s", nanoseconds / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_as_by_tabwriter() {
        let rows = [
            headings(&["Name", "Index", "Sum"]),
            headings(&["a-long-name", "1", "2"]),
        ];
        assert_eq!(
            table(&rows),
            "Name,        Index,  Sum\na-long-name, 1,      2\n"
        );
    }

    #[test]
    fn durations_are_those_of_go() {
        for (micros, shown) in [
            (0, "0s"),
            (5000, "5ms"),
            (62_500, "62.5ms"),
            (1_500_000, "1.5s"),
        ] {
            assert_eq!(go_duration(Duration::from_micros(micros)), shown);
        }
    }
}
