//! Whether an APIService is available.
//! In: its Service and EndpointSlices, and the answer of its server. Out: the condition
//! `Available`. Mirrors the remote `AvailableConditionController`.

use std::time::Duration;

use bellerophon_apimachinery::{json_ext::JsonExt as _, time::Time};
use bellerophon_codec::object::Object;
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Aggregator, front_proxy};
use crate::{
    api::Api,
    auth::{MASTERS, User},
    connect::Connector,
    endpoints::{endpoint_slices, port_name, ready_endpoints, service},
    registry::RemoteVersion,
};

/// How long a server may take to answer the check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Availability {
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Availability {
    fn is_false(reason: &'static str, message: String) -> Self {
        Self {
            status: "False",
            reason,
            message,
        }
    }

    pub(super) fn is_available(&self) -> bool {
        self.status == "True"
    }

    /// Sets the condition of an APIService. Mirrors `SetAPIServiceCondition`.
    pub(super) fn set(&self, api_service: &mut Object, now: Time) {
        let status = api_service.section("status");
        let conditions = status.entry("conditions").or_insert_with(|| json!([]));
        let Some(conditions) = conditions.as_array_mut() else {
            return;
        };
        let is_available = |condition: &&mut Value| condition.text("type") == "Available";
        let condition = match conditions.iter_mut().find(is_available) {
            Some(condition) => condition,
            None => {
                conditions.push(json!({"type": "Available"}));
                conditions.last_mut().expect("it is pushed above")
            }
        };
        if condition.text("status") != self.status {
            condition["status"] = self.status.into();
            condition["lastTransitionTime"] = now.to_string().into();
        }
        condition["reason"] = self.reason.into();
        condition["message"] = self.message.as_str().into();
    }
}

/// Availability by the stored objects; `None` if the server itself must be probed.
fn check_service(api: &Api, remote: &RemoteVersion) -> Option<Availability> {
    let RemoteVersion {
        namespace,
        service: name,
        port,
        ..
    } = remote;
    let Some(service) = service(api, namespace, name) else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return Some(Availability::is_false("ServiceNotFound", message));
    };
    if service.str_at("spec.type") != "ClusterIP" {
        return None;
    }
    let Some(port_name) = port_name(&service, *port) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return Some(Availability::is_false("ServicePortError", message));
    };
    let slices = endpoint_slices(api, namespace, name);
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Availability::is_false("EndpointsNotFound", message));
    }
    let mut ready = slices.iter().flat_map(|s| ready_endpoints(s, &port_name));
    if ready.next().is_none() {
        let message = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        return Some(Availability::is_false("MissingEndpoints", message));
    }
    None
}

impl Aggregator {
    /// Checks a version of a group.
    pub(super) async fn check(
        &self,
        api: &Api,
        connector: &Connector,
        remote: &RemoteVersion,
    ) -> Availability {
        if let Some(unavailable) = check_service(api, remote) {
            return unavailable;
        }
        match self.get(api, connector, remote, &remote.root(), "").await {
            Ok(_) => Availability {
                status: "True",
                reason: "Passed",
                message: "all checks passed".into(),
            },
            Err(message) => Availability::is_false("FailedDiscoveryCheck", message),
        }
    }

    /// A document of the server of a version of a group, as the administrator.
    pub(super) async fn get(
        &self,
        api: &Api,
        connector: &Connector,
        remote: &RemoteVersion,
        path: &str,
        accept: &'static str,
    ) -> Result<http::Response<bytes::Bytes>, String> {
        let location = self.location(api, remote, path)?;
        let mut headers: HeaderMap = front_proxy::identity_headers(&User {
            name: "system:kube-aggregator".into(),
            groups: vec![MASTERS.into()],
            ..User::default()
        });
        if !accept.is_empty() {
            let accept = http::HeaderValue::from_static(accept);
            headers.insert(http::header::ACCEPT, accept);
        }
        let failed = |why: String| {
            format!("failing or missing response from {location}: Get \"{location}\": {why}")
        };
        match timeout(CHECK_TIMEOUT, connector.fetch(&location, headers)).await {
            Err(_) => Err(failed("context deadline exceeded".into())),
            Ok(Err(why)) => Err(failed(why)),
            Ok(Ok(response)) if response.status().is_success() => Ok(response),
            Ok(Ok(response)) => Err(format!(
                "failing or missing response from {location}: bad status from {location}: {}",
                response.status().as_u16()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;

    use super::*;

    #[test]
    fn transition_time_changes_with_the_status_only() {
        let mut api_service = object(json!({"metadata": {"name": "v1.x"}, "spec": {}}));
        let first = Time::parse("2026-01-02T03:04:05Z").expect("a time");
        let second = Time::parse("2026-01-02T03:05:05Z").expect("a time");
        let missing = Availability::is_false("ServiceNotFound", "not present".into());
        missing.set(&mut api_service, first);
        let unready = Availability::is_false("MissingEndpoints", "none".into());
        unready.set(&mut api_service, second);
        let expected = json!([{
            "type": "Available", "status": "False", "reason": "MissingEndpoints", "message": "none",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        }]);
        assert_eq!(api_service.body["status"]["conditions"], expected);
        let passed = Availability {
            status: "True",
            reason: "Passed",
            message: "all checks passed".into(),
        };
        passed.set(&mut api_service, second);
        let condition = &api_service.body["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2026-01-02T03:05:05Z");
    }
}
