//! Components: the user agents of the controllers, which are those of upstream's processes.
//!
//! Reason: kube-apiserver attributes a write without an explicit field manager to the user agent up
//! to the first slash, so upstream's field managers are the names of its processes.

use bellerophon::client::ReconcileClient;
use bellerophon::controller::ControllerOptions;
use bellerophon::events::EventRecorder;
use bellerophon::manager::Manager;
use http::{HeaderValue, Request, header::USER_AGENT};
use kube::{Client, client::Body};

/// The Kubernetes process whose controllers run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Component {
    ControllerManager,
    Scheduler,
    Kubelet,
}

impl Component {
    /// Name of the process: field manager, prefix of the user agent, reporting instance of events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
        }
    }

    /// User agent and field manager of its controllers.
    pub(crate) fn controller_options(self) -> ControllerOptions {
        ControllerOptions {
            field_manager: Some(self.name().to_owned()),
            user_agent: Some(self.user_agent().to_owned()),
            ..ControllerOptions::default()
        }
    }

    /// A client of a controller for work outside of reconciles.
    pub(crate) fn client(self, mgr: &Manager, controller: &str) -> ReconcileClient {
        ReconcileClient::new(self.kube_client(mgr, controller), self.name())
    }

    /// Records events as this component.
    pub(crate) fn recorder(self, mgr: &mut Manager, controller: &str) -> EventRecorder {
        let recorder = mgr.component_recorder(controller, Some(self.user_agent()));
        recorder.with_instance(self.name())
    }

    /// A client of a controller that sends the user agent of this component.
    pub(crate) fn kube_client(self, mgr: &Manager, controller: &str) -> Client {
        let inner = mgr.client_of(controller);
        let namespace = inner.default_namespace().to_owned();
        let agent = HeaderValue::from_static(self.user_agent());
        let service = tower::service_fn(move |mut request: Request<Body>| {
            request.headers_mut().insert(USER_AGENT, agent.clone());
            let client = inner.clone();
            async move { client.send(request).await }
        });
        Client::new(service, namespace)
    }

    fn user_agent(self) -> &'static str {
        match self {
            Self::ControllerManager => concat!(
                "kube-controller-manager/",
                env!("CARGO_PKG_VERSION"),
                " bellerophon"
            ),
            Self::Scheduler => {
                concat!("kube-scheduler/", env!("CARGO_PKG_VERSION"), " bellerophon")
            }
            Self::Kubelet => concat!("kubelet/", env!("CARGO_PKG_VERSION"), " bellerophon"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_agent_begins_with_the_name() {
        for component in [
            Component::ControllerManager,
            Component::Scheduler,
            Component::Kubelet,
        ] {
            let prefix = component.user_agent().split('/').next();
            assert_eq!(prefix, Some(component.name()));
        }
    }
}
