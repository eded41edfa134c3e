//! What is tested: an operator that is started, killed at a chosen point, and started again.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{account::Account, world::World};

/// How an operator is run: with a client, until a token is cancelled. Errors fail the test.
pub type Run = fn(kube::Client, CancellationToken) -> BoxFuture<'static, Result<(), String>>;

/// A running operator.
pub struct Subject {
    stop: CancellationToken,
    task: AbortOnDropHandle<Result<(), String>>,
}

impl Subject {
    /// Starts it with an account.
    pub fn start(run: Run, account: &Account) -> Self {
        let stop = CancellationToken::new();
        let task: JoinHandle<_> = tokio::spawn(run(account.client.clone(), stop.clone()));
        Self { stop, task: AbortOnDropHandle::new(task) }
    }

    /// Stops it in order.
    ///
    /// # Panics
    /// It failed.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("it does not panic").expect("it ends well");
    }

    /// Ends it at once, as a power cut does.
    pub async fn kill(self) {
        self.task.abort();
        // What it was doing is dropped when the task is joined.
        _ = self.task.await;
    }
}

impl Account {
    /// Resolves when so many writes of this account have succeeded.
    pub async fn wrote(&self, writes: usize) {
        let mut written = self.written.clone();
        // The sender lives in the client.
        _ = written.wait_for(|so_far| *so_far >= writes).await;
    }
}

/// Checks that an operator comes to the same end wherever it is killed.
///
/// `world` makes a fresh world with an account and what the operator is to act on; `settled` waits for the wanted end and
/// describes it. First the operator runs undisturbed; then, in a fresh world each, it is killed right after its first
/// write, its second, and so on, and started again. Every end must equal the first, and then nothing may be written for 30
/// virtual minutes. Returns how many crashes were tried.
///
/// # Panics
/// An end differs, or writes go on.
pub async fn survives_any_crash(run: Run, world: impl AsyncFn() -> (World, Account), settled: impl AsyncFn(&World) -> String) -> usize {
    let mut undisturbed: Option<(String, usize)> = None;
    let mut crash = 0;
    loop {
        let (there, account) = world().await;
        let mut subject = Subject::start(run, &account);
        if crash > 0 {
            account.wrote(crash).await;
            subject.kill().await;
            subject = Subject::start(run, &account);
        }
        let end = settled(&there).await;
        silence(&there, &account).await;
        let forbidden = account.record.forbidden();
        assert!(forbidden.is_empty(), "not allowed: {forbidden:?}");
        subject.stop().await;
        let written = account.record.writes().into_iter().filter(|seen| seen.code < 300).count();
        there.stop().await;
        let (wanted, writes) = undisturbed.get_or_insert((end.clone(), written));
        assert_eq!(end, *wanted, "killed after write {crash}, it ends otherwise");
        if crash == *writes {
            return crash;
        }
        crash += 1;
    }
}

/// Checks that nothing is written for 30 virtual minutes.
async fn silence(world: &World, account: &Account) {
    world.pass(Duration::from_secs(60)).await;
    let before = account.record.writes().len();
    world.pass(Duration::from_secs(30 * 60)).await;
    let writes = account.record.writes();
    assert_eq!(writes.len(), before, "it goes on writing: {:?}", &writes[before..]);
}
