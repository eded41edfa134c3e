//! ComponentStatus: the health of the control plane, computed when it is read.
//!
//! In: the components that run with this server. Out: one object per component, which is not
//! stored.
//! Guarantees: the storage is healthy, since it is part of the server; a component that was not
//! declared is unhealthy, as one whose health endpoint cannot be reached.
//! Mirrors the registry `pkg/registry/core/componentstatus`.

use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::Strategy;

/// A component of the control plane whose health `componentstatuses` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The controllers of kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl Component {
    const ALL: [Self; 2] = [Self::ControllerManager, Self::Scheduler];

    fn name(self) -> &'static str {
        match self {
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
        }
    }

    /// The port of its health endpoint in a cluster.
    fn port(self) -> u16 {
        match self {
            Self::ControllerManager => 10257,
            Self::Scheduler => 10259,
        }
    }
}

/// The name of the storage.
const STORAGE: &str = "etcd-0";

/// The components that run with the server.
#[derive(Clone, Debug, Default)]
pub struct Components(pub Vec<Component>);

/// The strategy of ComponentStatuses, which are computed. Mirrors `pkg/registry/core/componentstatus`.
pub const COMPONENT_STATUS: Strategy = Strategy {
    computed: Some(statuses),
    ..Strategy::PLAIN
};

/// All objects, in the order of their names.
fn statuses(components: &Components) -> Vec<Object> {
    let of_component = |component: Component| {
        let is_running = components.0.contains(&component);
        let condition = if is_running {
            healthy()
        } else {
            unreachable(component)
        };
        status(component.name(), condition)
    };
    let mut statuses = Component::ALL.map(of_component).to_vec();
    statuses.push(status(STORAGE, healthy()));
    statuses.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
    statuses
}

fn healthy() -> Value {
    json!({"type": "Healthy", "status": "True", "message": "ok"})
}

/// The message of kube-apiserver when the connection to the port is refused.
fn unreachable(component: Component) -> Value {
    let address = format!("127.0.0.1:{}", component.port());
    let message = format!(
        "Get \"https://{address}/healthz\": dial tcp {address}: connect: connection refused"
    );
    json!({"type": "Healthy", "status": "False", "message": message})
}

fn status(name: &str, condition: Value) -> Object {
    let object = json!({
        "kind": "ComponentStatus", "apiVersion": "v1",
        "metadata": {"name": name},
        "conditions": [condition],
    });
    let Value::Object(object) = object else {
        unreachable!("the literal is an object");
    };
    Object::from_map(object).expect("the metadata is a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_that_does_not_run_is_unhealthy() {
        let components = Components(vec![Component::Scheduler]);
        let statuses = statuses(&components);
        let shown: Vec<_> = statuses
            .iter()
            .map(|status| {
                let condition = &status.body["conditions"][0];
                let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
                (status.meta.name.as_str(), text("status"), text("message"))
            })
            .collect();
        let refused = "Get \"https://127.0.0.1:10257/healthz\": \
                       dial tcp 127.0.0.1:10257: connect: connection refused";
        let expected = [
            ("controller-manager", "False", refused),
            ("etcd-0", "True", "ok"),
            ("scheduler", "True", "ok"),
        ];
        let expected =
            expected.map(|(name, status, message)| (name, status.to_owned(), message.to_owned()));
        assert_eq!(shown, expected);
    }
}
