//! Simulated: machines made of functions, such as the nodes of `bellerophon up`.

use std::{fmt::Display, sync::Arc};

use futures_util::future::{BoxFuture, ready};

use crate::agent::{AgentOptions, Machine, MachineError};

/// An agent for each of these nodes. By a node's name, one function tells the id of its boot and the other reboots it.
pub fn simulated<E: Display>(
    nodes: Vec<String>,
    boot_id: impl Fn(&str) -> Result<Option<String>, E> + Send + Sync + 'static,
    reboot: impl Fn(&str) -> Result<(), E> + Send + Sync + 'static,
) -> Vec<AgentOptions> {
    let refused = |error: E| MachineError::Refused(error.to_string());
    let (boot_id, reboot) = (Arc::new(boot_id), Arc::new(reboot));
    let agent = |node: String| {
        let (boot_id, reboot, ask, tell) =
            (boot_id.clone(), reboot.clone(), node.clone(), node.clone());
        let machine = Simulated {
            boot_id: move || boot_id(&ask).map_err(refused),
            reboot: move || reboot(&tell).map_err(refused),
        };
        AgentOptions {
            node,
            machine: Arc::new(machine),
            sentinel: None,
        }
    };
    nodes.into_iter().map(agent).collect()
}

struct Simulated<B, R> {
    boot_id: B,
    reboot: R,
}

impl<B, R> Machine for Simulated<B, R>
where
    B: Fn() -> Result<Option<String>, MachineError> + Send + Sync + 'static,
    R: Fn() -> Result<(), MachineError> + Send + Sync + 'static,
{
    fn boot_id(&self) -> Result<Option<String>, MachineError> {
        (self.boot_id)()
    }

    fn reboot(&self) -> BoxFuture<'_, Result<(), MachineError>> {
        Box::pin(ready((self.reboot)()))
    }
}
