//! Machines: the simulated nodes themselves, below what the API shows of them.
//!
//! In: operations such as a power loss. Out: which machines can act at all, their identity and addresses.
//! Holds: a machine that is off or cut off neither sees nor says anything; every boot has an id of its own; no address is
//! with two pods of a machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellerophon::Entropy;
use jiff::Timestamp;
use tokio::sync::watch;

use super::orders::{Operation, Orders};
use super::simulated::after;

/// How long a machine is away when it reboots.
pub(crate) const BOOT_TIME: Duration = Duration::from_secs(10);

/// Addresses of a machine's range that pods can have; the first is the gateway's.
const POD_ADDRESSES: std::ops::RangeInclusive<u8> = 2..=254;

/// Whether a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    On,
    Off,
    Booting { until: Timestamp },
}

/// What there is to know of a machine at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    number: u32,
    pub(crate) power: Power,
    /// It runs what it runs, and nobody hears of it.
    pub(crate) cut_off: bool,
    /// What its annotations said last; `None` until its Node was seen.
    orders: Option<Orders>,
    pub(crate) boot_id: String,
    /// When it booted last; before everything unless this process saw it.
    pub(crate) booted: Timestamp,
    /// Its kubelet has found or made its Node object since it started.
    pub(crate) registered: bool,
    pub(crate) renewed: Option<Timestamp>,
    pub(crate) reported: Option<Timestamp>,
    /// Somebody cordoned it.
    pub(crate) cordoned: bool,
}

impl Machine {
    /// Whether it sees and says anything.
    pub(crate) fn is_heard(&self) -> bool {
        self.power == Power::On && !self.cut_off
    }

    fn operate(&mut self, operation: Operation, now: Timestamp) {
        match operation {
            Operation::PowerOff => self.power = Power::Off,
            Operation::PowerOn if self.power == Power::Off => {
                self.power = Power::Booting { until: now }
            }
            Operation::PowerOn => {}
            Operation::Reboot => {
                self.power = Power::Booting {
                    until: after(now, BOOT_TIME),
                }
            }
            Operation::CutOff => self.cut_off = true,
            Operation::Join if !self.cut_off => {}
            Operation::Join => (self.cut_off, self.renewed, self.reported) = (false, None, None),
        }
    }

    pub(crate) fn host_ip(&self) -> Ipv4Addr {
        let [_, b, c, d] = self.number.to_be_bytes();
        Ipv4Addr::new(172, 16 + b, c, d)
    }

    /// The range its pods get their addresses from.
    pub(crate) fn pod_cidr(&self) -> String {
        format!("{}/24", self.pod_ip(0))
    }

    /// One of the three zones.
    pub(crate) fn zone(&self) -> &'static str {
        ["zone-a", "zone-b", "zone-c"][(self.number as usize + 2) % 3]
    }

    fn pod_ip(&self, last: u8) -> Ipv4Addr {
        let [_, _, c, d] = self.number.to_be_bytes();
        Ipv4Addr::new(10, 128 | c, d, last)
    }
}

struct Entry {
    machine: Machine,
    /// Who has which of the machine's pod addresses, by uid.
    addresses: BTreeMap<u8, String>,
}

/// All machines of a cluster.
pub(crate) struct Machines {
    entries: Mutex<BTreeMap<String, Entry>>,
    entropy: Entropy,
    /// Those that were not Ready since the start.
    unready: Mutex<BTreeSet<String>>,
    all_ready: std::sync::Arc<watch::Sender<bool>>,
}

impl Machines {
    /// So many machines, connected, as if they had been running for ever.
    pub(crate) fn new(
        count: usize,
        entropy: Entropy,
        all_ready: std::sync::Arc<watch::Sender<bool>>,
    ) -> Self {
        let machine = |number: u32| Machine {
            name: format!("node-{number}"),
            number,
            power: Power::On,
            cut_off: false,
            orders: None,
            boot_id: uuid(&entropy),
            booted: Timestamp::MIN,
            registered: false,
            renewed: None,
            reported: None,
            cordoned: false,
        };
        let machines = (1..=u32::try_from(count).unwrap_or(u32::MAX)).map(machine);
        let entries: BTreeMap<_, _> = machines
            .map(|machine| {
                (
                    machine.name.clone(),
                    Entry {
                        machine,
                        addresses: BTreeMap::new(),
                    },
                )
            })
            .collect();
        let unready: BTreeSet<_> = entries.keys().cloned().collect();
        all_ready.send_replace(unready.is_empty());
        Self {
            entries: Mutex::new(entries),
            entropy,
            unready: Mutex::new(unready),
            all_ready,
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Machine> {
        self.lock().get(name).map(|entry| entry.machine.clone())
    }

    /// Changes what is known of a machine; `None` if there is no such machine.
    pub(crate) fn change<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut Machine) -> T,
    ) -> Option<T> {
        self.lock()
            .get_mut(name)
            .map(|entry| change(&mut entry.machine))
    }

    /// Does something to a machine; `None` if there is no such machine.
    pub(crate) fn operate(&self, name: &str, operation: Operation, now: Timestamp) -> Option<()> {
        self.change(name, |machine| machine.operate(operation, now))
    }

