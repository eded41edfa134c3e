//! Routes: the paths of the kubelet's HTTP server.
//!
//! In: method and path of a request. Out: what is requested, or why there is no such thing.

use http::Method;

use super::response::Refusal;

/// What is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Healthz,
    Pods,
    StatsSummary,
    ContainerLogs(ContainerPath),
    Exec(ContainerPath),
    Attach(ContainerPath),
    PortForward(PodPath),
}

/// A pod in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodPath {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The path names this very pod, not any of that name.
    pub(super) uid: Option<String>,
}

/// A container in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerPath {
    pub(super) pod: PodPath,
    pub(super) container: String,
}

impl Route {
    /// Mirrors `InstallDefaultHandlers` and `InstallAuthRequiredHandlers`.
    pub(super) fn parse(method: &Method, path: &str) -> Result<Self, Refusal> {
        let path = path.strip_prefix('/').unwrap_or(path);
        let segments: Vec<&str> = path.split('/').collect();
        let route = match segments.as_slice() {
            ["healthz"] => Self::Healthz,
            ["pods"] => Self::Pods,
            ["stats", "summary"] => Self::StatsSummary,
            ["containerLogs", namespace, name, container] => {
                Self::ContainerLogs(container_path(namespace, name, None, container))
            }
            ["exec", namespace, name, container] => {
                Self::Exec(container_path(namespace, name, None, container))
            }
            ["exec", namespace, name, uid, container] => {
                Self::Exec(container_path(namespace, name, Some(uid), container))
            }
            ["attach", namespace, name, container] => {
                Self::Attach(container_path(namespace, name, None, container))
            }
            ["attach", namespace, name, uid, container] => {
                Self::Attach(container_path(namespace, name, Some(uid), container))
            }
            ["portForward", namespace, name] => Self::PortForward(pod_path(namespace, name, None)),
            ["portForward", namespace, name, uid] => {
                Self::PortForward(pod_path(namespace, name, Some(uid)))
            }
            _ => return Err(Refusal::not_found("404: Page Not Found")),
        };
        let methods = route.methods();
        if !methods.contains(method) {
            return Err(Refusal::method_not_allowed(methods));
        }
        Ok(route)
    }

    fn methods(&self) -> &'static [Method] {
        match self {
            Self::Exec(_) | Self::Attach(_) | Self::PortForward(_) => &[Method::GET, Method::POST],
            _ => &[Method::GET],
        }
    }
}

fn pod_path(namespace: &str, name: &str, uid: Option<&str>) -> PodPath {
    PodPath {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.map(str::to_owned),
    }
}

fn container_path(
    namespace: &str,
    name: &str,
    uid: Option<&str>,
    container: &str,
) -> ContainerPath {
    ContainerPath {
        pod: pod_path(namespace, name, uid),
        container: container.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_upstream() {
        let web = container_path("ns", "web", None, "app");
        let web_uid = container_path("ns", "web", Some("u1"), "app");
        for (path, expected) in [
            ("/healthz", Route::Healthz),
            ("/pods", Route::Pods),
            ("/stats/summary", Route::StatsSummary),
            (
                "/containerLogs/ns/web/app",
                Route::ContainerLogs(web.clone()),
            ),
            ("/exec/ns/web/app", Route::Exec(web.clone())),
            ("/exec/ns/web/u1/app", Route::Exec(web_uid.clone())),
            ("/attach/ns/web/app", Route::Attach(web)),
            ("/attach/ns/web/u1/app", Route::Attach(web_uid)),
            (
                "/portForward/ns/web",
                Route::PortForward(pod_path("ns", "web", None)),
            ),
            (
                "/portForward/ns/web/u1",
                Route::PortForward(pod_path("ns", "web", Some("u1"))),
            ),
        ] {
            let route = Route::parse(&Method::GET, path);
            assert_eq!(route.unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        for (method, path, code) in [
            (Method::GET, "/", 404),
            (Method::GET, "/run/ns/web/app", 404),
            (Method::GET, "/containerLogs/ns/web", 404),
            (Method::POST, "/containerLogs/ns/web/app", 405),
            (Method::DELETE, "/exec/ns/web/app", 405),
        ] {
            let refusal = Route::parse(&method, path).unwrap_err();
            assert_eq!(refusal.status.as_u16(), code, "{method} {path}");
        }
        assert!(Route::parse(&Method::POST, "/exec/ns/web/app").is_ok());
    }
}
