//! Allocated service addresses and node ports.
//! In: requests for any number, or for a given one. Out: reservations, committed or released with
//! the write they belong to.
//! Guarantees: a number is allocated once while an object holds it; low numbers are left to objects
//! that request them.
//! Mirrors the allocators `pkg/registry/core/service/ipallocator` and `portallocator`.

use std::{collections::BTreeSet, net::Ipv4Addr, ops::RangeInclusive};

use bellerophon_apimachinery::json_ext::JsonExt;
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{HEADLESS, needs_address, needs_health_check, node_ports};

/// 10.0.0.0/16 without its first and last address.
const ADDRESSES: RangeInclusive<u32> = 0x0a00_0001..=0x0a00_fffe;
/// Below this, addresses are allocated only if requested, or when no other is free.
const ADDRESSES_DYNAMIC: u32 = 0x0a00_0100;
const PORTS: RangeInclusive<u32> = 30_000..=32_767;
const PORTS_DYNAMIC: u32 = 30_086;

/// The addresses and node ports of all services. The write path owns the only instance and
/// allocates from it before each write of a Service.
#[derive(Debug)]
pub struct Addresses {
    ips: Pool,
    ports: Pool,
}

/// The numbers that one write allocates and releases. Final only after [`Addresses::commit`].
#[derive(Debug, Default)]
#[must_use = "a reservation is committed when the write succeeds and reverted when it does not"]
pub struct Reservation {
    taken_ips: Vec<u32>,
    taken_ports: Vec<u32>,
    freed_ips: Vec<u32>,
    freed_ports: Vec<u32>,
}

/// Why a requested number was not allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    OutOfRange,
    Taken,
}

impl Default for Addresses {
    fn default() -> Self {
        Self::new()
    }
}

impl Addresses {
    /// No allocations.
    pub fn new() -> Self {
        Self {
            ips: Pool::new(ADDRESSES, ADDRESSES_DYNAMIC),
            ports: Pool::new(PORTS, PORTS_DYNAMIC),
        }
    }

    /// Marks what a stored service holds, when the server starts on existing storage.
    pub fn adopt(&mut self, service: &Object) {
        let (ips, ports) = held(service.body.field("spec"));
        self.ips.taken.extend(ips);
        self.ports.taken.extend(ports);
    }

    /// Gives back what a deleted service held.
    pub fn release(&mut self, service: &Object) {
        let (ips, ports) = held(service.body.field("spec"));
        self.ips.free(&ips);
        self.ports.free(&ports);
    }

    /// The write is stored: the numbers that it releases become free.
    pub fn commit(&mut self, reservation: Reservation) {
        self.ips.free(&reservation.freed_ips);
        self.ports.free(&reservation.freed_ports);
    }

    /// The write failed, or was only tried: what it took is free again.
    pub fn revert(&mut self, reservation: Reservation) {
        self.ips.free(&reservation.taken_ips);
        self.ports.free(&reservation.taken_ports);
    }

    /// Takes any free address.
    pub(super) fn take_ip(&mut self, reservation: &mut Reservation) -> Option<Ipv4Addr> {
        let ip = self.ips.next()?;
        reservation.taken_ips.push(ip);
        Some(ip.into())
    }

    /// Takes this address.
    pub(super) fn take_this_ip(
        &mut self,
        ip: Ipv4Addr,
        reservation: &mut Reservation,
    ) -> Result<(), Refused> {
        self.ips.take(ip.into())?;
        reservation.taken_ips.push(ip.into());
        Ok(())
    }

    /// Takes any free node port.
    pub(super) fn take_port(&mut self, reservation: &mut Reservation) -> Option<i64> {
        let port = self.ports.next()?;
        reservation.taken_ports.push(port);
        Some(port.into())
    }

    /// Takes this node port.
    pub(super) fn take_this_port(
        &mut self,
        port: i64,
        reservation: &mut Reservation,
    ) -> Result<(), Refused> {
        let port = u32::try_from(port).map_err(|_| Refused::OutOfRange)?;
        self.ports.take(port)?;
        reservation.taken_ports.push(port);
        Ok(())
    }

    /// How many addresses are taken.
    #[cfg(test)]
    pub(crate) fn addresses_taken(&self) -> usize {
        self.ips.taken.len()
    }

