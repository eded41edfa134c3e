//! IP addresses and CIDRs.
//! In: strings. Out: addresses and CIDRs as Go parses them, and their properties.
//! Guarantees: no zones, and no IPv4-mapped IPv6 addresses.

use std::{
    any::Any,
    net::{IpAddr, Ipv6Addr},
};

use crate::{
    cost_model::CostModel,
    eval::{Failure, Meter},
    function::{Functions, Run},
    types::Type,
    value::{Opaque, Value},
};

use super::text;

pub(super) fn ip_type() -> Type {
    Type::opaque("net.IP")
}

pub(super) fn cidr_type() -> Type {
    Type::opaque("net.CIDR")
}

pub(super) fn declare(f: &mut Functions) {
    use Type::{Bool, Int, String};
    f.global(
        "ip",
        "string_to_ip",
        &[String],
        ip_type(),
        CostModel::Pass,
        |_, args| parse_ip(text(args, 0)?).map(|ip| Value::of(Ip(ip))),
    );
    f.global(
        "isIP",
        "is_ip",
        &[String],
        Bool,
        CostModel::Pass,
        |_, args| Ok(Value::Bool(parse_ip(text(args, 0)?).is_ok())),
    );
    f.global(
        "ip.isCanonical",
        "ip_is_canonical",
        &[String],
        Bool,
        CostModel::TwoPasses,
        |_, args| {
            let text = text(args, 0)?;
            Ok(Value::Bool(parse_ip(text)?.to_string() == **text))
        },
    );
    f.member(
        "family",
        "ip_family",
        &[ip_type()],
        Int,
        CostModel::Unit,
        |_, args| Ok(Value::Int(if ip(args)?.is_ipv4() { 4 } else { 6 })),
    );
    let predicates: [(&'static str, &'static str, Run); 5] = [
        ("isUnspecified", "ip_is_unspecified", |_, args| {
            Ok(Value::Bool(ip(args)?.is_unspecified()))
        }),
        ("isLoopback", "ip_is_loopback", |_, args| {
            Ok(Value::Bool(ip(args)?.is_loopback()))
        }),
        (
            "isLinkLocalMulticast",
            "ip_is_link_local_multicast",
            |_, args| Ok(Value::Bool(is_link_local_multicast(ip(args)?))),
        ),
        (
            "isLinkLocalUnicast",
            "ip_is_link_local_unicast",
            |_, args| Ok(Value::Bool(is_link_local_unicast(ip(args)?))),
        ),
        ("isGlobalUnicast", "ip_is_global_unicast", |_, args| {
            Ok(Value::Bool(is_global_unicast(ip(args)?)))
        }),
    ];
    for (name, id, run) in predicates {
        f.member(name, id, &[ip_type()], Bool, CostModel::Unit, run);
    }
    f.global(
        "cidr",
        "string_to_cidr",
        &[String],
        cidr_type(),
        CostModel::Pass,
        |_, args| parse_cidr(text(args, 0)?).map(Value::of),
    );
    f.global(
        "isCIDR",
        "is_cidr",
        &[String],
        Bool,
        CostModel::Pass,
        |_, args| Ok(Value::Bool(parse_cidr(text(args, 0)?).is_ok())),
    );
    let holds_ip = |text| CostModel::HoldsAddress { text };
    f.member(
        "containsIP",
        "cidr_contains_ip_string",
        &[cidr_type(), String],
        Bool,
        holds_ip(true),
        |_, args| {
            // Kubernetes does not report the errors of the address.
            let ip = parse_ip(text(args, 1)?).map_err(|_| Failure::no_such_overload())?;
            Ok(Value::Bool(cidr(args, 0)?.contains(ip)))
        },
    );
    f.member(
        "containsIP",
        "cidr_contains_ip_ip",
        &[cidr_type(), ip_type()],
        Bool,
        holds_ip(false),
        |_, args| Ok(Value::Bool(cidr(args, 0)?.contains(ip(&args[1..])?))),
    );
    let holds_net = |text| CostModel::HoldsNetwork { text };
    f.member(
        "containsCIDR",
        "cidr_contains_cidr_string",
        &[cidr_type(), String],
        Bool,
        holds_net(true),
        |_, args| {
            Ok(Value::Bool(
                cidr(args, 0)?.holds(&parse_cidr(text(args, 1)?)?),
            ))
        },
    );
    f.member(
        "containsCIDR",
        "cidr_contains_cidr",
        &[cidr_type(), cidr_type()],
        Bool,
        holds_net(false),
        |_, args| Ok(Value::Bool(cidr(args, 0)?.holds(cidr(args, 1)?))),
    );
    f.member(
        "ip",
        "cidr_ip",
        &[cidr_type()],
        ip_type(),
        CostModel::Unit,
        |_, args| Ok(Value::of(Ip(cidr(args, 0)?.address))),
    );
    f.member(
        "prefixLength",
        "cidr_prefix_length",
        &[cidr_type()],
        Int,
        CostModel::Unit,
        |_, args| Ok(Value::Int(cidr(args, 0)?.bits.into())),
    );
    f.member(
        "masked",
        "cidr_masked",
        &[cidr_type()],
        cidr_type(),
        CostModel::Unit,
        masked,
    );
}

