//! The open connections, and the memory that they hold.
//!
//! Guarantees:
//! - At the limit of connections, one that carries no request is closed for a new one: first those
//!   that never authenticated, oldest first. Idle peers do not exclude new connections.
//! - Bytes of responses that are encoded and not sent have a limit per connection, beyond which
//!   further chunks wait, and a total limit, beyond which the connections of the user with the most
//!   bytes are closed.
//! - The connections of a user share the worker threads with those of other users as one flow.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    runtime::Handle,
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    Limits,
    cpu_fairness::{CpuFlow, CpuScheduler},
    unsent::Unsent,
};
use crate::auth::{ANONYMOUS, MASTERS, User};

/// All open connections.
#[derive(Debug)]
pub(super) struct ConnectionTracker {
    connections_max: usize,
    connection_unsent_bytes_max: usize,
    unsent_bytes_max: usize,
    /// Bytes of responses that are encoded and not sent.
    unsent_bytes: AtomicUsize,
    open: Mutex<Open>,
    cpu: Arc<CpuScheduler>,
    /// The flow of connections without an authenticated request: their handshakes.
    unauthenticated_cpu: Arc<CpuFlow>,
}

#[derive(Debug, Default)]
struct Open {
    last_id: u64,
    /// In the order in which they were accepted.
    connections: BTreeMap<u64, Arc<TrackedConnection>>,
    /// How many of them are closed and not yet dropped.
    closing: usize,
    /// The flows of users with connections, and of some whose last connection is closed.
    cpu_flows: HashMap<Arc<str>, Weak<CpuFlow>>,
}

/// One connection, as an extension of its requests.
#[derive(Debug)]
pub(crate) struct TrackedConnection {
    tracker: Arc<ConnectionTracker>,
    /// The user of the last authenticated request; `None` before the first.
    flow: Mutex<Option<Flow>>,
    /// The flow of the first authenticated user: the requests of a connection cannot be
    /// distinguished while they are received and sent.
    cpu_flow: OnceLock<Arc<CpuFlow>>,
    /// How many requests there were.
    requests: AtomicUsize,
    /// Requests whose responses are not completely handed to hyper.
    running: AtomicUsize,
    /// Bytes of chunks that may still be handed to hyper.
    window: Semaphore,
    /// Bytes of responses that are encoded and not sent, on this connection.
    unsent_bytes: AtomicUsize,
    /// Notified when `unsent_bytes` falls below the limit.
    has_room: Notify,
    /// The unsent chunks of all responses.
    unsent: Unsent,
    /// Cancelled to close the connection immediately, and when it is closed.
    closed: CancellationToken,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flow {
    user: Arc<str>,
    /// Whether the user is in `system:masters`.
    is_exempt: bool,
}

/// The usage of the connections of a flow.
#[derive(Default)]
struct FlowUsage {
    unsent_bytes: usize,
    connections: Vec<Arc<TrackedConnection>>,
}

impl ConnectionTracker {
    pub(super) fn new(limits: &Limits) -> Arc<Self> {
        // Tests of this module have no runtime.
        let runtime = Handle::try_current();
        let cpu = CpuScheduler::new(runtime.map_or(1, |runtime| runtime.metrics().num_workers()));
        Arc::new(Self {
            connections_max: limits.connections_max,
            connection_unsent_bytes_max: limits.connection_unsent_bytes_max,
            unsent_bytes_max: limits.unsent_bytes_max,
            unsent_bytes: AtomicUsize::new(0),
            open: Mutex::default(),
            unauthenticated_cpu: cpu.new_flow(),
            cpu,
        })
    }

    /// Tracks a connection until what is returned is dropped.
    pub(super) fn open(self: &Arc<Self>) -> OpenConnection {
        let connection = Arc::new(TrackedConnection {
            tracker: self.clone(),
            flow: Mutex::default(),
            cpu_flow: OnceLock::new(),
            requests: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            window: Semaphore::new(self.connection_unsent_bytes_max),
            unsent_bytes: AtomicUsize::new(0),
            has_room: Notify::new(),
            unsent: Unsent::of_connection(),
            closed: CancellationToken::new(),
        });
        let mut open = self.lock();
        open.last_id += 1;
        let id = open.last_id;
        open.connections.insert(id, connection.clone());
        OpenConnection { id, connection }
    }

    /// Bytes of responses that are encoded and not sent.
    #[cfg(test)]
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes.load(Ordering::Relaxed)
    }

