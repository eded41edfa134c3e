//! Returns freed memory to the operating system.
//!
//! mimalloc returns pages a second after they are freed, but only when another page is freed after
//! that: an idle process would keep the memory of its peak.

use std::{convert::Infallible, hint::black_box, time::Duration};

use tokio::time::interval;

/// How often a page is freed.
const INTERVAL: Duration = Duration::from_secs(5);

/// Larger than the blocks that mimalloc keeps for later allocations. The memory is not touched, and
/// takes no space.
const PAGE_BYTES: usize = 8 << 20;

/// Frees a page at intervals, so that memory freed before is returned.
pub(crate) async fn return_at_intervals() -> Infallible {
    let mut ticks = interval(INTERVAL);
    loop {
        ticks.tick().await;
        drop(black_box(Vec::<u8>::with_capacity(PAGE_BYTES)));
    }
}
