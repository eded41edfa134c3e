//! Slow start: many equal requests, few at first.
//!
//! In: how many, and how to make one. Out: how many succeeded, and the first failure.
//! Holds: batches double from one, so that a refusal that would meet them all (a quota, a webhook) is met a few times, not
//! five hundred; at most [`AT_ONCE_MAX`] are under way together.

use std::future::Future;

use futures_util::{StreamExt, stream};

/// How many requests of one reconcile are under way at once.
pub(crate) const AT_ONCE_MAX: usize = 64;

/// Calls `once` up to `count` times in growing batches; a batch with a failure is the last one.
pub(crate) async fn slow_start<E, F>(
    count: usize,
    mut once: impl FnMut(usize) -> F,
) -> (usize, Option<E>)
where
    F: Future<Output = Result<(), E>>,
{
    let mut done = 0;
    let mut begun = 0;
    let mut size = 1;
    while begun < count {
        let batch = size.min(count - begun);
        let calls: Vec<_> = (begun..begun + batch).map(&mut once).collect();
        let (successes, failure) = at_once(calls).await;
        begun += batch;
        done += successes;
        if failure.is_some() {
            return (done, failure);
        }
        size *= 2;
    }
    (done, None)
}

/// Makes all requests, a bounded number at a time. Returns how many succeeded, and the first failure.
pub(crate) async fn at_once<E, F: Future<Output = Result<(), E>>>(
    calls: Vec<F>,
) -> (usize, Option<E>) {
    let results = stream::iter(calls).buffer_unordered(AT_ONCE_MAX);
    results
        .fold((0, None), |(done, failure), result| async move {
            match result {
                Ok(()) => (done + 1, failure),
                Err(error) => (done, failure.or(Some(error))),
            }
        })
        .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn refusal_is_met_a_few_times_only() {
        for (count, refused_from, made, done) in [
            (0, 99, 0, 0),
            (1, 99, 1, 1),
            (10, 99, 10, 10),
            (500, 0, 1, 0),
            (500, 1, 3, 1),
            (500, 5, 7, 5),
            (500, 7, 15, 7),
        ] {
            let calls = Cell::new(0);
            let (successes, failure) = slow_start(count, |index| {
                calls.set(calls.get() + 1);
                async move {
                    if index >= refused_from {
                        Err("quota")
                    } else {
                        Ok(())
                    }
                }
            })
            .await;
            assert_eq!(
                calls.get(),
                made,
                "{count} wanted, refused from {refused_from}"
            );
            assert_eq!(
                successes, done,
                "{count} wanted, refused from {refused_from}"
            );
            assert_eq!(
                failure.is_some(),
                count > refused_from,
                "{count} wanted, refused from {refused_from}"
            );
        }
    }
}