    /// Closes a connection so that another one can be accepted. Does nothing while one that was
    /// closed before is still open.
    pub(super) fn make_room(&self) {
        let mut open = self.lock();
        if open.closing > 0 {
            return;
        }
        let connections = || open.connections.values();
        let idle = || connections().filter(|connection| connection.is_idle());
        let unused = idle().find(|connection| connection.flow().is_none());
        let victim = unused.or_else(|| idle().next()).cloned();
        let victim = victim.or_else(|| {
            let usage = usage_by_flow(connections());
            let (flow, usage) = usage.into_iter().max_by_key(|(_, u)| u.connections.len())?;
            // A user always keeps one connection.
            let is_most = usage.connections.len() > (self.connections_max / 2).max(1);
            let is_exempt = flow.is_some_and(|flow| flow.is_exempt);
            let oldest = usage.connections.into_iter().next();
            oldest.filter(|_| is_most && !is_exempt)
        });
        if let Some(connection) = victim {
            open.closing += 1;
            connection.closed.cancel();
        }
    }

    /// Closes the connections of the flow with most unsent bytes, until all others are below the
    /// limit. `system:masters` are chosen only if they hold more than half of the limit.
    fn shed(&self) {
        let mut open = self.lock();
        let connections = open.connections.values();
        let connections = connections.filter(|connection| !connection.closed.is_cancelled());
        let mut flows: Vec<_> = usage_by_flow(connections).into_iter().collect();
        let mut held: usize = flows.iter().map(|(_, usage)| usage.unsent_bytes).sum();
        let half = self.unsent_bytes_max / 2;
        flows.sort_by_key(|(flow, usage)| {
            let is_exempt = flow.as_ref().is_some_and(|flow| flow.is_exempt);
            (!is_exempt || usage.unsent_bytes > half, usage.unsent_bytes)
        });
        while held > self.unsent_bytes_max
            && let Some((flow, usage)) = flows.pop()
        {
            held -= usage.unsent_bytes;
            let user = flow.map_or_else(|| ANONYMOUS.into(), |flow| flow.user);
            warn!(%user, bytes = usage.unsent_bytes, "closing connections with unread responses");
            for connection in usage.connections {
                if connection.unsent_bytes.load(Ordering::Relaxed) > 0 {
                    open.closing += 1;
                    connection.closed.cancel();
                }
            }
        }
    }

    /// The flow of a user's connections.
    fn cpu_flow(&self, user: &str) -> Arc<CpuFlow> {
        let mut open = self.lock();
        let known = open.cpu_flows.get(user).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            if open.cpu_flows.len() >= self.connections_max * 2 {
                open.cpu_flows.retain(|_, flow| flow.strong_count() > 0);
            }
            let flow = self.cpu.new_flow();
            open.cpu_flows.insert(user.into(), Arc::downgrade(&flow));
            flow
        })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn usage_by_flow<'a>(
    connections: impl Iterator<Item = &'a Arc<TrackedConnection>>,
) -> HashMap<Option<Flow>, FlowUsage> {
    let mut flows = HashMap::<_, FlowUsage>::new();
    for connection in connections {
        let usage = flows.entry(connection.flow().clone()).or_default();
        usage.unsent_bytes += connection.unsent_bytes.load(Ordering::Relaxed);
        usage.connections.push(connection.clone());
    }
    flows
}

impl TrackedConnection {
    /// The connection belongs to this user from now on.
    pub(crate) fn authenticated(&self, user: &User) {
        if user.name == ANONYMOUS {
            return;
        }
        let mut flow = self.flow();
        if flow.as_ref().is_some_and(|flow| *flow.user == user.name) {
            return;
        }
        *flow = Some(Flow {
            user: user.name.as_str().into(),
            is_exempt: user.is_in(MASTERS),
        });
        drop(flow);
        self.cpu_flow
            .get_or_init(|| self.tracker.cpu_flow(&user.name));
    }

    /// Runs the future of a task that works for this connection. It shares the worker threads with
    /// the tasks of other users.
    pub(super) async fn run<F: Future>(&self, future: F) -> F::Output {
        let flow = || {
            let flow = self.cpu_flow.get();
            &**flow.unwrap_or(&self.tracker.unauthenticated_cpu)
        };
        self.tracker.cpu.run(flow, future).await
    }

    /// Counts a request until its response is handed to hyper.
    pub(super) fn begin(self: &Arc<Self>) -> RunningRequest {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningRequest(self.clone())
    }

    /// How many requests there were so far.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether no request runs and no response is unsent.
    pub(super) fn is_idle(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0 && self.unsent_bytes.load(Ordering::Relaxed) == 0
    }

