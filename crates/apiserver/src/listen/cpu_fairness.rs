//! Fair sharing of the runtime's worker threads between users.
//!
//! A task waits behind all tasks that became ready before it, and a user can have thousands of
//! them: streams, connections, watches. Here, the connections of a user are a flow. While several
//! flows are active, the tasks of a flow that has used more than its share of processor time wait
//! in a separate queue, from which a few at a time are moved to the queues of the runtime,
//! round-robin over the flows. Within a flow, tasks with a seat of API Priority and Fairness are
//! first, since requests of other flows wait for that seat; new tasks and those that were polled
//! before alternate.
//!
//! Guarantees:
//! - A task of a flow within its share waits for the polls that run now, and for at most one worker
//!   thread less than there are, whatever other flows do.
//! - A poll of a flow within its share, or of the only active flow, takes two readings of the clock
//!   and no lock.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::{sync::oneshot, task::yield_now, time::Instant};

/// A flow is within its share while it uses less than this part of one processor.
const SHARE_DIVISOR: u64 = 4;

/// Processor time that a flow may use at any rate.
const BURST: Duration = Duration::from_millis(10);

/// A flow is within its share again at the latest this long after its last poll.
const RECOVERY_MAX: Duration = Duration::from_millis(200);

/// Two flows are active if both were polled within this time.
const ACTIVE: Duration = Duration::from_millis(100);

/// The worker threads of a runtime, as flows share them.
#[derive(Debug)]
pub(super) struct CpuScheduler {
    started: Instant,
    last_flow: AtomicU64,
    /// When only the last flow will be active, in nanoseconds since the start.
    contended_until: AtomicU64,
    last_id: AtomicU64,
    queues: Mutex<Queues>,
}

/// The tasks that wait. Every flow with such tasks is in `round` once.
#[derive(Debug)]
struct Queues {
    /// How many more tasks may be in the queues of the runtime.
    free: usize,
    round: VecDeque<u64>,
    waiting: HashMap<u64, Queue>,
}

/// The tasks of a flow that wait.
#[derive(Debug, Default)]
struct Queue {
    /// Tasks with a seat.
    seated: VecDeque<oneshot::Sender<Grant>>,
    /// Other tasks that were polled before.
    started: VecDeque<oneshot::Sender<Grant>>,
    new: VecDeque<oneshot::Sender<Grant>>,
    /// Whether the last task was one of `started`.
    last_was_started: bool,
}

/// The position of a waiting task in its flow.
#[derive(Clone, Copy, Debug)]
enum Position {
    Seated,
    Started,
    New,
}

/// Whether a task has a seat of API Priority and Fairness. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskSeat(Option<Arc<AtomicBool>>);

impl TaskSeat {
    fn of_new_task() -> Self {
        Self(Some(Arc::default()))
    }

    /// That of the task that runs. Nothing depends on it outside of the tasks of connections.
    pub(crate) fn of_current_task() -> Self {
        SEAT.try_with(Self::clone).unwrap_or_default()
    }

    pub(crate) fn occupy(&self) {
        self.set(true);
    }

    pub(crate) fn leave(&self) {
        self.set(false);
    }

    fn set(&self, is_occupied: bool) {
        if let Some(seat) = &self.0 {
            seat.store(is_occupied, Ordering::Relaxed);
        }
    }

    fn is_occupied(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|seat| seat.load(Ordering::Relaxed))
    }
}

/// Tasks that share processor time with others as one.
#[derive(Debug)]
pub(super) struct CpuFlow {
    id: u64,
    /// When the flow will have used no more than its share, in nanoseconds since the start of the
    /// scheduler.
    within_share_at: AtomicU64,
}

/// The permit of one poll. When it is dropped, it goes to the next task.
#[derive(Debug)]
struct Grant {
    scheduler: Option<Arc<CpuScheduler>>,
}

tokio::task_local! {
    /// The grant of the poll that runs.
    static GRANT: Cell<Option<Grant>>;
    /// The seat of the task that runs.
    static SEAT: TaskSeat;
}

/// Returns the grant of the poll that runs: its thread is about to be replaced by another one.
pub(crate) fn return_grant() {
    // Most polls have none.
    let _without = GRANT.try_with(|grant| drop(grant.take()));
}

/// Whether the poll that runs has waited for a grant.
pub(crate) fn has_grant() -> bool {
    GRANT
        .try_with(|grant| {
            let granted = grant.take();
            let has_grant = granted.is_some();
            grant.set(granted);
            has_grant
        })
        .unwrap_or(false)
}

