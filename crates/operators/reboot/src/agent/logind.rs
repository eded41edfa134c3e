//! Logind: reboots through systemd's login manager, over D-Bus.
//!
//! It needs the socket of the system bus and, unlike `reboot(2)`, no privilege but what the bus and
//! polkit grant. Guarantees: a connection that fails or a call that is answered with an error is a
//! refusal; a call that was sent and not answered is unclear, since the login manager may have
//! received it.
//!
//! The D-Bus client is written here, since one call with one boolean needs very little of the
//! protocol: SASL EXTERNAL, `Hello`, `Reboot` and the decoding of a reply. The crates for it cost
//! more than they give: zbus brings 57 packages and about 110 s of CPU time to a release build,
//! dbus needs the C library, and rustbus blocks its thread and needs nix 0.26 and thiserror 1.

mod address; // sockets of buses
mod bus; // authentication, calls
mod message; // bytes of messages

use futures_util::future::BoxFuture;

use self::{
    address::Address,
    bus::{BusError, Connection},
    message::Call,
};
use super::machine::{Machine, MachineError, kernel_boot_id};

/// The address of the system bus.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket";

/// The machine of this process, rebooted by systemd's login manager.
#[derive(Clone, Debug)]
pub struct Logind {
    address: String,
}

impl Logind {
    /// Through the bus at this address, such as `unix:path=/run/dbus/system_bus_socket`.
    pub fn at(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
        }
    }

    async fn connect(&self) -> Result<Connection, BusError> {
        Connection::open(&Address::parse(&self.address)?).await
    }
}

impl Default for Logind {
    /// Through the system bus.
    fn default() -> Self {
        Self::at(SYSTEM_BUS)
    }
}

impl Machine for Logind {
    fn boot_id(&self) -> Result<Option<String>, MachineError> {
        kernel_boot_id()
    }

    fn reboot(&self) -> BoxFuture<'_, Result<(), MachineError>> {
        Box::pin(async move {
            let mut bus = self.connect().await.map_err(|error| {
                MachineError::Refused(format!("cannot reach {}: {error}", self.address))
            })?;
            reboot(&mut bus).await
        })
    }
}

