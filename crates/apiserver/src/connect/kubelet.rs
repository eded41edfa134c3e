//! Requests to kubelets: logs, and the streams of containers.

use bellerophon_apimachinery::error::{ApiError, GroupResource};
use bellerophon_codec::object::Object;
use futures_util::StreamExt as _;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};

use super::{
    ConnectRequest, Connector, Location, RequestBody,
    backend::{BackendBody, Unreachable},
    headers,
    options::{LogOptions, port_query, stream_query},
    proxy::passed_headers,
    resolve::{Locations, container},
};
use crate::http::{
    body::Body,
    response::{empty_response, stream_response},
};

/// How much of a kubelet's error is read.
const ERROR_MAX_BYTES: usize = 50_000;

impl Connector {
    /// The log of a container: no content for a pod that is on no node. Mirrors `LogREST.Get` and
    /// `LocationStreamer`.
    pub(super) async fn log(
        &self,
        request: &ConnectRequest<'_>,
        locations: &Locations<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let pod_name = &request.path.name;
        let options = LogOptions::read(request.query, pod_name)?;
        let pod = locations.pod(pod_name)?;
        let wanted = request.query.get("container").unwrap_or_default();
        let container = container(&pod, wanted)?;
        let node_name = pod.str_at("spec.nodeName");
        if node_name.is_empty() {
            return Ok(empty_response(StatusCode::NO_CONTENT));
        }
        let location = Location {
            path: kubelet_path("containerLogs", &pod, Some(container)),
            query: options.to_query(),
            ..locations.kubelet(node_name)?
        };
        let mut get = Request::new(no_body());
        let headers = get.headers_mut();
        headers.insert(header::HOST, host(&location));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/plain"));
        let counted = request.counted.clone();
        let failed = |why: &str| ApiError::Unnamed(format!("Get \"{location}\": {why}"));
        let sent = self.backends.send(&location, get, counted).await;
        let response = sent.map_err(|unreachable| match unreachable {
            Unreachable::Dial(why) | Unreachable::Exchange(why) => failed(&why),
        })?;
        let status = response.status();
        if status.is_redirection() && response.headers().contains_key(header::LOCATION) {
            return Err(failed("redirects forbidden"));
        }
        let body = response.into_body();
        if !(200..=206).contains(&status.as_u16()) {
            return Err(kubelet_error(status, &read_error(body).await, pod_name));
        }
        Ok(stream_response(Body::fallible(body), "text/plain"))
    }

    /// `exec`, `attach` and `portforward`, whose connections are upgraded. Mirrors
    /// `ExecREST.Connect` and its siblings for a node that serves WebSockets itself.
    pub(super) async fn stream(
        &self,
        request: &ConnectRequest<'_>,
        locations: &Locations<'_>,
        body: RequestBody,
    ) -> Result<Response<Body>, ApiError> {
        let subresource = request.path.subresource.as_str();
        let forwards_ports = subresource == "portforward";
        let query = if forwards_ports {
            port_query(request.query)?
        } else {
            stream_query(request.query, subresource)
        };
        if request.head.method != Method::POST {
            request.check_create()?;
        }
        let pod = locations.pod(&request.path.name)?;
        let path = if forwards_ports {
            kubelet_path("portForward", &pod, None)
        } else {
            let wanted = request.query.get("container").unwrap_or_default();
            kubelet_path(subresource, &pod, Some(container(&pod, wanted)?))
        };
        let node_name = pod.str_at("spec.nodeName");
        if node_name.is_empty() {
            let name = &request.path.name;
            let why = format!("pod {name} does not have a host assigned");
            return Err(ApiError::BadRequest(why));
        }
        let location = Location {
            path,
            query,
            ..locations.kubelet(node_name)?
        };
        if !headers::is_upgrade(&request.head.headers) {
            return Err(ApiError::BadRequest("Upgrade request required".into()));
        }
        let headers = passed_headers(request, &location);
        self.upgrade(request, &location, headers, body).await
    }
}

fn kubelet_path(endpoint: &str, pod: &Object, container: Option<&str>) -> String {
    let namespace = &pod.meta.namespace;
    let name = &pod.meta.name;
    let pod_path = format!("/{endpoint}/{namespace}/{name}");
    container.map_or(pod_path.clone(), |container| {
        format!("{pod_path}/{container}")
    })
}

pub(super) fn host(location: &Location) -> HeaderValue {
    HeaderValue::try_from(location.host()).expect("addresses and ports are ASCII")
}

fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// The begin of an error, as far as it can be read.
async fn read_error(mut body: BackendBody) -> String {
    let mut text = Vec::new();
    while text.len() < ERROR_MAX_BYTES
        && let Some(Ok(bytes)) = body.next().await
    {
        text.extend_from_slice(&bytes);
    }
    text.truncate(ERROR_MAX_BYTES);
    String::from_utf8_lossy(&text).into_owned()
}

/// An error of a kubelet as a Status. Mirrors `GenericHttpResponseChecker`.
fn kubelet_error(status: StatusCode, text: &str, pod: &str) -> ApiError {
    match status {
        StatusCode::INTERNAL_SERVER_ERROR => ApiError::Internal(text.to_owned()),
        StatusCode::BAD_REQUEST => ApiError::BadRequest(text.to_owned()),
        status => ApiError::ServerResponse {
            code: status.as_u16(),
            text: text.to_owned(),
            resource: GroupResource::new("", "pods/log"),
            name: pod.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_kubelets_keep_their_code() {
        for (code, text, reason, message) in [
            (400, "no such container", "BadRequest", "no such container"),
            (
                404,
                "gone",
                "NotFound",
                "the server could not find the requested resource ( pods/log p)",
            ),
            (
                500,
                "boom",
                "InternalError",
                "Internal error occurred: boom",
            ),
            (403, "Forbidden", "Forbidden", "Forbidden ( pods/log p)"),
            (
                502,
                "bad",
                "InternalError",
                "an error on the server (\"bad\") has prevented the request from succeeding ( pods/log p)",
            ),
            (
                503,
                "",
                "ServiceUnavailable",
                "the server is currently unable to handle the request ( pods/log p)",
            ),
        ] {
            let status = StatusCode::from_u16(code).expect("a code");
            let shown = kubelet_error(status, text, "p").to_status();
            assert_eq!(shown["code"], code);
            assert_eq!(shown["reason"], reason, "{code}");
            assert_eq!(shown["message"], message, "{code}");
        }
    }
}
