//! Bursts of concurrent requests.
//!
//! Input: number of requests and a request function. Output: number of successes and the first
//! error.
//! Guarantees: at most [`MAX_CONCURRENT_REQUESTS`] requests are in flight; slow-start batches
//! double from 1, so that an error common to all requests (quota, webhook) is received a few times
//! only.

use std::future::Future;

use futures_util::{StreamExt, stream};

/// Maximum number of requests of one reconcile in flight.
pub(crate) const MAX_CONCURRENT_REQUESTS: usize = 64;

/// Calls `request` up to `count` times in batches of 1, 2, 4, …; stops after a batch with an error.
/// Mirrors slowStartBatch.
pub(crate) async fn slow_start_batch<E, F>(
    count: usize,
    mut request: impl FnMut(usize) -> F,
) -> (usize, Option<E>)
where
    F: Future<Output = Result<(), E>>,
{
    let mut succeeded = 0;
    let mut started = 0;
    let mut size = 1;
    while started < count {
        // Mirrors slowStartBatch in pkg/controller/replicaset/replica_set.go: a batch is awaited
        // before the next one begins, so a quota or webhook that rejects everything receives one
        // batch.
        let batch = size.min(count - started);
        let requests: Vec<_> = (started..started + batch).map(&mut request).collect();
        let (successes, error) = run_concurrently(requests).await;
        started += batch;
        succeeded += successes;
        if error.is_some() {
            return (succeeded, error);
        }
        size *= 2;
    }
    (succeeded, None)
}

/// Runs all requests concurrently. Returns the number of successes and the first error.
pub(crate) async fn run_concurrently<E, F: Future<Output = Result<(), E>>>(
    requests: Vec<F>,
) -> (usize, Option<E>) {
    let results = stream::iter(requests).buffer_unordered(MAX_CONCURRENT_REQUESTS);
    results
        .fold((0, None), |(succeeded, first_error), result| async move {
            match result {
                Ok(()) => (succeeded + 1, first_error),
                Err(error) => (succeeded, first_error.or(Some(error))),
            }
        })
        .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn slow_start_stops_after_first_failed_batch() {
        for (count, fails_from, requested, succeeded) in [
            (0, 99, 0, 0),
            (1, 99, 1, 1),
            (10, 99, 10, 10),
            (500, 0, 1, 0),
            (500, 1, 3, 1),
            (500, 5, 7, 5),
            (500, 7, 15, 7),
        ] {
            let requests = Cell::new(0);
            let (successes, error) = slow_start_batch(count, |index| {
                requests.set(requests.get() + 1);
                async move {
                    if index >= fails_from {
                        Err("quota")
                    } else {
                        Ok(())
                    }
                }
            })
            .await;
            assert_eq!(
                requests.get(),
                requested,
                "{count} requests, failing from {fails_from}"
            );
            assert_eq!(
                successes, succeeded,
                "{count} requests, failing from {fails_from}"
            );
            assert_eq!(
                error.is_some(),
                count > fails_from,
                "{count} requests, failing from {fails_from}"
            );
        }
    }
}