    /// Does to a machine what its annotations say and did not say before; `None` if they say nothing new.
    pub(crate) fn obey(
        &self,
        name: &str,
        orders: &Orders,
        now: Timestamp,
    ) -> Option<Vec<Operation>> {
        self.change(name, |machine| {
            if machine.orders.as_ref() == Some(orders) {
                return None;
            }
            let operations = orders.since(machine.orders.as_ref());
            operations
                .iter()
                .for_each(|operation| machine.operate(*operation, now));
            machine.orders = Some(orders.clone());
            Some(operations)
        })?
    }

    /// A machine that is up again: another boot, and a kubelet that knows nothing yet.
    pub(crate) fn booted(&self, name: &str, now: Timestamp) {
        let boot_id = uuid(&self.entropy);
        self.change(name, |machine| {
            (machine.power, machine.booted, machine.boot_id) = (Power::On, now, boot_id);
            (machine.registered, machine.renewed, machine.reported) = (false, None, None);
        });
    }

    /// The machine's Node object says Ready.
    pub(crate) fn is_ready(&self, name: &str) {
        let none_left = {
            let mut unready = self.unready.lock().unwrap_or_else(PoisonError::into_inner);
            unready.remove(name) && unready.is_empty()
        };
        if none_left {
            self.all_ready.send_replace(true);
        }
    }

    /// An address for a pod: the one it has, the one it says it has, or a free one; `None` when all are taken.
    pub(crate) fn address(&self, name: &str, uid: &str, said: Option<&str>) -> Option<String> {
        let mut entries = self.lock();
        let entry = entries.get_mut(name)?;
        let known = entry
            .addresses
            .iter()
            .find(|(_, with)| *with == uid)
            .map(|(last, _)| *last);
        let said = said
            .and_then(|ip| ip.parse::<Ipv4Addr>().ok())
            .map(|ip| ip.octets()[3])
            .filter(|last| entry.machine.pod_ip(*last).to_string() == said.unwrap_or_default());
        let free = |last: &u8| !entry.addresses.contains_key(last);
        let last = known
            .or(said.filter(free))
            .or_else(|| POD_ADDRESSES.into_iter().find(free))?;
        entry.addresses.insert(last, uid.to_owned());
        Some(entry.machine.pod_ip(last).to_string())
    }

    /// The pod's address can go to another one.
    pub(crate) fn release(&self, name: &str, uid: &str) {
        if let Some(entry) = self.lock().get_mut(name) {
            entry.addresses.retain(|_, with| with != uid);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random uuid, version 4.
pub(crate) fn uuid(entropy: &Entropy) -> String {
    let (a, b) = (entropy.below(u64::MAX), entropy.below(u64::MAX));
    let (high, low) = (a >> 32, a & 0xffff);
    let (variant, node) = ((b >> 48) & 0x3fff | 0x8000, b & 0xffff_ffff_ffff);
    format!(
        "{high:08x}-{:04x}-4{:03x}-{variant:04x}-{node:012x}",
        (a >> 16) & 0xffff,
        low & 0xfff
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn machines(count: usize) -> Machines {
        Machines::new(
            count,
            Entropy::seeded(7),
            Arc::new(watch::Sender::new(false)),
        )
    }

    #[test]
    fn addresses_are_kept_and_given_once() {
        let machines = machines(300);
        for (uid, said, wanted) in [
            ("a", None, Some("10.129.43.2")),
            ("b", None, Some("10.129.43.3")),
            ("a", None, Some("10.129.43.2")),
            ("c", Some("10.129.43.9"), Some("10.129.43.9")),
            ("d", Some("10.129.43.9"), Some("10.129.43.4")),
            ("e", Some("10.1.1.9"), Some("10.129.43.5")),
        ] {
            assert_eq!(
                machines.address("node-299", uid, said).as_deref(),
                wanted,
                "{uid} {said:?}"
            );
        }
        machines.release("node-299", "a");
        assert_eq!(
            machines.address("node-299", "f", None).as_deref(),
            Some("10.129.43.2")
        );
        assert_eq!(machines.address("nowhere", "f", None), None);
        (0..300).for_each(|uid| _ = machines.address("node-1", &uid.to_string(), None));
        assert_eq!(machines.address("node-1", "one too many", None), None);
    }

    #[test]
    fn boot_does_not_mend_the_network() {
        let machines = machines(1);
        let heard = || machines.get("node-1").unwrap().is_heard();
        for (operation, wanted) in [
            (Operation::PowerOn, true),
            (Operation::CutOff, false),
            (Operation::PowerOff, false),
            (Operation::Join, false),
            (Operation::CutOff, false),
            (Operation::PowerOn, false),
            (Operation::Reboot, false),
            (Operation::Join, true),
        ] {
            machines.operate("node-1", operation, Timestamp::UNIX_EPOCH);
            if matches!(machines.get("node-1").unwrap().power, Power::Booting { .. }) {
                machines.booted("node-1", Timestamp::UNIX_EPOCH);
            }
            assert_eq!(heard(), wanted, "{operation:?}");
        }
        assert_eq!(
            machines.operate("node-2", Operation::Reboot, Timestamp::UNIX_EPOCH),
            None
        );
    }

    #[test]
    fn every_boot_has_an_id_of_its_own() {
        let machines = machines(1);
        let before = machines.get("node-1").unwrap();
        assert_eq!(before.boot_id.len(), 36);
        machines.booted("node-1", Timestamp::UNIX_EPOCH);
        let after = machines.get("node-1").unwrap();
        assert_ne!(before.boot_id, after.boot_id);
        assert_eq!((after.power, after.registered), (Power::On, false));
    }
}
