//! Agents of simulated machines, such as the nodes of `bellerophon up`.

use std::{fmt::Display, sync::Arc};

use futures_util::future::{BoxFuture, ready};

use crate::agent::{AgentOptions, Machine, MachineError};

/// The options of an agent for each node. `boot_id` and `reboot` receive the name of the node.
pub fn simulated_agents<E: Display>(
    nodes: Vec<String>,
    boot_id: impl Fn(&str) -> Result<Option<String>, E> + Send + Sync + 'static,
    reboot: impl Fn(&str) -> Result<(), E> + Send + Sync + 'static,
) -> Vec<AgentOptions> {
    let boot_id = Arc::new(boot_id);
    let reboot = Arc::new(reboot);
    let agent = |node: String| {
        let machine = SimulatedMachine {
            node: node.clone(),
            boot_id: boot_id.clone(),
            reboot: reboot.clone(),
        };
        AgentOptions {
            node,
            machine: Arc::new(machine),
            sentinel: None,
        }
    };
    nodes.into_iter().map(agent).collect()
}

struct SimulatedMachine<B, R> {
    node: String,
    boot_id: Arc<B>,
    reboot: Arc<R>,
}

impl<E, B, R> Machine for SimulatedMachine<B, R>
where
    E: Display,
    B: Fn(&str) -> Result<Option<String>, E> + Send + Sync + 'static,
    R: Fn(&str) -> Result<(), E> + Send + Sync + 'static,
{
    fn boot_id(&self) -> Result<Option<String>, MachineError> {
        (self.boot_id)(&self.node).map_err(refused)
    }

    fn reboot(&self) -> BoxFuture<'_, Result<(), MachineError>> {
        Box::pin(ready((self.reboot)(&self.node).map_err(refused)))
    }
}

fn refused(error: impl Display) -> MachineError {
    MachineError::Refused(error.to_string())
}
