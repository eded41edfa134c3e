//! HTTP requests of probes and hooks.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

/// The response to a request.
pub(super) struct Response {
    pub(super) status: StatusCode,
}

/// The port number of a port that may be a name. Mirrors `ResolveContainerPort`.
pub(super) fn port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let invalid = || format!("invalid port number: {port:?}");
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_ref() == Some(name));
            match named {
                Some(port) => port.container_port,
                None => name.parse().map_err(|_| invalid())?,
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(invalid)
}

/// Sends a GET request on a connection and reads the head of the response.
pub(super) async fn get(
    connection: TcpStream,
    authority: &str,
    action: &HTTPGetAction,
    user_agent: &str,
) -> Result<Response, String> {
    if action.scheme.as_deref() == Some("HTTPS") {
        return Err("nodes with local processes do not support scheme HTTPS".to_owned());
    }
    let path = action.path.as_deref().filter(|path| !path.is_empty());
    let path = path.unwrap_or("/");
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut request = Request::get(format!("{slash}{path}"))
        .header(http::header::USER_AGENT, user_agent)
        .header(http::header::ACCEPT, "*/*");
    let headers = action.http_headers.iter().flatten();
    let mut has_host = false;
    for header in headers {
        has_host |= header.name.eq_ignore_ascii_case("host");
        request = request.header(&header.name, &header.value);
    }
    if !has_host {
        request = request.header(http::header::HOST, authority);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(connection))
        .await
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        // The body is read, so that the server does not see a reset.
        response.into_body().collect().await?;
        Ok::<_, hyper::Error>(Response { status })
    };
    tokio::pin!(exchange);
    tokio::pin!(connection);
    let response = tokio::select! {
        response = &mut exchange => response,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error),
        },
    };
    response.map_err(|error| error.to_string())
}
