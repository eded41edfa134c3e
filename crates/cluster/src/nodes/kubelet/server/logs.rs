//! Logs of containers: the options of a request, and whether there is a log.

use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use kube::ResourceExt;

use super::response::Refusal;
use super::streams::{LogOptions, StreamError};

/// Reads and validates the query of `/containerLogs`. Mirrors `getContainerLogs`, which names no
/// field in its errors: the API server has validated the options before.
pub(super) fn log_options(query: &str) -> Result<LogOptions, Refusal> {
    let query = Query::parse(query);
    let options = query.log_options().ok_or_else(|| {
        let message = r#"{"message": "Unable to decode query."}"#;
        Refusal::new(StatusCode::BAD_REQUEST, message)
    })?;
    if !is_valid(&options) {
        let message = r#"{"message": "Invalid request."}"#;
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    Ok(options)
}

/// Mirrors `ValidatePodLogOptions`.
fn is_valid(options: &LogOptions) -> bool {
    let has_one_since = options.since_seconds.is_none() || options.since_time.is_none();
    has_one_since
        && options.since_seconds.is_none_or(|seconds| seconds >= 1)
        && options.tail_lines.is_none_or(|lines| lines >= 0)
        && options.limit_bytes.is_none_or(|bytes| bytes >= 1)
}

/// The parameters of a query.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Self {
        let parameters = form_urlencoded::parse(text.as_bytes());
        Self(parameters.into_owned().collect())
    }

    /// `None` if a value cannot be read.
    fn log_options(&self) -> Option<LogOptions> {
        Some(LogOptions {
            follow: self.flag("follow"),
            previous: self.flag("previous"),
            since_seconds: self.value("sinceSeconds")?,
            since_time: self.value::<Timestamp>("sinceTime")?,
            timestamps: self.flag("timestamps"),
            tail_lines: self.value("tailLines")?,
            limit_bytes: self.value("limitBytes")?,
        })
    }

    fn first(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(key, _)| key == name);
        values.next().map(|(_, value)| value.as_str())
    }

    /// Mirrors `Convert_Slice_string_To_bool`.
    fn flag(&self, name: &str) -> bool {
        self.first(name)
            .is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// A parameter that may be missing; the outer `None` if it cannot be read.
    fn value<T: std::str::FromStr>(&self, name: &str) -> Option<Option<T>> {
        self.first(name).map(str::parse).transpose().ok()
    }
}

/// Whether there is a log to read. Mirrors `validateContainerLogStatus`.
pub(super) fn validate_container_log_status(
    pod: &Pod,
    container: &str,
    previous: bool,
) -> Result<(), StreamError> {
    let pod_name = pod.name_any();
    let names = format!("container {container:?} in pod {pod_name:?}");
    let status = container_status(pod, container);
    let no_log = |why: &str| StreamError::BadRequest(format!("{names} {why}"));
    let status = status.ok_or_else(|| no_log("is not available"))?;
    let last = terminated(status.last_state.as_ref());
    if previous {
        return match last {
            Some(last) if has_run(last) => Ok(()),
            _ => {
                let message = format!("previous terminated {names} not found");
                Err(StreamError::BadRequest(message))
            }
        };
    }
    let state = status.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return Ok(());
    }
    // A container that was not started again has no ID; its last run has a log.
    let ended = [terminated(state), last];
    if ended.iter().any(Option::is_some) {
        let has_log = ended.into_iter().flatten().any(has_run);
        return has_log.then_some(()).ok_or_else(|| no_log("is terminated"));
    }
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let reason = waiting.map(|waiting| waiting.reason.as_deref().unwrap_or_default());
    Err(match reason {
        Some("ErrImagePull") => no_log("is waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => no_log("is waiting to start: trying and failing to pull image"),
        Some(reason) => no_log(&format!("is waiting to start: {reason}")),
        None => no_log("is waiting to start - no logs yet"),
    })
}

/// The status of a container, init container or ephemeral container.
pub(in crate::nodes) fn container_status<'a>(
    pod: &'a Pod,
    name: &str,
) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|status| status.name == name)
}

fn terminated(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state.and_then(|state| state.terminated.as_ref())
}

fn has_run(terminated: &ContainerStateTerminated) -> bool {
    terminated
        .container_id
        .as_deref()
        .is_some_and(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn options_are_read_from_the_query() {
        let query = "follow=true&previous=0&timestamps&sinceTime=2026-01-01T12%3A00%3A00Z\
                     &tailLines=5&limitBytes=100";
        let expected = LogOptions {
            follow: true,
            since_time: Some("2026-01-01T12:00:00Z".parse().unwrap()),
            timestamps: true,
            tail_lines: Some(5),
            limit_bytes: Some(100),
            ..LogOptions::default()
        };
        assert_eq!(log_options(query).unwrap(), expected);
        assert_eq!(log_options("").unwrap(), LogOptions::default());
    }

    #[test]
    fn invalid_options_are_refused() {
        for (query, code) in [
            ("tailLines=many", 400),
            ("sinceTime=noon", 400),
            ("tailLines=-1", 422),
            ("limitBytes=0", 422),
            ("sinceSeconds=0", 422),
            ("sinceSeconds=1&sinceTime=2026-01-01T12:00:00Z", 422),
        ] {
            let refusal = log_options(query).unwrap_err();
            assert_eq!(refusal.status.as_u16(), code, "{query}");
        }
    }

    fn check(status: Value, previous: bool, expected: Result<(), &str>) {
        let mut status = status;
        status["name"] = json!("app");
        let pod = json!({
            "metadata": {"name": "web"},
            "status": {"containerStatuses": [status]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let actual = validate_container_log_status(&pod, "app", previous);
        let refused = |text: &str| StreamError::BadRequest(text.to_owned());
        assert_eq!(actual, expected.map_err(refused));
    }

    #[test]
    fn log_exists_once_a_container_has_run() {
        let running = json!({"running": {}});
        let ran = json!({"terminated": {"containerID": "sim://1", "exitCode": 1}});
        let never_ran = json!({"terminated": {"exitCode": 128}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        check(json!({"state": running}), false, Ok(()));
        check(json!({"state": ran}), false, Ok(()));
        check(
            json!({"state": waiting("CrashLoopBackOff"), "lastState": ran}),
            false,
            Ok(()),
        );
        check(json!({"state": never_ran, "lastState": ran}), false, Ok(()));
        check(json!({"state": running, "lastState": ran}), true, Ok(()));
        check(
            json!({"state": running}),
            true,
            Err(r#"previous terminated container "app" in pod "web" not found"#),
        );
        check(
            json!({"state": never_ran}),
            false,
            Err(r#"container "app" in pod "web" is terminated"#),
        );
        for (state, reason) in [
            (waiting("ContainerCreating"), ": ContainerCreating"),
            (waiting("ErrImagePull"), ": image can't be pulled"),
            (
                waiting("ImagePullBackOff"),
                ": trying and failing to pull image",
            ),
            (json!({}), " - no logs yet"),
        ] {
            let expected = format!(r#"container "app" in pod "web" is waiting to start{reason}"#);
            check(json!({"state": state}), false, Err(&expected));
        }
    }

    #[test]
    fn pod_without_status_has_no_log() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}})).unwrap();
        let expected = r#"container "app" in pod "web" is not available"#;
        let actual = validate_container_log_status(&pod, "app", false);
        assert_eq!(actual, Err(StreamError::BadRequest(expected.to_owned())));
    }
}
