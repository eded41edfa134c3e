//! Fair queuing within one priority level.
//! In: requests with the hash of their flow and their work, the level's concurrency limit. Out:
//! which request is executed next, or why one is rejected.
//! Guarantees: requests are dispatched in the order of kube-apiserver's `queueset`, without
//! randomness; every operation takes O(log active queues) time and an idle queue takes no memory.
//!
//! Virtual time R counts the seat-seconds that each active queue was due. A queue that becomes
//! active starts at R, moves on by the work of each dispatched request, and is corrected by the
//! real duration once that request ends. The queue whose oldest request ends first in virtual time
//! is next.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    queue::{Queue, Queuing, RejectReason},
    request::Request,
    shuffle_sharding::Dealer,
    work_estimate::{ESTIMATED_DURATION, SeatSeconds, duration_per_seat, seat_seconds},
};

/// The place of a request in its level, until its last seat is free.
pub(super) type Slot = usize;

/// The outcome of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Executing(Slot),
    Waiting(Slot),
    Rejected(RejectReason),
}

/// The queues of a level and its requests.
#[derive(Debug)]
pub(super) struct QueueSet {
    queuing: Queuing,
    limit: u64,
    /// Virtual time. At 600 seats in use by one queue, it overflows after nine years.
    r: SeatSeconds,
    r_updated: Instant,
    /// Whether requests wait for something else than a seat of the level.
    held_back: bool,
    slots: Vec<Option<Request>>,
    free: Vec<Slot>,
    /// The queues that are active or have seats in use.
    queues: BTreeMap<u32, Queue>,
    /// The virtual time at which the oldest request of a queue ends, for each with one.
    heads: BTreeSet<(SeatSeconds, u32)>,
    /// The queue of the last dispatch.
    robin: u32,
    active_queues: usize,
    /// Seats in use by requests of a queue.
    queued_seats_in_use: u64,
    arrivals: usize,
    waiting: usize,
    seats_waiting: u64,
    executing: usize,
    seats_in_use: u64,
    pub(super) counts: Counts,
}

/// Counters of the debug endpoints, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) dispatched: u64,
    pub(super) rejected: u64,
    pub(super) cancelled: u64,
}

impl QueueSet {
    /// No requests.
    pub(super) fn new(queuing: Queuing, limit: u64, now: Instant) -> Self {
        Self {
            queuing,
            limit,
            r: 0,
            r_updated: now,
            held_back: false,
            slots: Vec::new(),
            free: Vec::new(),
            queues: BTreeMap::new(),
            heads: BTreeSet::new(),
            robin: 0,
            active_queues: 0,
            queued_seats_in_use: 0,
            arrivals: 0,
            waiting: 0,
            seats_waiting: 0,
            executing: 0,
            seats_in_use: 0,
            counts: Counts::default(),
        }
    }

    pub(super) fn queuing(&self) -> Queuing {
        self.queuing
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn executing(&self) -> usize {
        self.executing
    }

    pub(super) fn seats_in_use(&self) -> u64 {
        self.seats_in_use
    }

    /// Seats that are used or waited for.
    pub(super) fn demand(&self) -> u64 {
        self.seats_in_use + self.seats_waiting
    }

    /// Whether no request is here, not even one that lingers.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// The queues that are not idle, by index.
    pub(super) fn queues(&self) -> impl Iterator<Item = (u32, &Queue)> {
        self.queues.iter().map(|(index, queue)| (*index, queue))
    }

    /// The requests that wait in a queue, oldest first.
    pub(super) fn waiting_in<'a>(&'a self, queue: &'a Queue) -> impl Iterator<Item = &'a Request> {
        std::iter::successors(queue.head, |slot| self.request(*slot).next)
            .map(|slot| self.request(slot))
    }

    /// The requests that are executed, in the order of their slots.
    pub(super) fn executing_requests(&self) -> impl Iterator<Item = &Request> {
        self.slots
            .iter()
            .flatten()
            .filter(|request| request.is_executing())
    }

    /// The request of a slot.
    pub(super) fn request(&self, slot: Slot) -> &Request {
        self.slots[slot]
            .as_ref()
            .expect("a slot is used until its request is released")
    }

    /// The request of a slot.
    pub(super) fn request_mut(&mut self, slot: Slot) -> &mut Request {
        self.slots[slot]
            .as_mut()
            .expect("a slot is used until its request is released")
    }

    /// Changes the configuration; waiting requests keep their queues until they are dispatched.
    pub(super) fn configure(&mut self, queuing: Queuing, limit: u64, now: Instant) {
        self.sync_time(now);
        self.queuing = queuing;
        self.limit = limit;
    }

    /// Whether requests are delayed by something else than the level's limit. Virtual time then
    /// passes only for the seats in use, since the level cannot use its limit.
    pub(super) fn hold_back(&mut self, held_back: bool, now: Instant) {
        if self.held_back != held_back {
            self.sync_time(now);
            self.held_back = held_back;
        }
    }

    /// Brings virtual time up to now, at the rate of the state that lasted until now.
    fn sync_time(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.r_updated);
        self.r_updated = now;
        if self.active_queues == 0 || elapsed.is_zero() {
            return;
        }
        let waiting = if self.held_back {
            0
        } else {
            self.seats_waiting
        };
        let seats = (self.queued_seats_in_use + waiting).min(self.limit);
        let rate = seats as f64 / self.active_queues as f64;
        self.r = self.r.saturating_add(seat_seconds(rate, elapsed));
    }