/// The text of an address or network.
pub(super) fn written(value: &Value<'_>) -> Option<String> {
    value
        .downcast::<Ip>()
        .map(|ip| ip.0.to_string())
        .or_else(|| {
            value
                .downcast::<Cidr>()
                .map(|c| format!("{}/{}", c.address, c.bits))
        })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ip(IpAddr);

/// A network: an address, and how many of its bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl Opaque for Ip {
    fn type_of(&self) -> Type {
        ip_type()
    }

    fn equals(&self, other: &dyn Opaque) -> Option<bool> {
        other
            .as_any()
            .downcast_ref::<Self>()
            .map(|other| self == other)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn size(&self) -> u64 {
        if self.0.is_ipv4() { 4 } else { 16 }
    }
}

impl Opaque for Cidr {
    fn type_of(&self) -> Type {
        cidr_type()
    }

    fn equals(&self, other: &dyn Opaque) -> Option<bool> {
        other
            .as_any()
            .downcast_ref::<Self>()
            .map(|other| self == other)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn size(&self) -> u64 {
        u64::from(self.bits).div_ceil(8)
    }
}

impl Cidr {
    fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.address.is_ipv4()
            && mask(ip, self.bits) == mask(self.address, self.bits)
    }

    fn holds(&self, other: &Self) -> bool {
        self.bits <= other.bits && self.contains(other.address)
    }
}

/// An address with only the first bits kept.
fn mask(ip: IpAddr, bits: u8) -> IpAddr {
    let keep = |width: u32| u128::MAX.checked_shl(width - u32::from(bits)).unwrap_or(0);
    match ip {
        IpAddr::V4(ip) => {
            IpAddr::V4((ip.to_bits() & (keep(32) & u128::from(u32::MAX)) as u32).into())
        }
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & keep(128)).into()),
    }
}

fn masked<'a>(_: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let Cidr { address, bits } = *cidr(args, 0)?;
    Ok(Value::of(Cidr {
        address: mask(address, bits),
        bits,
    }))
}

fn ip(args: &[Value<'_>]) -> Result<IpAddr, Failure> {
    args.first()
        .and_then(Value::downcast::<Ip>)
        .map(|ip| ip.0)
        .ok_or_else(Failure::no_such_overload)
}

fn cidr<'v>(args: &'v [Value<'_>], at: usize) -> Result<&'v Cidr, Failure> {
    args.get(at)
        .and_then(Value::downcast)
        .ok_or_else(Failure::no_such_overload)
}

fn is_link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => matches!(ip.octets(), [224, 0, 0, _]),
        IpAddr::V6(ip) => ip.octets()[0] == 0xff && ip.octets()[1] & 0x0f == 2,
    }
}

fn is_link_local_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_global_unicast(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(broadcast
        || ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || is_link_local_unicast(ip))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string can be written")
}

fn parse_ip(text: &str) -> Result<IpAddr, Failure> {
    let q = quoted(text);
    if let Some((address, _)) = text.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
    {
        return Err(Failure::new(format!(
            "IP address {q} with zone value is not allowed"
        )));
    }
    let ip: IpAddr = text.parse().map_err(|_| {
        Failure::new(format!(
            "IP Address {q} parse error during conversion from string: {}",
            go_problem(text)
        ))
    })?;
    if matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
        return Err(Failure::new(format!(
            "IPv4-mapped IPv6 address {q} is not allowed"
        )));
    }
    Ok(ip)
}

/// Go's message for a string that is no address.
fn go_problem(text: &str) -> String {
    let problem = |message: &str| format!("ParseAddr({}): {message}", quoted(text));
    match text.find(['.', ':', '%']).map(|at| text.as_bytes()[at]) {
        Some(b'.') => problem(&v4_problem(text)),
        Some(b':') => problem("unable to parse IP"),
        Some(_) => problem("missing IPv6 address"),
        None => problem("unable to parse IP"),
    }
}

fn v4_problem(text: &str) -> String {
    let mut fields = 0;
    let mut digits = 0;
    let mut value = 0u32;
    for (at, c) in text.char_indices() {
        match c {
            '0'..='9' => {
                if digits == 1 && value == 0 {
                    return "IPv4 field has octet with leading zero".into();
                }
                value = value * 10 + u32::from(c) - u32::from('0');
                digits += 1;
                if value > 255 {
                    return "IPv4 field has value >255".into();
                }
            }
            '.' => {
                if at == 0 || at + 1 == text.len() || digits == 0 {
                    return format!(
                        "IPv4 field must have at least one digit (at {})",
                        quoted(&text[at..])
                    );
                }
                if fields == 3 {
                    return "IPv4 address too long".into();
                }
                (fields, digits, value) = (fields + 1, 0, 0);
            }
            _ => return format!("unexpected character (at {})", quoted(&text[at..])),
        }
    }
    "IPv4 address too short".into()
}

fn parse_cidr(text: &str) -> Result<Cidr, Failure> {
    const HEAD: &str = "network address parse error during conversion from string";
    let parse_error = |why: &str| {
        Failure::new(format!(
            "{HEAD}: {HEAD}: netip.ParsePrefix({}): {why}",
            quoted(text)
        ))
    };
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| parse_error("no '/'"))?;
    let address: IpAddr = address
        .parse()
        .map_err(|_| parse_error(&go_problem(address)))?;
    let digits = !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && (bits == "0" || !bits.starts_with('0'));
    let length = bits
        .parse::<u8>()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| parse_error(&format!("bad bits after slash: {}", quoted(bits))))?;
    if length > if address.is_ipv4() { 32 } else { 128 } {
        return Err(parse_error("prefix length out of range"));
    }
    if matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
        return Err(Failure::new(format!(
            "{HEAD}: IPv4-mapped IPv6 address {} is not allowed",
            quoted(text)
        )));
    }
    Ok(Cidr {
        address,
        bits: length,
    })
}
