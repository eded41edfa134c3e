//! Fair queuing against a model: the algorithm written down plainly, with scans instead of running
//! sums.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{
    queue::{Queuing, RejectReason},
    queue_set::{Arrival, QueueSet, Slot},
    shuffle_sharding::Dealer,
    tests::request,
    work_estimate::{ESTIMATED_DURATION, Work, duration_per_seat, seat_seconds},
};
use crate::entropy::Entropy;

const QUEUES: u32 = 8;
const HAND_SIZE: u32 = 3;
const LENGTH_LIMIT: usize = 6;

#[derive(Clone, Debug)]
struct ModelRequest {
    work: Work,
    total: u64,
    arrival_r: u64,
    queue: usize,
    started: Option<Instant>,
}

#[derive(Default)]
struct ModelQueue {
    waiting: Vec<u64>,
    executing: BTreeSet<u64>,
    seats_in_use: u64,
    next_dispatch_r: u64,
}

/// One priority level with queues.
struct Model {
    dealer: Dealer,
    limit: u64,
    r: u64,
    now: Instant,
    robin: usize,
    arrivals: usize,
    queues: Vec<ModelQueue>,
    requests: BTreeMap<u64, ModelRequest>,
}

impl Model {
    fn advance(&mut self, now: Instant) {
        let is_active =
            |queue: &&ModelQueue| !queue.waiting.is_empty() || !queue.executing.is_empty();
        let active = self.queues.iter().filter(is_active).count();
        if active > 0 {
            let waiting = |id: &u64| self.requests[id].work.width();
            let requested: u64 = self
                .queues
                .iter()
                .map(|queue| queue.seats_in_use + queue.waiting.iter().map(waiting).sum::<u64>())
                .sum();
            let rate = requested.min(self.limit) as f64 / active as f64;
            self.r += seat_seconds(rate, now - self.now);
        }
        self.now = now;
    }

    fn seats_in_use(&self) -> u64 {
        self.queues.iter().map(|queue| queue.seats_in_use).sum()
    }

    fn bound(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        if let Some(head) = queue.waiting.first() {
            queue.next_dispatch_r = queue.next_dispatch_r.max(self.requests[head].arrival_r);
        }
    }

    /// Whether the request is taken.
    fn arrive(&mut self, id: u64, hash: u64, work: Work) -> bool {
        let hand: Vec<u32> = self.dealer.deal(hash).queues().to_vec();
        let offset = self.arrivals % hand.len();
        self.arrivals += 1;
        let mut best: Option<(u64, usize)> = None;
        for step in 0..hand.len() {
            let index = hand[(offset + step) % hand.len()] as usize;
            let waiting = &self.queues[index].waiting;
            let total: u64 = waiting.iter().map(|id| self.requests[id].total).sum();
            if best.is_none_or(|(least, _)| total < least) {
                best = Some((total, index));
            }
        }
        let (_, index) = best.expect("a hand has queues");
        let full = self.queues[index].waiting.len() >= LENGTH_LIMIT;
        if full && self.seats_in_use() >= self.limit {
            return false;
        }
        let queue = &mut self.queues[index];
        if queue.waiting.is_empty() && queue.executing.is_empty() {
            queue.next_dispatch_r = self.r;
        }
        queue.waiting.push(id);
        let request = ModelRequest {
            work,
            total: work.total(),
            arrival_r: self.r,
            queue: index,
            started: None,
        };
        self.requests.insert(id, request);
        self.bound(index);
        true
    }

