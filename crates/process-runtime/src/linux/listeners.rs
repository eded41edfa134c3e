//! Sockets on which processes listen, by `/proc`.
//!
//! In: a marker of processes, or a process of a network namespace. Out: TCP ports.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::procfs::with_environment;

/// The state of a listening socket in proc_net_tcp(5).
const LISTEN: &str = "0A";

/// The TCP ports on which processes with that variable in their environment listen for all
/// addresses.
pub(crate) fn wildcard_listeners(name: &str, value: &str) -> io::Result<BTreeSet<u16>> {
    let mut ports = HashMap::new();
    for table in tables("/proc/net")? {
        ports.extend(wildcard_sockets(&table));
    }
    let mut found = BTreeSet::new();
    for pid in with_environment(name, value)? {
        let dir = format!("/proc/{}/fd", pid.as_raw_nonzero());
        // The process may have ended.
        let descriptors = fs::read_dir(dir).into_iter().flatten().flatten();
        let links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
        found.extend(links.filter_map(|link| ports.get(link.to_str()?).copied()));
    }
    Ok(found)
}

/// The TCP ports of a process's network namespace on which other hosts can connect.
pub(crate) fn listening_ports(pid: i32) -> io::Result<BTreeSet<u16>> {
    let tables = tables(&format!("/proc/{pid}/net"))?;
    let sockets = tables.iter().flat_map(|table| listening_sockets(table));
    let reachable = sockets.filter(|socket| !is_loopback(socket.address));
    Ok(reachable.map(|socket| socket.port).collect())
}

/// The socket tables of a network namespace.
fn tables(directory: &str) -> io::Result<Vec<String>> {
    let mut tables = Vec::new();
    for name in ["tcp", "tcp6"] {
        match fs::read_to_string(format!("{directory}/{name}")) {
            // There may be no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            text => tables.push(text?),
        }
    }
    Ok(tables)
}

/// A line of proc_net_tcp(5).
struct ListeningSocket<'a> {
    /// In hexadecimal digits, each word in the byte order of the machine.
    address: &'a str,
    port: u16,
    inode: &'a str,
}

fn listening_sockets(table: &str) -> impl Iterator<Item = ListeningSocket<'_>> {
    table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, port) = fields.get(1)?.split_once(':')?;
        if *fields.get(3)? != LISTEN {
            return None;
        }
        Some(ListeningSocket {
            address,
            port: u16::from_str_radix(port, 16).ok()?,
            inode: fields.get(9)?,
        })
    })
}

/// The ports of sockets that listen for all addresses, by the target of a link to the socket.
fn wildcard_sockets(table: &str) -> impl Iterator<Item = (String, u16)> {
    let is_wildcard = |address: &str| address.bytes().all(|digit| digit == b'0');
    listening_sockets(table)
        .filter(move |socket| is_wildcard(socket.address))
        .map(|socket| (format!("socket:[{}]", socket.inode), socket.port))
}

/// Whether an address is one of 127.0.0.0/8, also as an IPv6 address, or `::1`.
fn is_loopback(address: &str) -> bool {
    let words: Option<Vec<u32>> = (0..address.len())
        .step_by(8)
        .map(|start| u32::from_str_radix(address.get(start..start + 8)?, 16).ok())
        .collect();
    let bytes = words.into_iter().flatten().flat_map(u32::to_ne_bytes);
    let bytes: Vec<u8> = bytes.collect();
    if let Ok(octets) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Ipv4Addr::from(octets).is_loopback();
    }
    <[u8; 16]>::try_from(bytes.as_slice())
        .is_ok_and(|octets| Ipv6Addr::from(octets).to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_listeners_of_all_addresses_are_found() {
        let table =
            "  sl  local_address rem_address   st tx_queue tr tm->when retrnsmt  uid timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 77 1 0 100
   1: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 78 1 0 100
   2: 00000000:1F92 00000000:0000 01 00000000:00000000 00:00000000 00000000  0 0 79 1 0 100
   3: 00000000000000000000000000000000:1F93 0:0 0A 00000000:00000000 00:00000000 0  0 0 80 1 0
";
        let found: Vec<_> = wildcard_sockets(table).collect();
        let expected = [("socket:[77]", 8080), ("socket:[80]", 8083)];
        let expected = expected.map(|(link, port)| (link.to_owned(), port));
        assert_eq!(found, expected);
    }

    #[test]
    fn loopback_addresses_are_not_reachable() {
        let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let mapped = |octets| {
            let zero = word([0; 4]);
            format!("{zero}{zero}{}{}", word([0, 0, 255, 255]), word(octets))
        };
        let last = format!("{}{}", word([0; 4]).repeat(3), word([0, 0, 0, 1]));
        let cases = [
            (word([127, 0, 0, 53]), true),
            (word([10, 128, 0, 7]), false),
            (word([0; 4]), false),
            (word([0; 4]).repeat(4), false),
            (mapped([127, 0, 0, 1]), true),
            (mapped([10, 128, 0, 7]), false),
            (last, true),
        ];
        for (address, expected) in cases {
            assert_eq!(is_loopback(&address), expected, "{address}");
        }
    }

    #[test]
    fn listeners_of_a_namespace_are_found() {
        let own_pid = i32::try_from(std::process::id()).unwrap();
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let ports = listening_ports(own_pid).unwrap();
        assert!(ports.contains(&listener.local_addr().unwrap().port()));
    }
}