impl CpuScheduler {
    /// Shares this many worker threads.
    pub(super) fn new(workers: usize) -> Arc<Self> {
        // One worker thread is left to flows within their shares.
        let free = workers.saturating_sub(1).max(1);
        Arc::new(Self {
            started: Instant::now(),
            last_flow: AtomicU64::new(0),
            contended_until: AtomicU64::new(0),
            last_id: AtomicU64::new(0),
            queues: Mutex::new(Queues {
                free,
                round: VecDeque::new(),
                waiting: HashMap::new(),
            }),
        })
    }

    pub(super) fn new_flow(&self) -> Arc<CpuFlow> {
        Arc::new(CpuFlow {
            id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            within_share_at: AtomicU64::new(0),
        })
    }

    /// Runs a future within a flow, which may change from poll to poll. The future is the only one
    /// of its task: whatever notifies the waker of the task is a reason to poll it.
    pub(super) async fn run<'a, F: Future>(
        self: &Arc<Self>,
        flow: impl Fn() -> &'a CpuFlow,
        future: F,
    ) -> F::Output {
        let seat = TaskSeat::of_new_task();
        let mut future = pin!(SEAT.scope(seat.clone(), future));
        let mut is_started = false;
        loop {
            let flow = flow();
            let mut begun = self.now();
            let polled = if self.must_wait(flow, begun) {
                let position = match is_started {
                    _ if seat.is_occupied() => Position::Seated,
                    true => Position::Started,
                    false => Position::New,
                };
                let grant = self.wait(flow, position).await;
                begun = self.now();
                let scope = GRANT.scope(Cell::new(Some(grant)), poll_once(future.as_mut()));
                scope.await
            } else {
                poll_once(future.as_mut()).await
            };
            self.charge(flow, begun, self.now());
            if let Poll::Ready(output) = polled {
                return output;
            }
            is_started = true;
            notified().await;
        }
    }

    fn now(&self) -> u64 {
        nanos(self.started.elapsed())
    }

    /// Whether a flow has used more than its share, and others are active.
    fn must_wait(&self, flow: &CpuFlow, now: u64) -> bool {
        if self.last_flow.load(Ordering::Relaxed) != flow.id {
            self.last_flow.store(flow.id, Ordering::Relaxed);
            let until = now + nanos(ACTIVE);
            self.contended_until.store(until, Ordering::Relaxed);
        }
        let used = flow.within_share_at.load(Ordering::Relaxed);
        used > now + nanos(BURST) * SHARE_DIVISOR
            && self.contended_until.load(Ordering::Relaxed) > now
    }

    /// Counts a poll.
    fn charge(&self, flow: &CpuFlow, begun: u64, ended: u64) {
        // Concurrent updates of two threads may be counted once.
        let before = flow.within_share_at.load(Ordering::Relaxed).max(begun);
        let after = before + (ended - begun) * SHARE_DIVISOR;
        let after = after.min(ended + nanos(RECOVERY_MAX));
        flow.within_share_at.store(after, Ordering::Relaxed);
    }

    /// Waits until a task of the flow may be polled.
    async fn wait(self: &Arc<Self>, flow: &CpuFlow, position: Position) -> Grant {
        let grant = match self.enqueue(flow, position) {
            Ok(grant) => grant,
            Err(granted) => granted
                .await
                .expect("a queued sender is dropped only after it has sent"),
        };
        // Behind the tasks that are ready, and what the sockets have become ready for.
        yield_now().await;
        grant
    }

    fn enqueue(
        self: &Arc<Self>,
        flow: &CpuFlow,
        position: Position,
    ) -> Result<Grant, oneshot::Receiver<Grant>> {
        let mut queues = self.lock();
        if queues.free > 0 {
            queues.free -= 1;
            return Ok(Grant::new(self));
        }
        let (sender, receiver) = oneshot::channel();
        let queues = &mut *queues;
        let waiting = queues.waiting.entry(flow.id).or_insert_with(|| {
            queues.round.push_back(flow.id);
            Queue::default()
        });
        match position {
            Position::Seated => waiting.seated.push_back(sender),
            Position::Started => waiting.started.push_back(sender),
            Position::New => waiting.new.push_back(sender),
        }
        Err(receiver)
    }

    /// Passes a grant to the next task that waits.
    fn pass_on(self: &Arc<Self>) {
        loop {
            let mut queues = self.lock();
            let Some(next) = queues.next() else {
                queues.free += 1;
                return;
            };
            drop(queues);
            match next.send(Grant::new(self)) {
                Ok(()) => return,
                // The task has ended meanwhile.
                Err(mut unsent) => unsent.scheduler = None,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    /// The next task, round-robin over the flows.
    fn next(&mut self) -> Option<oneshot::Sender<Grant>> {
        let flow = self.round.pop_front()?;
        let waiting = self.waiting.get_mut(&flow)?;
        let next = waiting.pop();
        if waiting.is_empty() {
            self.waiting.remove(&flow);
        } else {
            self.round.push_back(flow);
        }
        next
    }
}

impl Queue {
    fn pop(&mut self) -> Option<oneshot::Sender<Grant>> {
        if let Some(seated) = self.seated.pop_front() {
            return Some(seated);
        }
        let is_new = self.started.is_empty() || (self.last_was_started && !self.new.is_empty());
        self.last_was_started = !is_new;
        if is_new {
            self.new.pop_front()
        } else {
            self.started.pop_front()
        }
    }

    fn is_empty(&self) -> bool {
        self.seated.is_empty() && self.started.is_empty() && self.new.is_empty()
    }
}

impl Grant {
    fn new(scheduler: &Arc<CpuScheduler>) -> Self {
        Self {
            scheduler: Some(scheduler.clone()),
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(scheduler) = self.scheduler.take() {
            scheduler.pass_on();
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Waits until the futures that were polled before notify the waker.
async fn notified() {
    let mut is_notified = false;
    poll_fn(|_| {
        if std::mem::replace(&mut is_notified, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::{task::JoinHandle, time::sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A flow that has used more than its share, while another one is active.
    fn overused(scheduler: &CpuScheduler) -> Arc<CpuFlow> {
        let other = scheduler.new_flow();
        let flow = scheduler.new_flow();
        overuse(scheduler, &flow);
        assert!(!scheduler.must_wait(&other, scheduler.now()));
        assert!(scheduler.must_wait(&flow, scheduler.now()));
        flow
    }

    fn overuse(scheduler: &CpuScheduler, flow: &CpuFlow) {
        let now = scheduler.now();
        scheduler.charge(flow, now, now + nanos(SECOND));
    }

    fn spawn<T: Send + 'static>(
        scheduler: &Arc<CpuScheduler>,
        flow: &Arc<CpuFlow>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let scheduler = scheduler.clone();
        let flow = flow.clone();
        tokio::spawn(async move { scheduler.run(|| &flow, future).await })
    }

    #[tokio::test(start_paused = true)]
    async fn future_is_polled_again_only_when_its_waker_is_notified() {
        let scheduler = CpuScheduler::new(1);
        let flow = overused(&scheduler);
        let mut polls = 0;
        let twice = poll_fn(|cx| {
            polls += 1;
            if polls == 1 {
                let waker = cx.waker().clone();
                tokio::spawn(async move {
                    sleep(SECOND).await;
                    waker.wake();
                });
                return Poll::Pending;
            }
            Poll::Ready(Instant::now())
        });
        let started = Instant::now();
        let ended = scheduler.run(|| &flow, twice).await;
        assert_eq!(ended - started, SECOND);
        assert_eq!(polls, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn flow_within_its_share_is_polled_first() {
        let scheduler = CpuScheduler::new(2);
        let flow = overused(&scheduler);
        let polled = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let polled = polled.clone();
                spawn(&scheduler, &flow, async move {
                    polled.fetch_add(1, Ordering::Relaxed);
                    sleep(SECOND).await;
                })
            })
            .collect();
        let other = scheduler.new_flow();
        for _ in 0..10 {
            let before = polled.load(Ordering::Relaxed);
            let later = polled.clone();
            let other = spawn(
                &scheduler,
                &other,
                async move { later.load(Ordering::Relaxed) },
            );
            assert!(other.await.expect("no panic") <= before + 1);
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_eq!(polled.load(Ordering::Relaxed), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn flows_beyond_their_shares_are_polled_in_turn() {
        let scheduler = CpuScheduler::new(2);
        let many = overused(&scheduler);
        let few = overused(&scheduler);
        let order = Arc::new(Mutex::new(Vec::new()));
        let task = |flow: &Arc<CpuFlow>| {
            let order = order.clone();
            let id = flow.id;
            spawn(&scheduler, flow, async move {
                order.lock().expect("no panic").push(id);
            })
        };
        let tasks: Vec<_> = (0..100).map(|_| task(&many)).collect();
        for last in [task(&few), task(&few), task(&few)] {
            last.await.expect("no panic");
        }
        let polled = order.lock().expect("no panic").clone();
        let of_few = polled.iter().filter(|id| **id == few.id).count();
        assert_eq!(of_few, 3);
        assert!(polled.len() <= 8, "{polled:?}");
        for task in tasks {
            task.await.expect("no panic");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_were_polled_before_do_not_wait_for_all_new_ones() {
        let scheduler = CpuScheduler::new(2);
        let flow = overused(&scheduler);
        let polled = Arc::new(AtomicUsize::new(0));
        let started = polled.clone();
        let started = spawn(&scheduler, &flow, async move {
            yield_now().await;
            started.load(Ordering::Relaxed)
        });
        let new: Vec<_> = (0..100)
            .map(|_| {
                let polled = polled.clone();
                spawn(&scheduler, &flow, async move {
                    polled.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        assert!(started.await.expect("no panic") <= 2);
        for task in new {
            task.await.expect("no panic");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_with_seats_are_polled_before_others_of_their_flow() {
        let scheduler = CpuScheduler::new(2);
        let flow = overused(&scheduler);
        let polls = Arc::new(AtomicUsize::new(0));
        // Returns the largest number of polls of other tasks between two polls of this one.
        let task = |seat: fn(TaskSeat)| {
            let polls = polls.clone();
            spawn(&scheduler, &flow, async move {
                seat(TaskSeat::of_current_task());
                let mut waited = 0;
                for _ in 0..5 {
                    let before = polls.fetch_add(1, Ordering::Relaxed);
                    yield_now().await;
                    waited = waited.max(polls.load(Ordering::Relaxed) - before - 1);
                }
                waited
            })
        };
        let others: Vec<_> = (0..100).map(|_| task(|_| ())).collect();
        let seated = task(|seat| seat.occupy());
        // A grant is passed on before the task that had it waits again.
        assert!(seated.await.expect("no panic") <= 2);
        let mut waited = 0;
        for task in others {
            waited = waited.max(task.await.expect("no panic"));
        }
        assert!(waited > 10, "the others wait for each other: {waited}");
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_left_its_seat_waits_as_others_do() {
        let seat = TaskSeat::of_new_task();
        seat.occupy();
        assert!(seat.clone().is_occupied());
        seat.leave();
        assert!(!seat.is_occupied());
        assert!(!TaskSeat::of_current_task().is_occupied());
    }

    #[tokio::test(start_paused = true)]
    async fn future_that_waits_does_not_keep_its_grant() {
        let scheduler = CpuScheduler::new(1);
        let flow = overused(&scheduler);
        let started = Instant::now();
        let tasks: Vec<_> = (0..3)
            .map(|_| spawn(&scheduler, &flow, sleep(SECOND)))
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_eq!(started.elapsed(), SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn poll_that_returned_its_grant_blocks_no_other() {
        let scheduler = CpuScheduler::new(2);
        let flow = overused(&scheduler);
        scheduler
            .run(|| &flow, async {
                assert_eq!(scheduler.lock().free, 0);
                assert!(has_grant());
                return_grant();
                assert!(!has_grant());
                assert_eq!(scheduler.lock().free, 1);
            })
            .await;
        assert!(!has_grant());
        assert_eq!(scheduler.lock().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_end_while_they_wait_pass_on_their_grants() {
        let scheduler = CpuScheduler::new(2);
        let flow = overused(&scheduler);
        let tasks: Vec<_> = (0..10)
            .map(|_| spawn(&scheduler, &flow, sleep(SECOND)))
            .collect();
        yield_now().await;
        assert_eq!(scheduler.lock().free, 0);
        assert!(!scheduler.lock().waiting.is_empty());
        for task in &tasks[..9] {
            task.abort();
        }
        for task in tasks {
            // All but the last one are cancelled.
            let _ended = task.await;
        }
        let queues = scheduler.lock();
        assert_eq!(queues.free, 1);
        assert!(queues.round.is_empty());
        assert!(queues.waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn flow_waits_only_while_others_are_active() {
        let scheduler = CpuScheduler::new(2);
        let flow = overused(&scheduler);
        tokio::time::advance(ACTIVE - Duration::from_millis(1)).await;
        overuse(&scheduler, &flow);
        assert!(scheduler.must_wait(&flow, scheduler.now()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!scheduler.must_wait(&flow, scheduler.now()));
    }

    #[tokio::test(start_paused = true)]
    async fn flow_is_within_its_share_at_a_quarter_of_a_processor() {
        let scheduler = CpuScheduler::new(2);
        let flow = scheduler.new_flow();
        let other = scheduler.new_flow();
        let is_limited = |used_ms: u64| {
            let now = scheduler.now();
            scheduler.charge(&flow, now, now + nanos(Duration::from_millis(used_ms)));
            scheduler.must_wait(&other, now);
            scheduler.must_wait(&flow, now)
        };
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(8)).await;
            assert!(!is_limited(2));
        }
        assert!(!is_limited(8), "a burst");
        assert!(is_limited(1), "after the burst");
        for _ in 0..100 {
            assert!(is_limited(10));
        }
        tokio::time::advance(RECOVERY_MAX).await;
        assert!(!is_limited(0));
    }
}
