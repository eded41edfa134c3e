//! Sockets on which processes listen, by `/proc`.
//!
//! In: a marker of processes. Out: the TCP ports on which they listen for all addresses.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;

use super::procfs::with_environment;

/// The state of a listening socket in proc_net_tcp(5).
const LISTEN: &str = "0A";

/// The TCP ports on which processes with that variable in their environment listen for all
/// addresses.
pub(crate) fn wildcard_listeners(name: &str, value: &str) -> io::Result<BTreeSet<u16>> {
    let mut ports = HashMap::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        match fs::read_to_string(table) {
            // There may be no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            text => ports.extend(wildcard_sockets(&text?)),
        }
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

/// The ports of sockets that listen for all addresses, by the target of a link to the socket.
fn wildcard_sockets(table: &str) -> impl Iterator<Item = (String, u16)> {
    table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, port) = fields.get(1)?.split_once(':')?;
        let is_wildcard = address.bytes().all(|digit| digit == b'0');
        if !is_wildcard || *fields.get(3)? != LISTEN {
            return None;
        }
        let port = u16::from_str_radix(port, 16).ok()?;
        Some((format!("socket:[{}]", fields.get(9)?), port))
    })
}

#[cfg(test)]
mod tests {
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
}
