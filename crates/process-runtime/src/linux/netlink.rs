//! Route netlink requests: links, addresses and routes of a network namespace.
//!
//! Guarantees: a request returns after the kernel has acknowledged it.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;

const IFF_UP: u32 = 0x1;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const NLA_F_NESTED: u16 = 0x8000;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;

const RT_TABLE_MAIN: u8 = 254;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_HOST: u8 = 254;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

/// The index of the loopback link in every network namespace.
pub(super) const LOOPBACK: u32 = 1;

/// A netlink socket of the network namespace in which it was opened.
pub(super) struct Netlink {
    socket: OwnedFd,
}

/// The body of a request: a fixed header and attributes.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(value.len() + 4).expect("attributes are names and addresses");
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn family(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    family.as_raw() as u8
}

fn full_prefix(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// The fixed header `ifinfomsg`.
fn link_header(index: u32, flags: u32) -> Body {
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    Body(body)
}

/// The destination, kind and table of a route.
struct Route {
    range: (IpAddr, u8),
    link: u32,
    table: u8,
    scope: u8,
    kind: u8,
    source: Option<IpAddr>,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        Ok(Self { socket })
    }

    /// Sets a link up.
    pub(super) fn set_up(&self, link: u32) -> io::Result<()> {
        self.request(RTM_NEWLINK, 0, &link_header(link, IFF_UP))
    }

    /// Adds an address to a link.
    pub(super) fn add_address(&self, link: u32, ip: IpAddr) -> io::Result<()> {
        let mut body = Body(vec![family(ip), full_prefix(ip), 0, 0]);
        body.0.extend(link.to_ne_bytes());
        body.attribute(IFA_LOCAL, &octets(ip))
            .attribute(IFA_ADDRESS, &octets(ip));
        self.request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Makes every address of a range local: sockets can be bound to it and are reached.
    pub(super) fn add_local_range(&self, range: (IpAddr, u8)) -> io::Result<()> {
        self.add_route(&Route {
            range,
            link: LOOPBACK,
            table: RT_TABLE_LOCAL,
            scope: RT_SCOPE_HOST,
            kind: RTN_LOCAL,
            source: None,
        })
    }

    /// Routes an address over a link even if it is in a local range.
    pub(super) fn add_host_route(&self, ip: IpAddr, link: u32) -> io::Result<()> {
        self.add_route(&Route {
            range: (ip, full_prefix(ip)),
            link,
            table: RT_TABLE_LOCAL,
            scope: RT_SCOPE_LINK,
            kind: RTN_UNICAST,
            source: None,
        })
    }

    /// Routes everything over a link, with that source address.
    pub(super) fn add_default_route(&self, link: u32, source: IpAddr) -> io::Result<()> {
        let any = match source {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        self.add_route(&Route {
            range: (any, 0),
            link,
            table: RT_TABLE_MAIN,
            scope: RT_SCOPE_LINK,
            kind: RTN_UNICAST,
            source: Some(source),
        })
    }

    /// Creates a pair of links: `index` here, and the same index in the other namespace.
    pub(super) fn add_veth(
        &self,
        name: &str,
        index: u32,
        peer_namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let mut name = name.as_bytes().to_vec();
        name.push(0);
        let mut peer = link_header(index, 0);
        peer.attribute(IFLA_IFNAME, &name)
            .attribute(IFLA_NET_NS_FD, &peer_namespace.as_raw_fd().to_ne_bytes());
        let mut data = Body::default();
        data.attribute(VETH_INFO_PEER | NLA_F_NESTED, &peer.0);
        let mut info = Body::default();
        info.attribute(IFLA_INFO_KIND, b"veth\0")
            .attribute(IFLA_INFO_DATA | NLA_F_NESTED, &data.0);
        let mut body = link_header(index, 0);
        body.attribute(IFLA_IFNAME, &name)
            .attribute(IFLA_LINKINFO | NLA_F_NESTED, &info.0);
        self.request(RTM_NEWLINK, NLM_F_CREATE, &body)
    }

    fn add_route(&self, route: &Route) -> io::Result<()> {
        let (ip, prefix) = route.range;
        let mut body = Body(vec![
            family(ip),
            prefix,
            0,
            0,
            route.table,
            RTPROT_STATIC,
            route.scope,
            route.kind,
        ]);
        body.0.extend([0; 4]);
        if prefix > 0 {
            body.attribute(RTA_DST, &octets(ip));
        }
        body.attribute(RTA_OIF, &route.link.to_ne_bytes());
        if let Some(source) = route.source {
            body.attribute(RTA_PREFSRC, &octets(source));
        }
        self.request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    fn request(&self, kind: u16, flags: u16, body: &Body) -> io::Result<()> {
        let len = u32::try_from(body.0.len() + 16).expect("requests are small");
        let mut message = Vec::with_capacity(body.0.len() + 16);
        message.extend(len.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(&body.0);
        rustix::net::send(&self.socket, &message, SendFlags::empty())?;
        let mut reply = [0; 4096];
        let (reply_len, _) =
            rustix::net::recv(self.socket.as_fd(), &mut reply, RecvFlags::empty())?;
        let error = reply
            .get(..reply_len)
            .filter(|reply| reply.get(4..6) == Some(&NLMSG_ERROR.to_ne_bytes()))
            .and_then(|reply| reply.get(16..20))
            .and_then(|code| code.try_into().ok())
            .map(i32::from_ne_bytes);
        match error {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "unexpected netlink reply",
            )),
        }
    }
}