    /// The unsent chunks of all responses.
    pub(super) fn unsent(&self) -> &Unsent {
        &self.unsent
    }

    /// Returns when the connection must be closed.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Whether the connection is closed, or about to be.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Whether the limit of unsent bytes allows another response.
    pub(super) fn is_writable(&self) -> bool {
        let unsent_bytes = self.unsent_bytes.load(Ordering::Relaxed);
        unsent_bytes < self.tracker.connection_unsent_bytes_max
    }

    /// Waits until the limit of unsent bytes allows another response.
    pub(super) async fn writable(&self) {
        loop {
            let has_room = self.has_room.notified();
            if self.is_writable() {
                return;
            }
            has_room.await;
        }
    }

    pub(super) fn try_take_window(&self, bytes: usize) -> bool {
        self.window
            .try_acquire_many(permits(bytes))
            .map(|permit| permit.forget())
            .is_ok()
    }

    pub(super) async fn take_window(&self, bytes: usize) {
        self.window
            .acquire_many(permits(bytes))
            .await
            .expect("the semaphore is never closed")
            .forget();
    }

    pub(super) fn return_window(&self, bytes: usize) {
        self.window.add_permits(bytes);
    }

    fn flow(&self) -> MutexGuard<'_, Option<Flow>> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection of a client and its place among all connections, as an extension of its requests.
/// Both are kept until the last owner drops it, which may be the task of an upgraded connection.
pub(crate) struct ClientConnection {
    pub(crate) peer: SocketAddr,
    open: OpenConnection,
    _place: OwnedSemaphorePermit,
}

impl ClientConnection {
    pub(super) fn new(peer: SocketAddr, open: OpenConnection, place: OwnedSemaphorePermit) -> Self {
        Self {
            peer,
            open,
            _place: place,
        }
    }

    pub(super) fn tracked(&self) -> &Arc<TrackedConnection> {
        &self.open.connection
    }

