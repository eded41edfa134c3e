//! A connection to a D-Bus message bus that calls methods, one at a time.
//!
//! Mirrors the chapters "Authentication Protocol" and "Message Bus" of the D-Bus specification.

use std::io;

use thiserror::Error;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::{
    address::Address,
    message::{Call, HEAD_LEN, Head, Message},
};

/// The longest line of the authentication protocol.
const LINE_LEN_MAX: usize = 1024;

/// Why a connection or a call failed.
#[derive(Debug, Error)]
pub(super) enum BusError {
    /// The address cannot be parsed.
    #[error("{0}")]
    Address(String),
    /// The socket failed, or the peer closed it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer does not follow the protocol, or rejects the authentication.
    #[error("{0}")]
    Protocol(String),
    /// The call was answered with an error.
    #[error("{name}: {text}")]
    Method { name: String, text: String },
}

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    /// The serial of the last call; 0 is not a valid serial.
    serial: u32,
}

impl Connection {
    /// Connects to the bus at an address.
    pub(super) async fn open(address: &Address) -> Result<Self, BusError> {
        let stream = UnixStream::connect(address.path()).await?;
        Self::new(stream).await
    }

    /// Authenticates, and registers with the bus, which is the first call that it accepts.
    pub(super) async fn new(mut stream: UnixStream) -> Result<Self, BusError> {
        authenticate(&mut stream).await?;
        let mut connection = Self { stream, serial: 0 };
        connection
            .call(&Call {
                destination: "org.freedesktop.DBus",
                path: "/org/freedesktop/DBus",
                interface: "org.freedesktop.DBus",
                member: "Hello",
                argument: None,
            })
            .await?;
        Ok(connection)
    }

    /// Calls a method and waits for its reply.
    pub(super) async fn call(&mut self, call: &Call<'_>) -> Result<(), BusError> {
        self.serial += 1;
        let sent = self.serial;
        self.stream.write_all(&call.encode(sent)).await?;
        loop {
            match self.read().await? {
                Message::Return { serial } if serial == sent => return Ok(()),
                Message::Error { serial, name, text } if serial == sent => {
                    return Err(BusError::Method { name, text });
                }
                // Signals, such as NameAcquired.
                _ => {}
            }
        }
    }

    async fn read(&mut self) -> Result<Message, BusError> {
        let mut head = [0; HEAD_LEN];
        self.stream.read_exact(&mut head).await?;
        let head = Head::decode(head)?;
        // The length is limited by `Head::decode`, so a peer cannot make this allocate without
        // bound.
        let mut rest = vec![0; head.rest_len()];
        self.stream.read_exact(&mut rest).await?;
        Message::decode(head, &rest)
    }
}

/// SASL mechanism EXTERNAL with an empty authorization identity, as sd-bus does it: the bus takes
/// the user from the credentials of the socket, which is right in user namespaces too.
async fn authenticate(stream: &mut UnixStream) -> Result<(), BusError> {
    stream.write_all(b"\0AUTH EXTERNAL\r\n").await?;
    expect(stream, "DATA").await?;
    stream.write_all(b"DATA\r\n").await?;
    expect(stream, "OK").await?;
    stream.write_all(b"BEGIN\r\n").await?;
    Ok(())
}

/// Reads a line that begins with a certain command.
async fn expect(stream: &mut UnixStream, command: &str) -> Result<(), BusError> {
    let line = read_line(stream).await?;
    if line.split(' ').next() == Some(command) {
        Ok(())
    } else {
        let problem = format!("authentication: expected {command}, got {line:?}");
        Err(BusError::Protocol(problem))
    }
}

/// Reads byte by byte, since what follows the line is for another reader.
async fn read_line(stream: &mut UnixStream) -> Result<String, BusError> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        if line.len() == LINE_LEN_MAX {
            return Err(BusError::Protocol("authentication: long line".into()));
        }
        line.push(stream.read_u8().await?);
    }
    line.truncate(line.len() - 2);
    Ok(String::from_utf8_lossy(&line).into_owned())
}
