//! The same story told under every fault, and its ends compared.
//!
//! In: how to run an operator, a world for it, and how to tell that it has settled. Out: a passed test, or what differs.
//! Holds: every trial has a world of its own; after each, nothing may be written for ten virtual minutes.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;

use crate::{
    account::Account,
    subject::{Run, Subject},
    weather::Fault,
    world::World,
};

/// How long what is on its way may take to arrive: longer than a fault lasts and clients wait before they try again.
const SETTLING: Duration = Duration::from_secs(5 * 60);

/// How long nothing may be written then.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// How a trial ended.
#[derive(Debug, PartialEq, Eq)]
struct End {
    /// What the test says about the world.
    described: String,
    /// How many objects were made, by resource.
    created: BTreeMap<String, usize>,
}

/// Checks that an operator comes to the same end wherever it is killed.
///
/// `world` makes a fresh world with an account and what the operator is to act on; `settled` waits for the wanted end and
/// describes it. First the operator runs undisturbed; then, in a fresh world each, it is killed right after its first
/// write, its second, and so on, and started again. Every end must equal the first, nothing may be made twice, and then
/// nothing may be written for ten virtual minutes. Returns how many crashes were tried.
///
/// # Panics
/// An end differs, or writes go on.
pub async fn survives_any_crash(
    run: Run,
    world: impl AsyncFn() -> (World, Account),
    settled: impl AsyncFn(&World) -> String,
) -> usize {
    let (wanted, writes) = undisturbed(run, &world, &settled).await;
    for crash in 1..=writes {
        let (there, account) = world().await;
        let first = Subject::start(run, &account);
        account.wrote(crash).await;
        first.kill().await;
        let second = Subject::start(run, &account);
        assert_eq!(
            ended(there, account, vec![second], &settled).await,
            wanted,
            "killed after write {crash}, it ends otherwise"
        );
    }
    writes
}

/// Checks that an operator comes to the same end under every [`Fault`].
///
/// As [`survives_any_crash`], with a fault from beginning to end instead of a crash.
///
/// # Panics
/// An end differs, or writes go on.
pub async fn survives_any_fault(
    run: Run,
    world: impl AsyncFn() -> (World, Account),
    settled: impl AsyncFn(&World) -> String,
) {
    let (wanted, _) = undisturbed(run, &world, &settled).await;
    for fault in Fault::ALL {
        let (there, account) = world().await;
        account.suffer(Some(fault));
        let subject = Subject::start(run, &account);
        assert_eq!(
            ended(there, account, vec![subject], &settled).await,
            wanted,
            "with {fault:?} it ends otherwise"
        );
    }
}

/// Checks that of two copies one works, and that the other finishes what the first began, wherever that is killed.
///
/// As [`survives_any_crash`], with two copies of the operator that compete for a lease in `default`, each under its own
/// identity; the one that holds the lease is killed after each write, and not started again. Returns how many times that was tried.
///
/// # Panics
/// An end differs, writes go on, or nobody holds the lease.
pub async fn hands_over(
    copies: [(&str, Run); 2],
    lease: &str,
    world: impl AsyncFn() -> (World, Account),
    settled: impl AsyncFn(&World) -> String,
) -> usize {
    let (wanted, writes) = undisturbed(copies[0].1, &world, &settled).await;
    for crash in 1..=writes {
        let (there, account) = world().await;
        let mut running: Vec<_> = copies
            .iter()
            .map(|(name, run)| (*name, Subject::start(*run, &account)))
            .collect();
        account.wrote(crash).await;
        let held = there
            .within::<Lease>("default")
            .get(lease)
            .await
            .expect("a lease");
        let holder = held
            .spec
            .and_then(|spec| spec.holder_identity)
            .expect("a holder");
        let leader = running
            .iter()
            .position(|(name, _)| *name == holder)
            .expect("the holder is one of them");
        running.swap_remove(leader).1.kill().await;
        let left = running.into_iter().map(|(_, subject)| subject).collect();
        assert_eq!(
            ended(there, account, left, &settled).await,
            wanted,
            "taken over after write {crash}, it ends otherwise"
        );
    }
    writes
}

/// How it ends when nothing happens, and after how many writes.
async fn undisturbed(
    run: Run,
    world: &impl AsyncFn() -> (World, Account),
    settled: &impl AsyncFn(&World) -> String,
) -> (End, usize) {
    let (there, account) = world().await;
    let (subject, written) = (Subject::start(run, &account), account.written.clone());
    let end = ended(there, account, vec![subject], settled).await;
    let writes = *written.borrow();
    (end, writes)
}

/// Waits for the end, checks that it lasts, and stops everything.
async fn ended(
    there: World,
    account: Account,
    subjects: Vec<Subject>,
    settled: &impl AsyncFn(&World) -> String,
) -> End {
    let described = settled(&there).await;
    silence(&there, &account).await;
    let forbidden = account.record.forbidden();
    assert!(forbidden.is_empty(), "not allowed: {forbidden:?}");
    for subject in subjects {
        subject.stop().await;
    }
    there.stop().await;
    let mut created = BTreeMap::new();
    for seen in account.record.all().iter().filter(|seen| seen.created()) {
        *created.entry(seen.resource.clone()).or_default() += 1;
    }
    End { described, created }
}

/// Checks that nothing is written for ten virtual minutes.
async fn silence(world: &World, account: &Account) {
    world.pass(SETTLING).await;
    let before = account.record.writes().len();
    world.pass(SILENCE).await;
    let writes = account.record.writes();
    assert_eq!(
        writes.len(),
        before,
        "it goes on writing: {:?}",
        &writes[before..]
    );
}
