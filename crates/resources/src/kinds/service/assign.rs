//! Allocates the addresses and node ports of a service, before it is prepared and validated.
//! In: a defaulted service, and the stored one on update. Out: the service with its numbers, and
//! the reservation that covers them.
//! Guarantees: one address family, IPv4; on an error nothing stays reserved.
//! Mirrors `Allocators` in `pkg/registry/core/service/storage/alloc.go`.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
};

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{
    Addresses, HEADLESS, Reservation, addresses::Refused, has_node_ports, needs_address,
    needs_health_check, node_ports, validate,
};
use crate::kinds::validation;

type Spec = Map<String, Value>;

/// Why a step failed: field errors, or another error.
enum Fault {
    Fields(Vec<FieldError>),
    Other(ApiError),
}

impl From<FieldError> for Fault {
    fn from(error: FieldError) -> Self {
        Self::Fields(vec![error])
    }
}

impl Fault {
    fn of(self, service: &Object) -> ApiError {
        match self {
            Self::Fields(errors) => ApiError::Invalid {
                kind: GroupKind::new("", "Service"),
                name: service.meta.name.clone(),
                errors,
            },
            Self::Other(error) => error,
        }
    }
}

impl Addresses {
    /// Allocates what a new service needs.
    ///
    /// # Errors
    /// 422 when a requested number cannot be allocated, 500 when none is left.
    pub fn begin_create(&mut self, service: &mut Object) -> Result<Reservation, ApiError> {
        let mut reservation = Reservation::default();
        let name = service.meta.name.clone();
        let spec = service.section("spec");
        if spec.is_empty_at("clusterIPs") && !spec.text("clusterIP").is_empty() {
            let only = spec.field("clusterIP").clone();
            spec.insert("clusterIPs".into(), json!([only]));
        }
        let done = (|| {
            families(spec, None)?;
            self.give_address(&name, spec, &mut reservation)?;
            self.give_node_ports(spec, &mut reservation)?;
            self.give_health_check(spec, &mut reservation)
        })();
        self.settle(done, reservation, service)
    }

    /// Gives a changed service what it needs more than before, and marks what it needs no more.
    ///
    /// # Errors
    /// As for [`begin_create`](Self::begin_create).
    pub fn begin_update(
        &mut self,
        new: &mut Object,
        old: &Object,
    ) -> Result<Reservation, ApiError> {
        let mut reservation = Reservation::default();
        let name = new.meta.name.clone();
        let before = old.body.field("spec");
        let spec = new.section("spec");
        carry_over(spec, before);
        follow_address(spec, before);
        let done = (|| {
            families(spec, Some(before))?;
            self.change_address(&name, spec, before, &mut reservation)?;
            self.change_node_ports(spec, before, &mut reservation)?;
            self.change_health_check(spec, before, &mut reservation)
        })();
        self.settle(done, reservation, new)
    }

    fn settle(
        &mut self,
        done: Result<(), Fault>,
        reservation: Reservation,
        service: &Object,
    ) -> Result<Reservation, ApiError> {
        match done {
            Ok(()) => Ok(reservation),
            Err(fault) => {
                self.revert(reservation);
                Err(fault.of(service))
            }
        }
    }

    fn give_address(
        &mut self,
        name: &str,
        spec: &mut Spec,
        reservation: &mut Reservation,
    ) -> Result<(), Fault> {
        let requested = spec
            .list("clusterIPs")
            .first()
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        if !needs_address(spec) || requested == HEADLESS {
            return Ok(());
        }
        let ip = if requested.is_empty() {
            let full = || {
                ApiError::Internal(format!(
                    "failed to allocate a serviceIP for Service {name:?}: range is full"
                ))
            };
            self.take_ip(reservation)
                .ok_or_else(|| Fault::Other(full()))?
                .to_string()
        } else {
            self.take_requested(&requested, spec, reservation)?;
            requested
        };
        spec.insert("clusterIP".into(), ip.clone().into());
        spec.insert("clusterIPs".into(), json!([ip]));
        Ok(())
    }

