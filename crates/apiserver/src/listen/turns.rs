//! Turns: work that a peer can cause in any amount does not fill the queues of the runtime.
//!
//! A task waits behind all tasks that became ready before it. What needs a turn waits for it outside
//! of these queues instead, and behind what became ready meanwhile, so that the number of such tasks
//! that others wait for is the number of turns.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
};

use tokio::{sync::Semaphore, task::yield_now};

/// Polls a future for the first time when it is its turn.
pub(super) async fn start_in_turn<F: Future>(future: F, turns: &Semaphore) -> F::Output {
    let mut future = pin!(future);
    match poll_in_turn(future.as_mut(), turns).await {
        Poll::Ready(output) => output,
        Poll::Pending => {
            woken().await;
            future.await
        }
    }
}

/// Polls a future only when it is its turn. It belongs to a task of its own: whatever wakes the task
/// takes a turn.
pub(super) async fn run_in_turns<F: Future>(future: F, turns: &Semaphore) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll_in_turn(future.as_mut(), turns).await {
            return output;
        }
        woken().await;
    }
}

/// Waits until the task is woken by what was polled before.
async fn woken() {
    let mut is_woken = false;
    poll_fn(|_| {
        if std::mem::replace(&mut is_woken, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

async fn poll_in_turn<F: Future>(mut future: Pin<&mut F>, turns: &Semaphore) -> Poll<F::Output> {
    let turn = turns
        .acquire()
        .await
        .expect("the semaphore is never closed");
    yield_now().await;
    let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    drop(turn);
    polled
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use super::*;

    /// A future that computes when it is polled for the first time, and waits afterwards.
    async fn compute_and_wait(computed: Arc<AtomicUsize>) {
        computed.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn future_is_polled_again_only_when_it_is_woken() {
        let turns = Semaphore::new(1);
        let mut polls = 0;
        let twice = poll_fn(|cx| {
            polls += 1;
            if polls == 1 {
                let waker = cx.waker().clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    waker.wake();
                });
                return Poll::Pending;
            }
            Poll::Ready(tokio::time::Instant::now())
        });
        let started = tokio::time::Instant::now();
        let ended = start_in_turn(twice, &turns).await;
        assert_eq!(ended - started, Duration::from_secs(1));
        assert_eq!(polls, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn task_that_becomes_ready_later_is_polled_first() {
        let turns = Arc::new(Semaphore::new(1));
        let computed = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let turns = turns.clone();
                let computed = computed.clone();
                tokio::spawn(async move {
                    start_in_turn(compute_and_wait(computed), &turns).await;
                })
            })
            .collect();
        let other = tokio::spawn({
            let computed = computed.clone();
            async move { computed.load(Ordering::Relaxed) }
        });
        assert!(other.await.expect("no panic") <= 1);
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_eq!(computed.load(Ordering::Relaxed), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn future_that_waits_does_not_keep_its_turn() {
        let turns = Arc::new(Semaphore::new(1));
        let started = tokio::time::Instant::now();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let turns = turns.clone();
                tokio::spawn(async move {
                    let second = tokio::time::sleep(Duration::from_secs(1));
                    run_in_turns(second, &turns).await;
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_eq!(started.elapsed(), Duration::from_secs(1));
    }
}
