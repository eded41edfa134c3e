//! The async runtime that openraft runs on: tokio, with seeded randomness and fair watches.
//!
//! Guarantees: on a single-threaded tokio runtime, two runs with the same seed and the same inputs
//! take the same steps. tokio's own watch channel notifies receivers in random order, and openraft
//! draws election timeouts from the thread's randomness; both are replaced here.

mod watch;

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use rand::{
    RngExt as _, SeedableRng as _,
    rngs::{StdRng, SysRng},
};

use watch::NotifyWatch;

tokio::task_local! {
    /// The randomness of the member that the task belongs to.
    static RANDOMNESS: Arc<Mutex<StdRng>>;
}

/// Runs a future with its own source of randomness, which the tasks that it spawns share.
pub(super) async fn with_seed<F: Future>(seed: u64, future: F) -> F::Output {
    let source = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
    RANDOMNESS.scope(source, future).await
}

/// tokio, as openraft uses it.
#[derive(Debug)]
pub(crate) struct Runtime(TokioRuntime);

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = StdRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = NotifyWatch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match RANDOMNESS.try_with(Arc::clone) {
            Ok(source) => TokioRuntime::spawn(RANDOMNESS.scope(source, future)),
            Err(_) => TokioRuntime::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(error)
    }

    fn thread_rng() -> StdRng {
        let seeded = RANDOMNESS.try_with(|source| {
            let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
            StdRng::seed_from_u64(source.random())
        });
        seeded.unwrap_or_else(|_| {
            // A task that no member started; openraft draws no randomness in such tasks.
            StdRng::try_from_rng(&mut SysRng).expect("the system has randomness")
        })
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}