    fn dispatch_all(&mut self) -> Vec<u64> {
        let mut dispatched = Vec::new();
        while self.seats_in_use() < self.limit {
            let mut next: Option<(u64, usize)> = None;
            for step in 1..=self.queues.len() {
                let index = (self.robin + step) % self.queues.len();
                let queue = &self.queues[index];
                if let Some(head) = queue.waiting.first() {
                    let end = queue.next_dispatch_r + self.requests[head].total;
                    if next.is_none_or(|(least, _)| end < least) {
                        next = Some((end, index));
                    }
                }
            }
            let Some((_, index)) = next else { break };
            let id = self.queues[index].waiting[0];
            let width = self.requests[&id].work.width();
            let executing: usize = self.queues.iter().map(|queue| queue.executing.len()).sum();
            let fits = if width > self.limit {
                executing == 0
            } else {
                self.seats_in_use() + width <= self.limit
            };
            if !fits {
                break;
            }
            let limit = self.limit;
            let now = self.now;
            let request = self.requests.get_mut(&id).expect("it waits");
            if request.work.final_seats > limit {
                let work = request.work.final_work();
                request.work.final_seats = limit;
                request.work.additional_latency = duration_per_seat(work, limit);
            }
            request.started = Some(now);
            let total = request.total;
            let width = request.work.width();
            self.robin = index;
            let queue = &mut self.queues[index];
            queue.waiting.remove(0);
            queue.executing.insert(id);
            queue.seats_in_use += width;
            queue.next_dispatch_r += total;
            self.bound(index);
            dispatched.push(id);
        }
        dispatched
    }

    /// How long the seats are still held.
    fn finish(&mut self, id: u64) -> Duration {
        let request = self.requests[&id].clone();
        let seats = request.work.initial_seats as f64;
        let real = seat_seconds(seats, self.now - request.started.expect("it is executed"));
        let queue = &mut self.queues[request.queue];
        queue.executing.remove(&id);
        let corrected = queue.next_dispatch_r + real - seat_seconds(seats, ESTIMATED_DURATION);
        queue.next_dispatch_r = corrected;
        self.bound(request.queue);
        request.work.additional_latency
    }

    fn release(&mut self, id: u64) {
        let request = self.requests.remove(&id).expect("it has seats");
        self.queues[request.queue].seats_in_use -= request.work.width();
    }

    fn cancel(&mut self, id: u64) {
        let request = self.requests.remove(&id).expect("it waits");
        self.queues[request.queue]
            .waiting
            .retain(|other| *other != id);
        self.bound(request.queue);
    }
}

/// Both, and what is under way in them.
struct Pair {
    model: Model,
    queues: QueueSet,
    slots: BTreeMap<u64, Slot>,
    waiting: BTreeSet<u64>,
    executing: BTreeSet<u64>,
    lingering: BTreeSet<(Instant, u64)>,
    next: u64,
}

impl Pair {
    fn new(now: Instant) -> Self {
        let dealer = Dealer::new(QUEUES, HAND_SIZE).expect("it fits");
        let limit = 5;
        let queuing = Queuing::Queue {
            dealer,
            length_limit: LENGTH_LIMIT,
        };
        Self {
            model: Model {
                dealer,
                limit,
                r: 0,
                now,
                robin: 0,
                arrivals: 0,
                queues: (0..QUEUES).map(|_| ModelQueue::default()).collect(),
                requests: BTreeMap::new(),
            },
            queues: QueueSet::new(queuing, limit, now),
            slots: BTreeMap::new(),
            waiting: BTreeSet::new(),
            executing: BTreeSet::new(),
            lingering: BTreeSet::new(),
            next: 0,
        }
    }

    fn dispatch(&mut self, now: Instant) {
        for id in self.model.dispatch_all() {
            assert!(
                self.queues.next_width().is_some(),
                "the model dispatches {id}"
            );
            let slot = self.queues.dispatch(now);
            assert_eq!(slot, self.slots[&id], "another request is next");
            self.waiting.remove(&id);
            self.executing.insert(id);
        }
        assert_eq!(
            self.queues.next_width(),
            None,
            "the model dispatches no more"
        );
    }

    fn arrive(&mut self, hash: u64, work: Work, now: Instant) {
        let id = self.next;
        self.next += 1;
        let taken = self.model.arrive(id, hash, work);
        let arrival = self.queues.arrive(request(hash, work, now), true, now);
        match arrival {
            Arrival::Rejected(reason) => {
                assert_eq!(reason, RejectReason::QueueFull);
                assert!(!taken);
            }
            Arrival::Waiting(slot) => {
                assert!(taken);
                self.slots.insert(id, slot);
                self.waiting.insert(id);
                self.dispatch(now);
            }
            Arrival::Executing(slot) => {
                assert!(taken);
                assert_eq!(self.model.dispatch_all(), [id]);
                self.slots.insert(id, slot);
                self.executing.insert(id);
            }
        }
    }

