//! Ports of a request over WebSocket channels: two channels each, for data and errors.
//!
//! Each channel begins with a message of two bytes, the port in little-endian order.

use http::StatusCode;
use percent_encoding::percent_decode_str;

use super::{ErrorSink, ForwardedConnection, port_message};
use crate::{
    ByteStream,
    upgrade::Refusal,
    websocket::{ChannelOptions, Codec},
};

/// The most ports of a request: two channels each, and 255 is not a channel.
const PORTS_MAX: usize = 127;

/// The ports in a query, in the form of kubelet (`port`) or of the API server (`ports`).
///
/// Mirrors `NewV4Options`.
pub(super) fn from_query(query: &str) -> Result<Vec<u16>, Refusal> {
    let bad_request = |message: String| Refusal::new(StatusCode::BAD_REQUEST, message);
    let pairs = query
        .split('&')
        .map(|p| p.split_once('=').unwrap_or((p, "")));
    let values = pairs.filter(|(name, _)| matches!(*name, "port" | "ports"));
    let mut ports = Vec::new();
    for (_, value) in values {
        let value = percent_decode_str(value).decode_utf8_lossy();
        if value.is_empty() {
            let message = r#"query parameter "port" cannot be empty"#;
            return Err(bad_request(message.to_owned()));
        }
        for text in value.split(',') {
            let port = parse(text)
                .map_err(|error| format!("unable to parse {value:?} as a port: {error}"));
            let port = port.map_err(bad_request)?;
            if port == 0 {
                return Err(bad_request(format!("port {value:?} must be > 0")));
            }
            ports.push(port);
        }
    }
    if ports.is_empty() {
        let message = r#"query parameter "port" is required"#;
        return Err(bad_request(message.to_owned()));
    }
    if ports.len() > PORTS_MAX {
        let message = format!("at most {PORTS_MAX} ports can be forwarded over WebSocket channels");
        return Err(bad_request(message));
    }
    Ok(ports)
}

/// A port, or the error of Go's `strconv.ParseUint`.
pub(super) fn parse(text: &str) -> Result<u16, String> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let reason = if is_number {
        "value out of range"
    } else {
        "invalid syntax"
    };
    let port = if is_number { text.parse().ok() } else { None };
    port.ok_or_else(|| format!("strconv.ParseUint: parsing {text:?}: {reason}"))
}

/// The channels of a request with these ports.
pub(super) fn channel_options(codec: Codec, ports: &[u16]) -> ChannelOptions {
    let channels = ports.iter().flat_map(|port| [*port, *port]);
    let greeting: Vec<_> = (0..).zip(channels.map(port_message)).collect();
    ChannelOptions {
        codec,
        has_close_signal: false,
        count: u8::try_from(greeting.len()).expect("the number of ports is limited"),
        greeting,
    }
}

/// The channels of a connection as forwarded connections.
pub(super) fn connections(
    ports: &[u16],
    streams: Vec<ByteStream>,
) -> std::vec::IntoIter<ForwardedConnection> {
    let mut streams = streams.into_iter();
    let mut connections = Vec::new();
    for port in ports {
        if let (Some(data), Some(errors)) = (streams.next(), streams.next()) {
            connections.push(ForwardedConnection {
                port: *port,
                data,
                errors: ErrorSink::new(errors),
            });
        }
    }
    connections.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, expected: Result<&[u16], &str>) {
        let ports = from_query(query).map_err(|refusal| refusal.message);
        let expected = expected.map(<[u16]>::to_vec).map_err(str::to_owned);
        assert_eq!(ports, expected, "{query}");
    }

    #[test]
    fn ports_are_read_in_both_forms() {
        check("port=8080", Ok(&[8080]));
        check("ports=8080,9090&ports=1", Ok(&[8080, 9090, 1]));
        check("ports=8080%2C9090", Ok(&[8080, 9090]));
    }

    #[test]
    fn invalid_ports_are_refused_as_by_kubelet() {
        check("", Err(r#"query parameter "port" is required"#));
        check("port=", Err(r#"query parameter "port" cannot be empty"#));
        check("port=0", Err(r#"port "0" must be > 0"#));
        check(
            "port=70000",
            Err(
                r#"unable to parse "70000" as a port: strconv.ParseUint: parsing "70000": value out of range"#,
            ),
        );
        check(
            "port=1,x",
            Err(
                r#"unable to parse "1,x" as a port: strconv.ParseUint: parsing "x": invalid syntax"#,
            ),
        );
    }
}
