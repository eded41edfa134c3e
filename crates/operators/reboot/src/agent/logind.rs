//! Logind: reboots over D-Bus, which needs the bus's socket and no privilege.
//!
//! Holds: what the bus refuses is refused; a call that was sent and not answered may have been heard.

use futures_util::future::BoxFuture;
use zbus::{Connection, connection::Builder};

use super::machine::{Machine, MachineError, kernel_boot_id};

/// Where the system's bus listens unless somebody says otherwise.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket";

/// The machine, through systemd's login manager.
#[derive(Clone, Debug)]
pub struct Logind {
    address: String,
}

impl Logind {
    /// Through the bus at this address.
    pub fn at(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
        }
    }

    async fn connect(&self) -> zbus::Result<Connection> {
        Builder::address(self.address.as_str())?.build().await
    }
}

impl Default for Logind {
    /// Through the system's bus.
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
            let bus = self.connect().await.map_err(|error| {
                MachineError::Refused(format!("cannot reach {}: {error}", self.address))
            })?;
            order(&bus).await
        })
    }
}

/// Orders a reboot; nobody is there to be asked for a password.
async fn order(bus: &Connection) -> Result<(), MachineError> {
    let called = bus
        .call_method(
            Some("org.freedesktop.login1"),
            "/org/freedesktop/login1",
            Some("org.freedesktop.login1.Manager"),
            "Reboot",
            &(false,),
        )
        .await;
    match called {
        Ok(_) => Ok(()),
        Err(zbus::Error::MethodError(name, text, _))
            if name.as_str() != "org.freedesktop.DBus.Error.NoReply" =>
        {
            Err(MachineError::Refused(format!(
                "{name}: {}",
                text.unwrap_or_default()
            )))
        }
        Err(error) => Err(MachineError::Unclear(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::net::UnixStream;
    use zbus::{fdo, interface};

    use super::*;

    /// A login manager that writes down what it is told.
    struct Login1 {
        told: Arc<Mutex<Vec<bool>>>,
        may: bool,
    }

    #[interface(name = "org.freedesktop.login1.Manager")]
    impl Login1 {
        fn reboot(&self, interactive: bool) -> fdo::Result<()> {
            self.told.lock().expect("nobody panicked").push(interactive);
            if self.may {
                Ok(())
            } else {
                Err(fdo::Error::AccessDenied(
                    "Interactive authentication required.".into(),
                ))
            }
        }
    }

    /// A bus of two: ours, and a login manager's.
    async fn bus(may: bool) -> (Connection, Connection, Arc<Mutex<Vec<bool>>>) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let told = Arc::new(Mutex::new(Vec::new()));
        let login = Login1 {
            told: told.clone(),
            may,
        };
        let serve = Builder::unix_stream(theirs)
            .server(zbus::Guid::generate())
            .expect("a server")
            .p2p()
            .serve_at("/org/freedesktop/login1", login);
        let serve = serve.expect("an object").build();
        let (served, client) = tokio::join!(serve, Builder::unix_stream(ours).p2p().build());
        (served.expect("a server"), client.expect("a client"), told)
    }

    #[tokio::test]
    async fn login_manager_is_told_without_asking_anybody() {
        let (_server, bus, told) = bus(true).await;
        assert_eq!(order(&bus).await, Ok(()));
        assert_eq!(*told.lock().expect("nobody panicked"), [false]);
    }

    #[tokio::test]
    async fn refusal_of_the_login_manager_is_certain() {
        let (_server, bus, _) = bus(false).await;
        let Err(MachineError::Refused(why)) = order(&bus).await else {
            panic!("it is refused")
        };
        assert_eq!(
            why,
            "org.freedesktop.DBus.Error.AccessDenied: Interactive authentication required."
        );
    }

    #[tokio::test]
    async fn bus_that_goes_away_leaves_it_unclear() {
        let (server, bus, _) = bus(true).await;
        server.close().await.expect("it closes");
        assert!(matches!(order(&bus).await, Err(MachineError::Unclear(_))));
    }

    #[tokio::test]
    async fn bus_that_is_not_there_is_a_refusal() {
        let refused = Logind::at("unix:path=/nowhere/bus").reboot().await;
        assert!(
            matches!(refused, Err(MachineError::Refused(_))),
            "{refused:?}"
        );
    }
}
