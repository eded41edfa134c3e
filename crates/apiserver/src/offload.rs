//! Moves long computations off the threads that serve other requests.
//! In: a future whose polls may compute for long. Out: the same, polled with `block_in_place`.
//! Guarantees: on a runtime of one thread nothing changes, so that runs with a paused clock stay
//! deterministic.

use std::{
    future::{Future, poll_fn},
    pin::pin,
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

use crate::listen::return_grant;

/// Polls a future so that other tasks of the same worker thread are moved to another one first.
/// Must be called in a spawned task.
pub(crate) async fn offload<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let many_threads = Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if many_threads {
        poll_fn(|context| {
            return_grant();
            block_in_place(|| future.as_mut().poll(context))
        })
        .await
    } else {
        future.await
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    /// On the wall clock: the other task runs in less time, or never.
    const OTHER_TASK_MAX: Duration = Duration::from_secs(20);

    #[test]
    fn other_tasks_run_during_long_work() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("a runtime");
        let (sender, receiver) = mpsc::sync_channel(1);
        let long = runtime.spawn(async move {
            tokio::spawn(async move { sender.send(()) });
            offload(async move { receiver.recv_timeout(OTHER_TASK_MAX) }).await
        });
        let ran = runtime.block_on(long).expect("no task panicked");
        assert_eq!(ran, Ok(()), "the only worker thread was held");
    }

    #[tokio::test(start_paused = true)]
    async fn runtime_of_one_thread_polls_as_ever() {
        let begun = tokio::time::Instant::now();
        let slept = offload(async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            begun.elapsed()
        });
        assert_eq!(slept.await, Duration::from_secs(5));
    }
}