    fn take_requested(
        &mut self,
        requested: &str,
        spec: &Spec,
        reservation: &mut Reservation,
    ) -> Result<(), Fault> {
        let refused = match validation::parse_ip(requested) {
            Some(IpAddr::V4(ip)) if ip.octets()[..2] == [10, 0] => self.take_this_ip(ip, reservation).err().map(|why| match why {
                Refused::Taken => "provided IP is already allocated".to_owned(),
                Refused::OutOfRange => {
                    format!("the provided IP ({ip}) is not in the valid range. The range of valid IPs is {}/16", Ipv4Addr::new(10, 0, 0, 0))
                }
            }),
            _ => Some("the provided network does not match the current range".to_owned()),
        };
        match refused {
            None => Ok(()),
            Some(why) => Err(FieldError::invalid(
                "spec.clusterIPs",
                spec.field("clusterIPs"),
                &format!("failed to allocate IP {requested}: {why}"),
            )
            .into()),
        }
    }

    fn change_address(
        &mut self,
        name: &str,
        spec: &mut Spec,
        before: &Value,
        reservation: &mut Reservation,
    ) -> Result<(), Fault> {
        match (needs_address(before), needs_address(spec)) {
            (false, true) => self.give_address(name, spec, reservation),
            (true, false) => {
                reservation.give_up_ips(before.list("clusterIPs"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Ports with the same number share a node port, whatever their protocol.
    fn give_node_ports(
        &mut self,
        spec: &mut Spec,
        reservation: &mut Reservation,
    ) -> Result<(), Fault> {
        if !has_node_ports(spec) {
            return Ok(());
        }
        let on_its_own = wants_node_ports(spec);
        let requested: Vec<(i64, i64)> = spec
            .list("ports")
            .iter()
            .map(|p| (p.number("port"), p.number("nodePort")))
            .collect();
        // By port: the first requested node port, and the first allocated one.
        let mut wanted: HashMap<i64, i64> = HashMap::new();
        for (number, node_port) in requested.iter().filter(|(_, node_port)| *node_port != 0) {
            wanted.entry(*number).or_insert(*node_port);
        }
        let mut given: HashMap<i64, i64> = HashMap::new();
        for (i, port) in spec.maps_mut("ports").enumerate() {
            let (number, node_port) = requested[i];
            if node_port == 0 && !on_its_own {
                continue;
            }
            let chosen = match given.get(&number).copied() {
                None => {
                    let chosen = match wanted.get(&number) {
                        Some(wanted) => self.take_port_for(i, *wanted, reservation)?,
                        None => self.take_port(reservation).ok_or_else(no_port)?,
                    };
                    given.insert(number, chosen);
                    chosen
                }
                Some(shared) if node_port == 0 || node_port == shared => shared,
                Some(_) => self.take_port_for(i, node_port, reservation)?,
            };
            port.insert("nodePort".into(), chosen.into());
        }
        Ok(())
    }

    fn change_node_ports(
        &mut self,
        spec: &mut Spec,
        before: &Value,
        reservation: &mut Reservation,
    ) -> Result<(), Fault> {
        let held: BTreeSet<i64> = node_ports(before).into_iter().collect();
        if !has_node_ports(spec) {
            if has_node_ports(before) {
                held.iter().for_each(|port| reservation.give_up_port(*port));
            }
            return Ok(());
        }
        let on_its_own = wants_node_ports(spec);
        let mut seen: HashSet<(String, i64)> = HashSet::new();
        let mut seen_ports: HashSet<i64> = HashSet::new();
        for (i, port) in spec.maps_mut("ports").enumerate() {
            let mut node_port = port.number("nodePort");
            if node_port == 0 && !on_its_own {
                continue;
            }
            if node_port == 0 {
                node_port = self.take_port(reservation).ok_or_else(no_port)?;
                port.insert("nodePort".into(), node_port.into());
            } else if !held.contains(&node_port) && !seen_ports.contains(&node_port) {
                self.take_port_for(i, node_port, reservation)?;
            }
            let key = (port.text("protocol").to_owned(), node_port);
            if seen.contains(&key) {
                return Err(Fault::Other(ApiError::Unnamed(format!(
                    "duplicate nodePort: {{{} {}}}",
                    key.0, key.1
                ))));
            }
            seen.insert(key);
            seen_ports.insert(node_port);
        }
        let kept: HashSet<i64> = node_ports(spec).into_iter().collect();
        held.iter()
            .filter(|port| !kept.contains(port))
            .for_each(|port| reservation.give_up_port(*port));
        Ok(())
    }

    fn take_port_for(
        &mut self,
        index: usize,
        port: i64,
        reservation: &mut Reservation,
    ) -> Result<i64, Fault> {
        self.take_this_port(port, reservation).map_err(|why| {
            let all = Path::field("spec.ports");
            FieldError::invalid(all.index(index).child("nodePort"), port, port_refused(why))
        })?;
        Ok(port)
    }

    fn give_health_check(
        &mut self,
        spec: &mut Spec,
        reservation: &mut Reservation,
    ) -> Result<(), Fault> {
        if !needs_health_check(spec) {
            return Ok(());
        }
        let requested = spec.number("healthCheckNodePort");
        if requested == 0 {
            let port = self.take_port(reservation).ok_or_else(no_port)?;
            spec.insert("healthCheckNodePort".into(), port.into());
            return Ok(());
        }
        self.take_this_port(requested, reservation).map_err(|why| {
            let why = port_refused(why);
            Fault::Other(ApiError::Internal(format!(
                "failed to allocate requested HealthCheck NodePort {requested}: {why}"
            )))
        })
    }

    fn change_health_check(
        &mut self,
        spec: &mut Spec,
        before: &Value,
        reservation: &mut Reservation,
    ) -> Result<(), Fault> {
        match (needs_health_check(before), needs_health_check(spec)) {
            (false, true) => self.give_health_check(spec, reservation),
            (true, false) => {
                reservation.give_up_port(before.number("healthCheckNodePort"));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn no_port() -> Fault {
    Fault::Other(ApiError::Internal(
        "failed to allocate a nodePort: range is full".into(),
    ))
}

fn port_refused(why: Refused) -> &'static str {
    match why {
        Refused::Taken => "provided port is already allocated",
        Refused::OutOfRange => {
            "provided port is not in the valid range. The range of valid ports is 30000-32767"
        }
    }
}

fn wants_node_ports(spec: &Spec) -> bool {
    spec.text("type") == "NodePort" || spec.is_true("allocateLoadBalancerNodePorts")
}

/// Takes from the stored service what the client left out because the server had chosen it.
fn carry_over(new: &mut Spec, old: &Value) {
    if needs_address(old) && needs_address(new) {
        if new.text("clusterIP").is_empty() && !old.text("clusterIP").is_empty() {
            new.insert("clusterIP".into(), old.field("clusterIP").clone());
        }
        if new.is_empty_at("clusterIPs") && !old.is_empty_at("clusterIPs") {
            new.insert("clusterIPs".into(), old.field("clusterIPs").clone());
        }
    }
    if keeps_node_ports(old) && keeps_node_ports(new) {
        carry_node_ports(new, old);
    }
    if needs_health_check(old) && needs_health_check(new) && new.number("healthCheckNodePort") == 0
    {
        new.insert(
            "healthCheckNodePort".into(),
            old.field("healthCheckNodePort").clone(),
        );
    }
}

/// Whether a service of this type keeps its node ports.
fn keeps_node_ports(spec: &impl JsonExt) -> bool {
    let declined = spec.field("allocateLoadBalancerNodePorts") == &Value::Bool(false);
    has_node_ports(spec) && !(spec.text("type") == "LoadBalancer" && declined)
}

/// A port keeps its node port by name, unless another port of the new list already has it.
fn carry_node_ports(new: &mut Spec, old: &Value) {
    let given: HashSet<i64> = node_ports(new).into_iter().collect();
    let used: HashSet<i64> = node_ports(old)
        .into_iter()
        .filter(|port| given.contains(port))
        .collect();
    // Of equal names the last counts.
    let old_ports: HashMap<&str, i64> = old
        .list("ports")
        .iter()
        .map(|port| (port.text("name"), port.number("nodePort")))
        .collect();
    for port in new
        .maps_mut("ports")
        .filter(|port| port.number("nodePort") == 0)
    {
        let before = old_ports.get(port.text("name")).copied().unwrap_or(0);
        if before != 0 && !used.contains(&before) {
            port.insert("nodePort".into(), before.into());
        }
    }
}

/// A changed `clusterIP` carries the list with it when the client left the list as it was, and the
/// reverse.
fn follow_address(new: &mut Spec, old: &Value) {
    let same_list = |new: &Spec| new.field("clusterIPs") == old.field("clusterIPs");
    if new.text("clusterIP") == old.text("clusterIP") || !same_list(new) {
        return;
    }
    if new.text("clusterIP").is_empty() {
        new.remove("clusterIPs");
    } else {
        let only = new.field("clusterIP").clone();
        new.insert("clusterIPs".into(), json!([only]));
    }
}

/// Settles family and policy; this cluster has IPv4 only.
fn families(spec: &mut Spec, old: Option<&Value>) -> Result<(), Fault> {
    if !needs_address(spec) {
        return Ok(());
    }
    let selectorless = spec.text("clusterIP") == HEADLESS && spec.is_empty_at("selector");
    if spec.get_set("ipFamilyPolicy").is_none() {
        let before = old.and_then(|old| old.get_set("ipFamilyPolicy")).cloned();
        let fresh = if selectorless {
            "RequireDualStack"
        } else {
            "SingleStack"
        };
        spec.insert(
            "ipFamilyPolicy".into(),
            before.unwrap_or_else(|| fresh.into()),
        );
    }
    let mut errs = Vec::new();
    validate::cluster_ips(spec, &mut errs);
    fail_on(errs)?;
    let errs = stacks(spec);
    fail_on(errs)?;
    if selectorless {
        let mut families = spec.list("ipFamilies").to_vec();
        if families.is_empty() {
            families.push("IPv4".into());
        }
        if families.len() == 1 && spec.text("ipFamilyPolicy") != "SingleStack" {
            families.push(if families[0] == "IPv4" {
                "IPv6".into()
            } else {
                "IPv4".into()
            });
        }
        spec.insert("ipFamilies".into(), families.into());
        return Ok(());
    }
    let mut errs = Vec::new();
    if spec.text("ipFamilyPolicy") == "RequireDualStack" {
        errs.push(FieldError::invalid(
            "spec.ipFamilyPolicy",
            "RequireDualStack",
            "this cluster is not configured for dual-stack services",
        ));
    }
    let all = Path::field("spec.ipFamilies");
    for (i, family) in spec
        .list("ipFamilies")
        .iter()
        .enumerate()
        .filter(|(_, family)| *family != "IPv4")
    {
        errs.push(FieldError::invalid(
            all.index(i),
            family,
            "not configured on this cluster",
        ));
    }
    fail_on(errs)?;
    if spec.is_empty_at("ipFamilies") {
        spec.insert("ipFamilies".into(), json!(["IPv4"]));
    }
    Ok(())
}

/// Errors of fields that contradict the policy, or the only address family.
fn stacks(spec: &Spec) -> Vec<FieldError> {
    let mut errs = Vec::new();
    if spec.text("ipFamilyPolicy") == "SingleStack" {
        for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if spec.list(field).len() == 2 {
                let why = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                errs.push(FieldError::invalid(
                    "spec.ipFamilyPolicy",
                    "SingleStack",
                    &why,
                ));
            }
        }
    }
    let all = Path::field("spec.clusterIPs");
    let known = spec.list("ipFamilies").len();
    for (i, ip) in spec.list("clusterIPs").iter().enumerate().skip(known) {
        let is_v6 = ip
            .as_str()
            .and_then(validation::parse_ip)
            .is_some_and(|ip| ip.is_ipv6());
        if is_v6 {
            errs.push(FieldError::invalid(
                all.index(i),
                spec.field("clusterIPs"),
                "IPv6 is not configured on this cluster",
            ));
        }
    }
    errs
}

fn fail_on(errors: Vec<FieldError>) -> Result<(), Fault> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Fault::Fields(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{service::SERVICE, test_support::object};

    fn allocate(addresses: &mut Addresses, spec: Value) -> Result<Value, String> {
        let mut service = object(json!({"metadata": {"name": "web"}, "spec": spec}));
        (SERVICE.default)(&mut service);
        match addresses.begin_create(&mut service) {
            Ok(reservation) => {
                addresses.commit(reservation);
                Ok(service.body["spec"].clone())
            }
            Err(ApiError::Invalid { errors, .. }) => Err(errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")),
            Err(other) => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn requested_numbers_are_allocated_once() {
        let mut addresses = Addresses::new();
        allocate(&mut addresses, json!({"type": "NodePort", "clusterIP": "10.0.0.201", "ports": [{"port": 80, "nodePort": 30041}]}))
            .expect("all free");
        for (spec, why) in [
            (
                json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30041}]}),
                "spec.ports[0].nodePort: Invalid value: 30041: provided port is already allocated",
            ),
            (
                json!({"clusterIP": "10.0.0.201", "ports": [{"port": 80}]}),
                "spec.clusterIPs: Invalid value: [\"10.0.0.201\"]: failed to allocate IP 10.0.0.201: provided IP is already allocated",
            ),
            (
                json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}),
                "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767",
            ),
            (
                json!({"clusterIP": "192.0.2.1", "ports": [{"port": 80}]}),
                "spec.clusterIPs: Invalid value: [\"192.0.2.1\"]: failed to allocate IP 192.0.2.1: the provided network does not match the current range",
            ),
            (
                json!({"clusterIP": "None", "clusterIPs": ["10.0.0.9"], "selector": {"app": "a b"}}),
                "spec.clusterIPs: Invalid value: [\"10.0.0.9\"]: first value must match `clusterIP`",
            ),
            (
                json!({"clusterIP": "not-an-ip"}),
                "spec.clusterIPs[0]: Invalid value: \"not-an-ip\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            (
                json!({"ipFamilyPolicy": "RequireDualStack", "selector": {"a": "b"}}),
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
            ),
            (
                json!({"ipFamilies": ["IPv6"], "selector": {"a": "b"}}),
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ),
        ] {
            assert_eq!(allocate(&mut addresses, spec).expect_err("refused"), why);
            assert_eq!(addresses.addresses_taken(), 1, "{why}");
            assert_eq!(addresses.ports_taken(), 1, "{why}");
        }
    }

    #[test]
    fn ports_of_one_number_share_a_node_port() {
        let spec = allocate(
            &mut Addresses::new(),
            json!({"type": "NodePort", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 443}, {"name": "c", "port": 443, "protocol": "UDP"}]}),
        );
        assert_eq!(node_ports(&spec.expect("all free")), [30086, 30087, 30087]);
    }

    #[test]
    fn headless_services_get_families_but_no_address() {
        let mut addresses = Addresses::new();
        let with_selector = allocate(
            &mut addresses,
            json!({"clusterIP": "None", "selector": {"app": "db"}}),
        )
        .expect("nothing needed");
        assert_eq!(with_selector.text("ipFamilyPolicy"), "SingleStack");
        assert_eq!(with_selector.field("ipFamilies"), &json!(["IPv4"]));
        let without =
            allocate(&mut addresses, json!({"clusterIP": "None"})).expect("nothing needed");
        assert_eq!(without.text("ipFamilyPolicy"), "RequireDualStack");
        assert_eq!(without.field("ipFamilies"), &json!(["IPv4", "IPv6"]));
        assert_eq!(addresses.addresses_taken(), 0);
    }

    #[test]
    fn update_keeps_what_the_client_left_out() {
        let mut addresses = Addresses::new();
        let old = allocate(
            &mut addresses,
            json!({"type": "NodePort", "ports": [{"port": 80}]}),
        )
        .expect("all free");
        let old = object(json!({"spec": old}));
        let mut new = object(json!({"spec": {"type": "NodePort", "ports": [{"port": 80}]}}));
        (SERVICE.default)(&mut new);
        let reservation = addresses.begin_update(&mut new, &old).expect("nothing new");
        addresses.commit(reservation);
        assert_eq!(new.body["spec"], old.body["spec"]);
        assert_eq!(addresses.addresses_taken(), 1);
        assert_eq!(addresses.ports_taken(), 1);
    }
}