/// Calls `Reboot`. Not interactive: polkit must not prompt for a password.
async fn reboot(bus: &mut Connection) -> Result<(), MachineError> {
    let call = Call {
        destination: "org.freedesktop.login1",
        path: "/org/freedesktop/login1",
        interface: "org.freedesktop.login1.Manager",
        member: "Reboot",
        argument: Some(false),
    };
    match bus.call(&call).await {
        Ok(()) => Ok(()),
        // The bus sends NoReply when the login manager disconnects without an answer.
        Err(BusError::Method { name, text }) if name != "org.freedesktop.DBus.Error.NoReply" => {
            Err(MachineError::Refused(format!("{name}: {text}")))
        }
        Err(error) => Err(MachineError::Unclear(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::UnixStream,
    };

    use super::*;

    /// A call that takes no argument has 112 bytes of fields and no body.
    const HELLO_LEN: usize = 128;
    const REBOOT_LEN: usize = 148;

    /// A reply with a serial, a type and header fields after the reply serial.
    fn reply(kind: u8, to: u8, fields: &[u8], body: &[u8]) -> Vec<u8> {
        let serial = [5, 1, b'u', 0, to, 0, 0, 0];
        let len = |part: &[u8]| u8::try_from(part.len()).expect("it is short");
        let mut message = vec![b'l', kind, 0, 1, len(body), 0, 0, 0, 9, 0, 0, 0];
        message.extend([8 + len(fields), 0, 0, 0]);
        message.extend(serial);
        message.extend(fields);
        message.resize(message.len().next_multiple_of(8), 0);
        message.extend(body);
        message
    }

    fn success() -> Vec<u8> {
        reply(2, 2, &[], &[])
    }

    /// An error whose name is `org.freedesktop.DBus.Error.` and 7 letters more.
    fn error(name: &[u8; 7], text: &str) -> Vec<u8> {
        let mut fields = vec![4, 1, b's', 0, 34, 0, 0, 0];
        fields.extend(b"org.freedesktop.DBus.Error.");
        fields.extend(name);
        fields.extend([0; 6]);
        fields.extend([8, 1, b'g', 0, 1, b's', 0]);
        let len = u8::try_from(text.len()).expect("it is short");
        let mut body = vec![len, 0, 0, 0];
        body.extend(text.as_bytes());
        body.push(0);
        reply(3, 2, &fields, &body)
    }

    async fn expect(stream: &mut UnixStream, line: &[u8]) {
        let mut read = vec![0; line.len()];
        stream.read_exact(&mut read).await.expect("a line");
        assert_eq!(read, line);
    }

    /// Accepts a connection as the reference implementation does.
    async fn accept(stream: &mut UnixStream) {
        expect(stream, b"\0AUTH EXTERNAL\r\n").await;
        stream.write_all(b"DATA\r\n").await.expect("it is open");
        expect(stream, b"DATA\r\n").await;
        let ok = b"OK 1234deadbeef1234deadbeef1234dead\r\n";
        stream.write_all(ok).await.expect("it is open");
        expect(stream, b"BEGIN\r\n").await;
        let mut hello = [0; HELLO_LEN];
        stream.read_exact(&mut hello).await.expect("a call");
        // A signal before the reply, as a bus may order them.
        let signal = reply(4, 0, &[], &[]);
        stream.write_all(&signal).await.expect("it is open");
        let returned = reply(2, 1, &[], &[]);
        stream.write_all(&returned).await.expect("it is open");
    }

    /// What a client makes of a bus that answers the call with these bytes and disconnects, and
    /// the argument of the call.
    async fn reboot_with(answer: Vec<u8>) -> (Result<(), MachineError>, [u8; 4]) {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let client = async {
            let mut bus = Connection::new(ours).await.expect("it is accepted");
            reboot(&mut bus).await
        };
        let bus = async move {
            accept(&mut theirs).await;
            let mut call = [0; REBOOT_LEN];
            theirs.read_exact(&mut call).await.expect("a call");
            theirs.write_all(&answer).await.expect("it is open");
            *call.last_chunk().expect("a call has a body")
        };
        tokio::join!(client, bus)
    }

    #[tokio::test]
    async fn reboot_is_called_without_interaction() {
        let (result, interactive) = reboot_with(success()).await;
        assert_eq!(result, Ok(()));
        assert_eq!(u32::from_le_bytes(interactive), 0);
    }

    #[tokio::test]
    async fn error_of_the_login_manager_is_a_refusal() {
        let (result, _) = reboot_with(error(b"Refused", "Permission denied")).await;
        let why = "org.freedesktop.DBus.Error.Refused: Permission denied";
        assert_eq!(result, Err(MachineError::Refused(why.into())));
    }

    #[tokio::test]
    async fn login_manager_that_does_not_answer_is_unclear() {
        let (result, _) = reboot_with(error(b"NoReply", "")).await;
        assert!(
            matches!(result, Err(MachineError::Unclear(_))),
            "{result:?}"
        );
    }

    #[tokio::test]
    async fn connection_closed_after_the_call_is_unclear() {
        let mut half = success();
        half.truncate(20);
        for answer in [Vec::new(), half] {
            let (result, _) = reboot_with(answer).await;
            assert!(
                matches!(result, Err(MachineError::Unclear(_))),
                "{result:?}"
            );
        }
    }

    #[tokio::test]
    async fn connection_closed_before_the_call_is_unclear() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let (bus, ()) = tokio::join!(Connection::new(ours), accept(&mut theirs));
        drop(theirs);
        let result = reboot(&mut bus.expect("it is accepted")).await;
        assert!(
            matches!(result, Err(MachineError::Unclear(_))),
            "{result:?}"
        );
    }

    #[tokio::test]
    async fn rejected_authentication_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let reject = async {
            expect(&mut theirs, b"\0AUTH EXTERNAL\r\n").await;
            let rejected = b"REJECTED ANONYMOUS\r\n";
            theirs.write_all(rejected).await.expect("it is open");
        };
        let (bus, ()) = tokio::join!(Connection::new(ours), reject);
        let error = bus.expect_err("it is rejected").to_string();
        assert_eq!(
            error,
            r#"authentication: expected DATA, got "REJECTED ANONYMOUS""#
        );
    }

    #[tokio::test]
    async fn unreachable_bus_is_a_refusal() {
        for address in ["unix:path=/nowhere/bus", "tcp:host=localhost,port=1"] {
            let refused = Logind::at(address).reboot().await;
            let Err(MachineError::Refused(why)) = refused else {
                panic!("{address}: {refused:?}")
            };
            assert!(why.starts_with(&format!("cannot reach {address}: ")));
        }
    }
}
