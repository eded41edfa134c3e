//! The state of flow control: the requests of all priority levels.
//! In: arrivals, ends, cancellations and the time of each. Out: which requests are executed.
//! Guarantees: given the same calls with the same times, the same requests are dispatched in the
//! same order; the seats in use of a level exceed its limit only after the limit fell, or by one
//! request that is wider than it; nothing here waits or reads a clock.
//!
//! Seats are borrowed every 10 s, and seats of requests that ended linger for some milliseconds.
//! Both are computed by the next call, at the times at which they were due, in order
//! ([`State::advance`]). Between two calls no request arrives or ends, so the result is that of a
//! timer, as long as one runs while requests wait: only these can be dispatched by the passing of
//! time alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    level::{Level, LevelId, Load},
    queue::RejectReason,
    queue_set::{Arrival, Slot},
    request::{Request, RequestKind},
    seats::BORROWING_PERIOD,
};

/// The outcome of an arrival.
#[derive(Debug)]
pub(super) enum Start {
    Executing(Slot),
    Waiting(Slot, oneshot::Receiver<()>),
    Rejected,
}

/// Requests of all levels.
#[derive(Debug)]
pub(super) struct State {
    pub(super) seats_total: u64,
    pub(super) levels: BTreeMap<LevelId, Level>,
    pub(super) next_id: LevelId,
    pub(super) nominal_sum: u64,
    pub(super) fair_fraction: f64,
    /// Answered requests whose seats are in use until then.
    lingering: BTreeSet<(Instant, LevelId, Slot)>,
    pub(super) next_adjustment: Instant,
    /// Seats of dispatched requests that compete for the processor, and the most of them. Without
    /// this limit, a flood would wait in the queue of the runtime instead of those of its level.
    processor_seats: u64,
    processor_seats_max: u64,
    /// Whether some level could dispatch but for `processor_seats_max`.
    held_back: bool,
    waiting: usize,
    read_only: Load,
    mutating: Load,
    /// Waiters of requests that were dispatched, to be notified without the lock.
    dispatched: Vec<oneshot::Sender<()>>,
}

impl State {
    /// No levels.
    pub(super) fn new(seats_total: u64, processor_seats_max: u64, now: Instant) -> Self {
        Self {
            seats_total,
            levels: BTreeMap::new(),
            next_id: 0,
            nominal_sum: 0,
            fair_fraction: 0.0,
            lingering: BTreeSet::new(),
            next_adjustment: now + BORROWING_PERIOD,
            processor_seats: 0,
            processor_seats_max,
            held_back: false,
            waiting: 0,
            read_only: Load::default(),
            mutating: Load::default(),
            dispatched: Vec::new(),
        }
    }

    /// The levels, oldest first.
    pub(super) fn levels(&self) -> impl Iterator<Item = &Level> {
        self.levels.values()
    }

    pub(super) fn level_mut(&mut self, id: LevelId) -> &mut Level {
        self.levels
            .get_mut(&id)
            .expect("a level is kept while a request is classified to it")
    }

    fn level(&self, id: LevelId) -> &Level {
        self.levels
            .get(&id)
            .expect("a level is kept while a request is classified to it")
    }

    /// Requests that read and those that mutate.
    pub(super) fn load(&self) -> (Load, Load) {
        (self.read_only, self.mutating)
    }

    /// When time alone changes something next, if requests wait for it.
    pub(super) fn next_event(&self) -> Option<Instant> {
        (self.waiting > 0).then(|| self.next_due())
    }

    fn next_due(&self) -> Instant {
        match self.lingering.first() {
            Some((until, ..)) => self.next_adjustment.min(*until),
            None => self.next_adjustment,
        }
    }

    /// The waiters to notify.
    pub(super) fn take_dispatched(&mut self) -> Vec<oneshot::Sender<()>> {
        std::mem::take(&mut self.dispatched)
    }

    /// Does what was due by now: free seats that lingered, and adjust the limits.
    pub(super) fn advance(&mut self, now: Instant) {
        loop {
            let due = self.next_due();
            if due > now {
                return;
            }
            if due < self.next_adjustment {
                self.release_lingering(due);
            } else {
                self.next_adjustment += BORROWING_PERIOD;
                if self.levels.values().any(Level::is_done) {
                    self.set_ranges();
                }
                self.adjust(due);
                self.skip_idle_periods(due, now);
            }
        }
    }

    fn release_lingering(&mut self, due: Instant) {
        let Some((_, id, slot)) = self.lingering.pop_first() else {
            return;
        };
        self.release(id, slot, due);
        self.dispatch(due);
    }

    fn has_processor_seats(&self, width: u64) -> bool {
        self.processor_seats + width.min(self.processor_seats_max) <= self.processor_seats_max
    }

    /// A request arrives at its level.
    pub(super) fn start(&mut self, id: LevelId, request: Request, now: Instant) -> Start {
        self.advance(now);
        let may_execute = !self.held_back && self.has_processor_seats(request.work.width());
        let metrics = request.metrics.clone();
        let width = request.work.width();
        let kind = request.kind;
        let level = self.level_mut(id);
        let arrival = level.queues.arrive(request, may_execute, now);
        level.demand_changed(now);
        match arrival {
            Arrival::Executing(slot) => {
                self.executing(id, slot);
                Start::Executing(slot)
            }
            Arrival::Waiting(slot) => {
                self.waiting += 1;
                if let Some(load) = self.load_mut(kind) {
                    load.waiting += 1;
                }
                metrics.enqueued(width);
                self.dispatch(now);
                let request = self.level_mut(id).queues.request_mut(slot);
                if request.is_executing() {
                    return Start::Executing(slot);
                }
                let (sender, receiver) = oneshot::channel();
                request.waiter = Some(sender);
                Start::Waiting(slot, receiver)
            }
            Arrival::Rejected(reason) => {
                metrics.rejected(reason);
                Start::Rejected
            }
        }
    }

