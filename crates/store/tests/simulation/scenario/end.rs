//! The end of a history: the faults end, the members answer again, and all have the same state.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use bellerophon_linearizability::{EndState, History};
use bellerophon_store::{
    Range, Write,
    api::{Consistency, ListPage, Role},
};

use super::{HEALED_MS, Scenario};
use crate::{clients::state, network::Slot};

impl Scenario {
    /// Ends all faults and waits until every member of the cluster answers a write and a read.
    pub(crate) fn heal(&mut self) -> Result<u64, String> {
        self.cluster.network.heal();
        self.cluster.resume_all();
        let start = self.cluster.now;
        let answered: Arc<Mutex<BTreeSet<Slot>>> = Arc::default();
        let mut next = 0;
        loop {
            if self.cluster.now >= next {
                next = self.cluster.now + 200;
                // Each time, since a process that stops gracefully may end only now.
                self.restart_all()?;
                if self.is_healed(&answered.lock().unwrap()) {
                    return Ok(self.cluster.now - start);
                }
                self.probe(&answered);
            }
            if self.cluster.now - start > HEALED_MS {
                let missing: Vec<String> = self
                    .statuses()
                    .into_iter()
                    .map(|(slot, status)| format!("{slot}: {status:?}"))
                    .collect();
                return Err(format!(
                    "not healed in {HEALED_MS} ms:\n{}",
                    missing.join("\n")
                ));
            }
            self.tick()?;
        }
    }

    /// A member that hands leadership over answers until its process ends, so that stops must be
    /// complete, too.
    fn is_healed(&self, answered: &BTreeSet<Slot>) -> bool {
        let members = self.members();
        self.stopping.is_empty() && !members.is_empty() && members.is_subset(answered)
    }

    /// The machines of the membership of the newest leader.
    fn members(&self) -> BTreeSet<Slot> {
        let statuses = self.statuses().into_iter().map(|(_, status)| status);
        let leader = statuses
            .filter(|status| status.role == Some(Role::Leader))
            .max_by_key(|status| status.term);
        let ids = leader.map(|status| status.membership.members);
        let ids = ids.unwrap_or_default().into_keys();
        ids.filter_map(|id| self.cluster.slot_of(id)).collect()
    }

    fn probe(&self, answered: &Arc<Mutex<BTreeSet<Slot>>>) {
        for slot in self.cluster.running() {
            if answered.lock().unwrap().contains(&slot) {
                continue;
            }
            let answered = Arc::clone(answered);
            self.cluster.spawn(slot, move |member| async move {
                let write = Write::Delete {
                    key: "probe".parse().unwrap(),
                    if_revision: None,
                };
                let key = "probe".parse().unwrap();
                let written = member.write(write).await;
                let read = member.read(&key, Consistency::Linearizable).await;
                if written.is_ok() && read.is_ok() {
                    answered.lock().unwrap().insert(slot);
                }
            });
        }
    }

    /// Lets the clients finish, compares all members, and returns what was seen.
    pub(crate) fn finish(&mut self) -> Result<History, String> {
        let end = self.cluster.now + HEALED_MS;
        while !self.clients.is_idle() && self.cluster.now < end {
            self.cluster.tick();
        }
        // Replication to a member that was unreachable continues after a back-off.
        while !self.is_caught_up() && self.cluster.now < end {
            self.cluster.run(100);
        }
        let mut history = self.clients.history();
        let pages = self.final_pages()?;
        let (_, newest) = pages
            .iter()
            .max_by_key(|(_, page)| page.revision)
            .ok_or("no member runs")?;
        self.check_memberships()?;
        for (slot, page) in &pages {
            if page != newest {
                return Err(format!(
                    "the state at {slot} is not that of the others:\n{page:?}\n{newest:?}"
                ));
            }
        }
        let keys = newest.items.iter().cloned();
        history.end = Some(EndState {
            revision: newest.revision,
            keys: keys
                .map(|item| (item.key.as_str().into(), state(item)))
                .collect(),
        });
        Ok(history)
    }

    /// Whether every member of the cluster has applied the same entries.
    fn is_caught_up(&self) -> bool {
        let members = self.members();
        let statuses = self.statuses().into_iter();
        let mut applied: BTreeSet<u64> = statuses
            .filter(|(slot, _)| members.contains(slot))
            .flat_map(|(_, status)| [status.applied_index, status.last_log_index])
            .collect();
        applied.pop_first().is_some() && applied.is_empty()
    }

    /// Every member knows the membership that the leader knows.
    fn check_memberships(&self) -> Result<(), String> {
        let members = self.members();
        let statuses = self.statuses().into_iter();
        let memberships: Vec<_> = statuses
            .filter(|(slot, _)| members.contains(slot))
            .map(|(slot, status)| (slot, status.membership))
            .collect();
        let first = memberships.first();
        let differs = |pair: &&(Slot, _)| Some(&pair.1) != first.map(|(_, membership)| membership);
        match memberships.iter().find(differs) {
            None => Ok(()),
            Some((slot, membership)) => Err(format!(
                "the membership at {slot} is {membership:?}, another one is {first:?}"
            )),
        }
    }

    /// The whole state of every member of the cluster.
    fn final_pages(&self) -> Result<Vec<(Slot, ListPage)>, String> {
        let list = |slot| {
            let page = self.cluster.block_on(slot, |member| async move {
                member.list(Range::default(), Consistency::Stale).await
            });
            let page = page.map_err(|error| error.to_string())?;
            Ok((slot, page))
        };
        self.members().into_iter().map(list).collect()
    }
}