    /// Whether a request of this width fits now. One that is wider than the limit is executed
    /// alone.
    fn fits(&self, width: u64) -> bool {
        match self.queuing {
            Queuing::Exempt => true,
            _ if width > self.limit => self.executing == 0,
            _ => self.seats_in_use + width <= self.limit,
        }
    }

    /// A request arrives. If it has to wait, the caller dispatches. `may_execute` is whether it may
    /// be executed as far as others than this level are concerned.
    pub(super) fn arrive(&mut self, request: Request, may_execute: bool, now: Instant) -> Arrival {
        self.sync_time(now);
        let width = request.work.width();
        match self.queuing {
            Queuing::Exempt | Queuing::Reject if !self.fits(width) => {
                self.counts.rejected += 1;
                Arrival::Rejected(RejectReason::ConcurrencyLimit)
            }
            Queuing::Exempt | Queuing::Reject => {
                let slot = self.insert(request);
                self.execute(slot, now);
                Arrival::Executing(slot)
            }
            Queuing::Queue {
                dealer,
                length_limit,
            } => {
                let index = self.shuffle_shard(dealer, request.flow_hash);
                let waiting = self.queues.get(&index).map_or(0, |queue| queue.waiting);
                let has_no_seats = !may_execute || self.seats_in_use >= self.limit;
                if has_no_seats && waiting >= length_limit {
                    self.counts.rejected += 1;
                    return Arrival::Rejected(RejectReason::QueueFull);
                }
                let slot = self.insert(request);
                self.enqueue(slot, index);
                let alone = self.waiting == 1;
                if may_execute && alone && self.seats_in_use < self.limit && self.fits(width) {
                    self.dispatch(now);
                    return Arrival::Executing(slot);
                }
                Arrival::Waiting(slot)
            }
        }
    }

    /// The queue of the flow's hand with the least work waiting. The first candidate changes with
    /// each arrival, so that ties do not always go to the same queue. Mirrors `shuffleShardLocked`.
    fn shuffle_shard(&mut self, dealer: Dealer, hash: u64) -> u32 {
        let hand = dealer.deal(hash);
        let queues = hand.queues();
        let offset = self.arrivals % queues.len();
        self.arrivals = self.arrivals.wrapping_add(1);
        let (before, from) = queues.split_at(offset);
        from.iter()
            .chain(before)
            .copied()
            .min_by_key(|index| self.queues.get(index).map_or(0, |queue| queue.waiting_work))
            .expect("a hand has at least one queue")
    }