    /// Dispatches while seats are free. A free seat of the processor goes to the level that has the
    /// smallest part of its seats in use.
    pub(super) fn dispatch(&mut self, now: Instant) {
        if self.waiting == 0 && !self.held_back {
            return;
        }
        self.held_back = loop {
            let next = self
                .levels
                .iter()
                .filter_map(|(id, level)| Some((*id, level, level.queues.next_width()?)))
                .min_by(|(_, level, _), (_, other, _)| level.less_used(other));
            let Some((id, _, width)) = next else {
                break false;
            };
            if !self.has_processor_seats(width) {
                break true;
            }
            self.dispatch_one(id, now);
        };
        for level in self.levels.values_mut() {
            let held_back = self.held_back && level.queues.next_width().is_some();
            level.queues.hold_back(held_back, now);
        }
    }

    fn dispatch_one(&mut self, id: LevelId, now: Instant) {
        let level = self.level_mut(id);
        let slot = level.queues.dispatch(now);
        level.demand_changed(now);
        let request = level.queues.request_mut(slot);
        let kind = request.kind;
        request.metrics.dequeued(request.work.width());
        let waiter = request.waiter.take();
        self.dispatched.extend(waiter);
        self.waiting -= 1;
        if let Some(load) = self.load_mut(kind) {
            load.waiting -= 1;
        }
        self.executing(id, slot);
    }

    /// A request of any level is executed from now on.
    fn executing(&mut self, id: LevelId, slot: Slot) {
        let processor_seats_max = self.processor_seats_max;
        let request = self.level_mut(id).queues.request_mut(slot);
        let width = request.work.width();
        let kind = request.kind;
        if request.queue.is_some() {
            request.processor_seats = width.min(processor_seats_max);
        }
        let processor_seats = request.processor_seats;
        request.seat.occupy();
        request.metrics.dispatched(width);
        self.processor_seats += processor_seats;
        if let Some(load) = self.load_mut(kind) {
            load.running += 1;
        }
    }

    fn load_mut(&mut self, kind: Option<RequestKind>) -> Option<&mut Load> {
        match kind? {
            RequestKind::ReadOnly => Some(&mut self.read_only),
            RequestKind::Mutating => Some(&mut self.mutating),
        }
    }

    /// A request that is executed waits for something else than the processor. It keeps its seats
    /// of the level.
    pub(super) fn release_processor(&mut self, id: LevelId, slot: Slot, now: Instant) {
        self.advance(now);
        let request = self.level_mut(id).queues.request_mut(slot);
        let seats = std::mem::take(&mut request.processor_seats);
        self.processor_seats -= seats;
        self.dispatch(now);
    }

    /// A request is no longer executed. Returns how long it was.
    fn finish(&mut self, id: LevelId, slot: Slot, now: Instant) -> Duration {
        let level = self.level_mut(id);
        let request = level.queues.request_mut(slot);
        let processor_seats = std::mem::take(&mut request.processor_seats);
        let kind = request.kind;
        let started = request
            .started
            .expect("only a request that is executed ends");
        request.seat.leave();
        request.metrics.finished();
        let lingers = level.queues.finish(slot, now);
        self.processor_seats -= processor_seats;
        if let Some(load) = self.load_mut(kind) {
            load.running -= 1;
        }
        if lingers.is_zero() {
            self.release(id, slot, now);
        } else {
            self.lingering.insert((now + lingers, id, slot));
        }
        self.dispatch(now);
        now.saturating_duration_since(started)
    }

    fn release(&mut self, id: LevelId, slot: Slot, now: Instant) {
        let level = self.level_mut(id);
        let request = level.queues.release(slot, now);
        level.demand_changed(now);
        request.metrics.released(request.work.width());
    }

    /// A request has ended, or is given up while it waits. Returns how long it was executed, if it
    /// was.
    pub(super) fn end(&mut self, id: LevelId, slot: Slot, now: Instant) -> Option<Duration> {
        self.advance(now);
        if self.is_executing(id, slot) {
            Some(self.finish(id, slot, now))
        } else {
            self.cancel(id, slot, now);
            None
        }
    }

    fn cancel(&mut self, id: LevelId, slot: Slot, now: Instant) {
        let level = self.level_mut(id);
        let request = level.queues.cancel(slot, now);
        level.demand_changed(now);
        request.metrics.dequeued(request.work.width());
        request.metrics.rejected(RejectReason::TimeOut);
        self.waiting -= 1;
        if let Some(load) = self.load_mut(request.kind) {
            load.waiting -= 1;
        }
        self.dispatch(now);
    }

    /// Whether a request that waited is executed.
    pub(super) fn is_executing(&self, id: LevelId, slot: Slot) -> bool {
        self.level(id).queues.request(slot).is_executing()
    }

    /// Whether the sums agree with each other.
    #[cfg(test)]
    pub(super) fn check(&self, processor_seats_max: u64) {
        assert!(self.processor_seats <= processor_seats_max);
        let waiting: usize = self.levels().map(|level| level.queues.waiting()).sum();
        assert_eq!(self.waiting, waiting);
        let executing = self
            .levels()
            .flat_map(|level| level.queues.executing_requests());
        let processor_seats: u64 = executing.map(|request| request.processor_seats).sum();
        assert_eq!(self.processor_seats, processor_seats);
        let load = (self.read_only, self.mutating);
        assert_eq!(load.0.waiting + load.1.waiting, waiting);
        for level in self.levels() {
            level.queues.check();
            if level.queues.next_width().is_some() {
                assert!(self.held_back, "{} could dispatch", level.config.name);
            }
        }
    }
}
