//! D-Bus server addresses of Unix sockets: `unix:path=/run/dbus/system_bus_socket`.
//!
//! Mirrors the chapter "Server Addresses" of the D-Bus specification: a transport, a colon, then
//! `key=value` pairs separated by commas, with `%` escapes in values.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use super::bus::BusError;

/// The socket of a bus. An abstract socket, which only Linux has, is a path that begins with NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address(PathBuf);

impl Address {
    /// Parses an address with the transport `unix` and the key `path` or `abstract`. Other keys,
    /// such as `guid`, are ignored.
    pub(super) fn parse(text: &str) -> Result<Self, BusError> {
        let failed = |problem: &str| BusError::Address(format!("{problem} in {text:?}"));
        let pairs = text
            .strip_prefix("unix:")
            .ok_or_else(|| failed("no unix transport"))?;
        for pair in pairs.split(',') {
            let (key, value) = pair.split_once('=').ok_or_else(|| failed("no value"))?;
            let prefix: &[u8] = match key {
                "path" => b"",
                "abstract" => b"\0",
                _ => continue,
            };
            let value = unescape(value).ok_or_else(|| failed("an invalid % escape"))?;
            let path = OsString::from_vec([prefix, &value].concat());
            return Ok(Self(path.into()));
        }
        Err(failed("no socket"))
    }

    /// What tokio connects to.
    pub(super) fn path(&self) -> &Path {
        debug_assert!(!self.0.as_os_str().as_bytes().is_empty());
        &self.0
    }
}

/// Replaces `%` and two hexadecimal digits with the byte that they encode.
fn unescape(value: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
        rest = tail;
    }
    (!bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_unix_sockets_are_parsed() {
        let path = |text: &str| {
            let address = Address::parse(text).expect("it is an address");
            address.path().as_os_str().as_bytes().to_vec()
        };
        assert_eq!(path("unix:path=/run/bus"), b"/run/bus");
        assert_eq!(path("unix:guid=00ff,path=/run/bus"), b"/run/bus");
        assert_eq!(path("unix:path=/run/a%2cb%20c"), b"/run/a,b c");
        assert_eq!(path("unix:abstract=/tmp/bus"), b"\0/tmp/bus");
    }

    #[test]
    fn other_addresses_are_errors() {
        let addresses = [
            "",
            "/run/bus",
            "tcp:host=localhost,port=1",
            "unix:",
            "unix:path",
            "unix:path=",
            "unix:dir=/tmp",
            "unix:path=/a%2",
            "unix:path=/a%zz",
        ];
        for address in addresses {
            assert!(Address::parse(address).is_err(), "{address}");
        }
    }
}