    fn insert(&mut self, request: Request) -> Slot {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(request);
                slot
            }
            None => {
                self.slots.push(Some(request));
                self.slots.len() - 1
            }
        }
    }

    fn enqueue(&mut self, slot: Slot, index: u32) {
        let r = self.r;
        let queue = self.queues.entry(index).or_default();
        if !queue.is_active() {
            queue.next_dispatch_r = r;
            self.active_queues += 1;
        }
        let request = self.slots[slot]
            .as_mut()
            .expect("the slot was filled by the caller");
        request.arrival_r = r;
        request.queue = Some(index);
        request.previous = queue.tail;
        let previous = queue.tail.replace(slot);
        let width = request.work.width();
        queue.waiting += 1;
        queue.waiting_seats += width;
        queue.waiting_initial_seats += request.work.initial_seats;
        queue.waiting_work += request.total_work;
        self.waiting += 1;
        self.seats_waiting += width;
        match previous {
            Some(previous) => self.request_mut(previous).next = Some(slot),
            None => {
                queue.head = Some(slot);
                self.bound_start(index);
            }
        }
    }

    /// The queue whose oldest request is next; ties go round robin.
    fn next_queue(&self) -> Option<u32> {
        let (end, first) = *self.heads.first()?;
        let next = self.robin.checked_add(1);
        let after = next.and_then(|next| self.heads.range((end, next)..=(end, u32::MAX)).next());
        Some(after.map_or(first, |(_, index)| *index))
    }

    /// The width of the next request, if the level has seats for it. A request that does not fit
    /// blocks the level until it does.
    pub(super) fn next_width(&self) -> Option<u64> {
        if self.seats_in_use >= self.limit {
            return None;
        }
        let queue = self.queues.get(&self.next_queue()?)?;
        let width = self.request(queue.head?).work.width();
        self.fits(width).then_some(width)
    }

    /// Executes the next request, which must fit.
    pub(super) fn dispatch(&mut self, now: Instant) -> Slot {
        self.sync_time(now);
        let index = self.next_queue().expect("the caller saw a waiting request");
        let slot = self.queues[&index]
            .head
            .expect("a queue with a virtual end has a waiting request");
        debug_assert!(self.fits(self.request(slot).work.width()));
        self.robin = index;
        self.dequeue(slot, index);
        let limit = self.limit;
        let request = self.request_mut(slot);
        if request.work.final_seats > limit {
            // The second phase gets narrower and longer, so that its work stays the same.
            let final_work = request.work.final_work();
            request.work.final_seats = limit;
            request.work.additional_latency = duration_per_seat(final_work, limit);
        }
        let work = request.total_work;
        self.execute(slot, now);
        self.queue_mut(index).next_dispatch_r += work;
        self.bound_start(index);
        slot
    }

    fn execute(&mut self, slot: Slot, now: Instant) {
        let request = self.request_mut(slot);
        request.started = Some(now);
        let width = request.work.width();
        let index = request.queue;
        self.counts.dispatched += 1;
        self.executing += 1;
        self.seats_in_use += width;
        if let Some(index) = index {
            self.queued_seats_in_use += width;
            let queue = self.queues.entry(index).or_default();
            if !queue.is_active() {
                self.active_queues += 1;
            }
            queue.executing += 1;
            queue.seats_in_use += width;
        }
    }

    /// Takes a request out of its queue. If it was the oldest, the caller enters the next one into
    /// the order of the queues.
    fn dequeue(&mut self, slot: Slot, index: u32) {
        let request = self.request_mut(slot);
        let previous = request.previous.take();
        let next = request.next.take();
        let work = request.work;
        let total = request.total_work;
        if let Some(previous) = previous {
            self.request_mut(previous).next = next;
        }
        if let Some(next) = next {
            self.request_mut(next).previous = previous;
        }
        let queue = self
            .queues
            .get_mut(&index)
            .expect("a queue with requests is kept");
        if previous.is_none() {
            self.heads.remove(&(queue.next_dispatch_r + total, index));
            queue.head = next;
        }
        if next.is_none() {
            queue.tail = previous;
        }
        queue.waiting -= 1;
        queue.waiting_seats -= work.width();
        queue.waiting_initial_seats -= work.initial_seats;
        queue.waiting_work -= total;
        if !queue.is_active() {
            self.active_queues -= 1;
        }
        self.waiting -= 1;
        self.seats_waiting -= work.width();
    }

    fn queue_mut(&mut self, index: u32) -> &mut Queue {
        self.queues
            .get_mut(&index)
            .expect("a queue with requests is kept")
    }

    /// Moves the start of a queue in virtual time.
    fn move_start(&mut self, index: u32, to: impl FnOnce(SeatSeconds) -> SeatSeconds) {
        let queue = self.queue_mut(index);
        let before = queue.next_dispatch_r;
        queue.next_dispatch_r = to(before);
        if let Some(head) = queue.head {
            let total = self.request(head).total_work;
            self.heads.remove(&(before + total, index));
            self.bound_start(index);
        }
    }

    /// Enters the oldest request of a queue into the order. No request is dispatched before its
    /// arrival in virtual time. Mirrors `boundNextDispatchLocked`.
    fn bound_start(&mut self, index: u32) {
        let queue = &self.queues[&index];
        let Some(head) = queue.head else {
            return;
        };
        let request = self.request(head);
        let start = queue.next_dispatch_r.max(request.arrival_r);
        let end = start + request.total_work;
        self.heads.insert((end, index));
        self.queue_mut(index).next_dispatch_r = start;
    }

    /// A request that is executed has ended. Its seats are held for the time that is returned, then
    /// [`QueueSet::release`] is due.
    pub(super) fn finish(&mut self, slot: Slot, now: Instant) -> Duration {
        self.sync_time(now);
        let request = self.request_mut(slot);
        let started = request
            .started
            .take()
            .expect("only a request that is executed ends");
        let duration = now.saturating_duration_since(started);
        let seats = request.work.initial_seats as f64;
        let latency = request.work.additional_latency;
        let index = request.queue;
        self.executing -= 1;
        if let Some(index) = index {
            let queue = self.queue_mut(index);
            queue.executing -= 1;
            if !queue.is_active() {
                self.active_queues -= 1;
            }
            let estimated = seat_seconds(seats, ESTIMATED_DURATION);
            let real = seat_seconds(seats, duration);
            self.move_start(index, |start| (start + real).saturating_sub(estimated));
        }
        latency
    }

    /// The last seats of a request are free.
    pub(super) fn release(&mut self, slot: Slot, now: Instant) -> Request {
        self.sync_time(now);
        let request = self.slots[slot].take().expect("a request is released once");
        self.free.push(slot);
        let width = request.work.width();
        self.seats_in_use -= width;
        if let Some(index) = request.queue {
            self.queued_seats_in_use -= width;
            self.queue_mut(index).seats_in_use -= width;
            self.forget_if_idle(index);
        }
        request
    }

    /// A waiting request is given up.
    pub(super) fn cancel(&mut self, slot: Slot, now: Instant) -> Request {
        self.sync_time(now);
        let index = self
            .request(slot)
            .queue
            .expect("a waiting request is in a queue");
        let was_oldest = self.request(slot).previous.is_none();
        self.dequeue(slot, index);
        if was_oldest {
            self.bound_start(index);
        }
        self.counts.rejected += 1;
        self.counts.cancelled += 1;
        self.forget_if_idle(index);
        self.free.push(slot);
        self.slots[slot]
            .take()
            .expect("a request is cancelled once")
    }

    /// An idle queue starts at R again, so there is nothing to remember of it.
    fn forget_if_idle(&mut self, index: u32) {
        if self
            .queues
            .get(&index)
            .is_some_and(|queue| !queue.is_active() && queue.seats_in_use == 0)
        {
            self.queues.remove(&index);
        }
    }

    /// Whether the sums agree with the requests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let requests = || self.slots.iter().flatten();
        let executing = requests().filter(|request| request.is_executing()).count();
        assert_eq!(self.executing, executing);
        let waiting: usize = self.queues.values().map(|queue| queue.waiting).sum();
        assert_eq!(self.waiting, waiting);
        for queue in self.queues.values() {
            assert_eq!(self.waiting_in(queue).count(), queue.waiting);
            let seats: u64 = self.waiting_in(queue).map(|r| r.work.width()).sum();
            assert_eq!(queue.waiting_seats, seats);
        }
        assert_eq!(
            self.heads.len(),
            self.queues.values().filter(|q| q.waiting > 0).count()
        );
        let active = self
            .queues
            .values()
            .filter(|queue| queue.is_active())
            .count();
        assert_eq!(self.active_queues, active);
        let seats: u64 = requests().map(|request| request.work.width()).sum();
        assert_eq!(self.seats_in_use + self.seats_waiting, seats);
    }
}