    /// Runs a future that uses the connection after its upgrade. It counts as a request; `None` if
    /// the connection must be closed before the future ends.
    pub(crate) async fn run_upgraded<T>(&self, serving: impl Future<Output = T>) -> Option<T> {
        let _running = self.tracked().begin();
        tokio::select! {
            output = serving => Some(output),
            () = self.tracked().closed() => None,
        }
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a chunk is smaller than 4 GiB")
}

/// An open connection. It is tracked until this is dropped.
pub(super) struct OpenConnection {
    id: u64,
    pub(super) connection: Arc<TrackedConnection>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let connection = &self.connection;
        let mut open = connection.tracker.lock();
        open.connections.remove(&self.id);
        if connection.is_closed() {
            open.closing -= 1;
        }
        drop(open);
        connection.closed.cancel();
    }
}

/// A request whose response is not completely handed to hyper.
pub(super) struct RunningRequest(Arc<TrackedConnection>);

impl RunningRequest {
    pub(super) fn connection(&self) -> &Arc<TrackedConnection> {
        &self.0
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes of a response that are encoded and not sent, until this is dropped.
pub(super) struct UnsentBytes {
    connection: Arc<TrackedConnection>,
    bytes: usize,
}

impl UnsentBytes {
    pub(super) fn new(connection: &Arc<TrackedConnection>, bytes: usize) -> Self {
        let tracker = &connection.tracker;
        connection.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
        let others = tracker.unsent_bytes.fetch_add(bytes, Ordering::Relaxed);
        if others + bytes > tracker.unsent_bytes_max {
            tracker.shed();
        }
        Self {
            connection: connection.clone(),
            bytes,
        }
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        let connection = &self.connection;
        let tracker = &connection.tracker;
        tracker
            .unsent_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
        let before = connection
            .unsent_bytes
            .fetch_sub(self.bytes, Ordering::AcqRel);
        let limit = tracker.connection_unsent_bytes_max;
        if before >= limit && before - self.bytes < limit {
            connection.has_room.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tracker(connections_max: usize) -> Arc<ConnectionTracker> {
        ConnectionTracker::new(&Limits {
            connections_max,
            unsent_bytes_max: 1000,
            ..Limits::default()
        })
    }

    fn user(name: &str) -> User {
        User {
            name: name.into(),
            ..User::default()
        }
    }

    fn admin() -> User {
        User {
            groups: vec![MASTERS.into()],
            ..user("admin")
        }
    }

    fn open_for(tracker: &Arc<ConnectionTracker>, user: &User) -> OpenConnection {
        let open = tracker.open();
        open.connection.authenticated(user);
        open
    }

    fn is_closed(open: &OpenConnection) -> bool {
        open.connection.closed.is_cancelled()
    }

    #[test]
    fn oldest_unauthenticated_connection_is_closed_first() {
        let tracker = tracker(4);
        let authenticated = open_for(&tracker, &user("alice"));
        let running = tracker.open();
        let request = running.connection.begin();
        let oldest = tracker.open();
        let anonymous = open_for(&tracker, &User::anonymous());
        tracker.make_room();
        assert!(is_closed(&oldest));
        tracker.make_room();
        assert!(
            !is_closed(&anonymous),
            "the place of the first is not free yet"
        );
        drop(oldest);
        tracker.make_room();
        assert!(is_closed(&anonymous));
        drop(anonymous);
        tracker.make_room();
        assert!(is_closed(&authenticated), "it carries no request");
        drop(authenticated);
        tracker.make_room();
        assert!(!is_closed(&running));
        drop(request);
        tracker.make_room();
        assert!(is_closed(&running));
    }

    #[test]
    fn connections_of_the_user_with_most_are_closed() {
        let tracker = tracker(4);
        let admin = open_for(&tracker, &admin());
        let bobs: Vec<_> = (0..3).map(|_| open_for(&tracker, &user("bob"))).collect();
        let _requests: Vec<_> = bobs
            .iter()
            .chain([&admin])
            .map(|open| open.connection.begin())
            .collect();
        tracker.make_room();
        let closed: Vec<bool> = bobs.iter().map(is_closed).collect();
        assert_eq!(closed, [true, false, false]);
        assert!(!is_closed(&admin));
    }

    #[test]
    fn flow_with_most_unsent_bytes_is_closed() {
        let tracker = tracker(10);
        let alice = open_for(&tracker, &user("alice"));
        let bobs: Vec<_> = (0..3).map(|_| open_for(&tracker, &user("bob"))).collect();
        let admin = open_for(&tracker, &admin());
        let _alice = UnsentBytes::new(&alice.connection, 300);
        let bob_first = UnsentBytes::new(&bobs[0].connection, 200);
        let bob_second = UnsentBytes::new(&bobs[1].connection, 200);
        let admin_first = UnsentBytes::new(&admin.connection, 300);
        assert!(!bobs.iter().any(is_closed));
        let admin_second = UnsentBytes::new(&admin.connection, 100);
        let closed: Vec<bool> = bobs.iter().map(is_closed).collect();
        assert_eq!(closed, [true, true, false], "the third holds nothing");
        assert!(!is_closed(&alice));
        assert!(!is_closed(&admin));
        let _more = UnsentBytes::new(&alice.connection, 100);
        assert!(
            !is_closed(&alice),
            "what closed connections hold is about to be free"
        );
        drop((bob_first, bob_second, admin_first, admin_second));
        let _most = UnsentBytes::new(&admin.connection, 700);
        assert!(is_closed(&admin), "more than half of the limit");
        assert!(!is_closed(&alice));
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_beyond_the_window_wait() {
        let open = tracker(1).open();
        let connection = &open.connection;
        let window = Limits::default().connection_unsent_bytes_max;
        assert!(connection.try_take_window(window));
        assert!(!connection.try_take_window(1));
        let later = async {
            tokio::time::sleep(SECOND).await;
            connection.return_window(window);
        };
        let started = Instant::now();
        tokio::join!(connection.take_window(10), later);
        assert_eq!(started.elapsed(), SECOND);
        connection.return_window(10);
        assert!(connection.try_take_window(window));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_while_responses_are_unsent() {
        let open = ConnectionTracker::new(&Limits::default()).open();
        let connection = &open.connection;
        connection.writable().await;
        let unsent = UnsentBytes::new(connection, 12_000_000);
        assert!(!connection.is_writable());
        let later = async {
            tokio::time::sleep(SECOND).await;
            drop(unsent);
        };
        let started = Instant::now();
        tokio::join!(connection.writable(), connection.writable(), later);
        assert_eq!(started.elapsed(), SECOND);
        assert!(connection.is_idle());
    }

    #[test]
    fn nothing_is_left_of_closed_connections() {
        let tracker = tracker(10);
        let open = tracker.open();
        let unsent = UnsentBytes::new(&open.connection, 100);
        drop(open);
        drop(unsent);
        assert_eq!(tracker.unsent_bytes(), 0);
        assert!(tracker.lock().connections.is_empty());
    }
}