    fn finish(&mut self, id: u64, now: Instant) {
        self.executing.remove(&id);
        let lingers = self.model.finish(id);
        assert_eq!(self.queues.finish(self.slots[&id], now), lingers);
        if lingers.is_zero() {
            self.release(id, now);
        } else {
            self.lingering.insert((now + lingers, id));
        }
        self.dispatch(now);
    }

    fn release(&mut self, id: u64, now: Instant) {
        let slot = self.slots.remove(&id).expect("it has seats");
        self.model.release(id);
        self.queues.release(slot, now);
    }

    fn release_due(&mut self, now: Instant) {
        while let Some((due, id)) = self
            .lingering
            .first()
            .copied()
            .filter(|(due, _)| *due <= now)
        {
            self.lingering.remove(&(due, id));
            self.model.advance(due);
            self.release(id, due);
            self.dispatch(due);
        }
        self.model.advance(now);
        // Virtual time is rounded at each step, so both take the same steps.
        let queuing = self.queues.queuing();
        self.queues.configure(queuing, self.model.limit, now);
    }

    fn cancel(&mut self, id: u64, now: Instant) {
        self.waiting.remove(&id);
        let slot = self.slots.remove(&id).expect("it waits");
        self.model.cancel(id);
        self.queues.cancel(slot, now);
        self.dispatch(now);
    }

    fn compare(&self) {
        assert_eq!(self.queues.waiting(), self.waiting.len());
        assert_eq!(self.queues.executing(), self.executing.len());
        assert_eq!(self.queues.seats_in_use(), self.model.seats_in_use());
        for (index, queue) in self.queues.queues() {
            let model = &self.model.queues[index as usize];
            assert_eq!(queue.waiting, model.waiting.len(), "queue {index}");
            assert_eq!(queue.seats_in_use, model.seats_in_use, "queue {index}");
            if queue.waiting > 0 || queue.executing > 0 {
                assert_eq!(
                    queue.next_dispatch_r, model.next_dispatch_r,
                    "queue {index}"
                );
            }
        }
    }
}

fn member(entropy: &Entropy, set: &BTreeSet<u64>) -> Option<u64> {
    let index = usize::try_from(entropy.below(set.len() as u64)).expect("an index");
    set.iter().nth(index).copied()
}

fn work(entropy: &Entropy) -> Work {
    let final_seats = entropy.below(10).saturating_sub(6) * 2;
    Work {
        initial_seats: if entropy.below(4) == 0 {
            1 + entropy.below(8)
        } else {
            1
        },
        final_seats,
        additional_latency: if final_seats == 0 {
            Duration::ZERO
        } else {
            Duration::from_millis(1 + entropy.below(9))
        },
    }
}

fn run(seed: u64, steps: usize) {
    let entropy = Entropy::seeded(seed);
    let mut now = Instant::now();
    let mut pair = Pair::new(now);
    for _ in 0..steps {
        now += Duration::from_micros(entropy.below(4000));
        pair.release_due(now);
        match entropy.below(20) {
            0..=9 => pair.arrive(entropy.below(6), work(&entropy), now),
            10..=16 => {
                if let Some(id) = member(&entropy, &pair.executing) {
                    pair.finish(id, now);
                }
            }
            17..=18 => {
                if let Some(id) = member(&entropy, &pair.waiting) {
                    pair.cancel(id, now);
                }
            }
            _ => {
                let limit = 1 + entropy.below(10);
                pair.model.limit = limit;
                pair.queues.configure(pair.queues.queuing(), limit, now);
                pair.dispatch(now);
            }
        }
        pair.compare();
    }
    while let Some(id) = pair.waiting.first().copied() {
        pair.cancel(id, now);
    }
    while let Some(id) = pair.executing.first().copied() {
        pair.finish(id, now);
    }
    pair.release_due(now + Duration::from_secs(1));
    assert!(pair.queues.is_idle());
    assert_eq!(pair.queues.seats_in_use(), 0);
    assert_eq!(pair.queues.queues().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn queues_dispatch_in_the_order_of_the_model() {
    for seed in 0..10 {
        run(seed, 2_000);
    }
}

#[tokio::test(start_paused = true)]
#[ignore = "one million steps take half a minute without optimization"]
async fn queues_dispatch_in_the_order_of_the_model_for_a_million_steps() {
    for seed in 0..10 {
        run(100 + seed, 100_000);
    }
}