    /// How many node ports are taken.
    #[cfg(test)]
    pub(crate) fn ports_taken(&self) -> usize {
        self.ports.taken.len()
    }
}

impl Reservation {
    /// Releases addresses once the write is stored.
    pub(super) fn give_up_ips(&mut self, ips: &[Value]) {
        self.freed_ips.extend(numbers(ips));
    }

    /// Releases a node port once the write is stored.
    pub(super) fn give_up_port(&mut self, port: i64) {
        self.freed_ports.extend(u32::try_from(port));
    }
}

/// The numbers of a stored service.
fn held(spec: &Value) -> (Vec<u32>, Vec<u32>) {
    let ips = if needs_address(spec) {
        numbers(spec.list("clusterIPs"))
    } else {
        Vec::new()
    };
    let mut ports = node_ports(spec);
    if needs_health_check(spec) {
        ports.extend(spec.int("healthCheckNodePort"));
    }
    (
        ips,
        ports
            .into_iter()
            .filter_map(|port| u32::try_from(port).ok())
            .collect(),
    )
}

/// The IPv4 addresses of a list; `None` and IPv6 are no part of the pool.
fn numbers(ips: &[Value]) -> Vec<u32> {
    ips.iter()
        .filter_map(Value::as_str)
        .filter(|ip| *ip != HEADLESS)
        .filter_map(|ip| ip.parse::<Ipv4Addr>().ok())
        .map(u32::from)
        .collect()
}

/// Numbers of one range.
#[derive(Debug)]
struct Pool {
    range: RangeInclusive<u32>,
    /// The first number that is allocated without being requested.
    dynamic: u32,
    /// Where the search for a free number continues, in the range.
    cursor: u32,
    /// Every one is in the range.
    taken: BTreeSet<u32>,
}

impl Pool {
    fn new(range: RangeInclusive<u32>, dynamic: u32) -> Self {
        Self {
            range,
            dynamic,
            cursor: dynamic,
            taken: BTreeSet::new(),
        }
    }

    fn take(&mut self, number: u32) -> Result<(), Refused> {
        if !self.range.contains(&number) {
            return Err(Refused::OutOfRange);
        }
        if self.taken.insert(number) {
            Ok(())
        } else {
            Err(Refused::Taken)
        }
    }

    /// The next free number: onward from the last one given, then around, then the low ones.
    fn next(&mut self) -> Option<u32> {
        let onward = self.cursor..=*self.range.end();
        let around = self.dynamic..=self.cursor;
        let low = *self.range.start()..=self.dynamic;
        let free = onward
            .chain(around)
            .chain(low)
            .find(|n| !self.taken.contains(n))?;
        self.taken.insert(free);
        self.cursor = if self.range.contains(&(free + 1)) {
            free + 1
        } else {
            self.dynamic
        };
        Some(free)
    }

    fn free(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|n| {
            self.taken.remove(n);
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::object;

    #[test]
    fn number_is_given_once_until_released() {
        let mut pool = Pool::new(1..=4, 3);
        assert_eq!(
            [
                pool.next(),
                pool.next(),
                pool.next(),
                pool.next(),
                pool.next()
            ],
            [Some(3), Some(4), Some(1), Some(2), None]
        );
        assert_eq!(pool.take(2), Err(Refused::Taken));
        assert_eq!(pool.take(9), Err(Refused::OutOfRange));
        pool.free(&[4]);
        assert_eq!(pool.next(), Some(4));
        assert_eq!(pool.next(), None);
    }

    #[test]
    fn stored_services_keep_what_they_hold() {
        let mut addresses = Addresses::new();
        let service = object(
            json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.9"], "ports": [{"nodePort": 30001}, {"nodePort": 30001}], "externalTrafficPolicy": "Local", "healthCheckNodePort": 30002}}),
        );
        addresses.adopt(&service);
        assert_eq!(addresses.addresses_taken(), 1);
        assert_eq!(addresses.ports_taken(), 2);
        addresses.release(&service);
        assert_eq!(addresses.addresses_taken(), 0);
        assert_eq!(addresses.ports_taken(), 0);
    }

    #[test]
    fn headless_service_holds_nothing() {
        let mut addresses = Addresses::new();
        addresses.adopt(&object(
            json!({"spec": {"type": "ClusterIP", "clusterIPs": ["None"]}}),
        ));
        assert_eq!(addresses.addresses_taken(), 0);
    }
}
