//! `/healthz`, `/livez` and `/readyz`, and the endpoint of each check.
//! Guarantees: a failed check is named and its reason withheld; names are those of kube-apiserver.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{error::ApiError, field::go_quote};
use http::{Response, StatusCode};

use super::{EndpointRequest, ServerState};
use crate::http::{body::Body, response::text_response};

/// One check.
#[derive(Clone, Copy)]
struct Check {
    name: &'static str,
    run: fn(&ServerState<'_>) -> Result<(), &'static str>,
}

impl Check {
    const fn new(
        name: &'static str,
        run: fn(&ServerState<'_>) -> Result<(), &'static str>,
    ) -> Self {
        Self { name, run }
    }
}

/// The server answers at all.
const PING: Check = Check::new("ping", |_| Ok(()));
/// Logging never waits here.
const LOG: Check = Check::new("log", |_| Ok(()));
/// The storage answers.
const STORAGE: Check = Check::new("etcd", storage_answers);
const STORAGE_READY: Check = Check::new("etcd-readiness", storage_answers);
const SHUTDOWN: Check = Check::new("shutdown", |server| {
    if server.endpoints.stopping.is_cancelled() {
        Err("process is shutting down")
    } else {
        Ok(())
    }
});
/// The post-start hooks of kube-apiserver, which are complete before the first response here.
const HOOKS: [Check; 4] = [
    Check::new("poststarthook/crd-informer-synced", |_| Ok(())),
    Check::new("poststarthook/start-system-namespaces-controller", |_| {
        Ok(())
    }),
    Check::new("poststarthook/rbac/bootstrap-roles", |_| Ok(())),
    Check::new(
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        |_| Ok(()),
    ),
];

const LIVE: &[Check] = &[PING, LOG, STORAGE, HOOKS[0], HOOKS[1], HOOKS[2], HOOKS[3]];
const READY: &[Check] = &[
    PING,
    LOG,
    STORAGE,
    STORAGE_READY,
    HOOKS[0],
    HOOKS[1],
    HOOKS[2],
    HOOKS[3],
    SHUTDOWN,
];

/// The pages and their checks, by the name in the path.
const ENDPOINTS: [(&str, &[Check]); 3] = [("healthz", LIVE), ("livez", LIVE), ("readyz", READY)];

fn storage_answers(server: &ServerState<'_>) -> Result<(), &'static str> {
    // Reading takes the store's lock: a store that hangs makes the check hang, which is what a
    // probe is there to notice.
    server.api.store.revision();
    Ok(())
}

/// The paths of all checks.
pub(super) fn paths() -> impl Iterator<Item = String> {
    ENDPOINTS.iter().flat_map(|(endpoint, checks)| {
        std::iter::once(format!("/{endpoint}")).chain(
            checks
                .iter()
                .map(move |check| format!("/{endpoint}/{}", check.name)),
        )
    })
}

/// The answer of a health page; `None` for any other path.
pub(super) fn answer(
    server: &ServerState<'_>,
    request: &EndpointRequest<'_>,
) -> Option<Result<Response<Body>, ApiError>> {
    let path = request.path.strip_prefix('/')?;
    let (endpoint, one) = path
        .split_once('/')
        .map_or((path, None), |(endpoint, one)| (endpoint, Some(one)));
    let (_, checks) = ENDPOINTS.iter().find(|(name, _)| *name == endpoint)?;
    Some(match one {
        None => Ok(all(server, endpoint, checks, request)),
        Some(one) => match checks.iter().find(|check| check.name == one) {
            Some(check) => Ok(single((check.run)(server))),
            None => Err(ApiError::NoSuchPath),
        },
    })
}

fn single(outcome: Result<(), &'static str>) -> Response<Body> {
    match outcome {
        Ok(()) => text_response(StatusCode::OK, "ok"),
        Err(why) => text_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {why}\n"),
        ),
    }
}

fn all(
    server: &ServerState<'_>,
    endpoint: &str,
    checks: &[Check],
    request: &EndpointRequest<'_>,
) -> Response<Body> {
    let outcomes = checks.iter().map(|check| (check.name, (check.run)(server)));
    let report = Report::of(outcomes, request.query.all("exclude").into_iter().collect());
    if report.failed {
        return text_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{}{endpoint} check failed\n", report.text),
        );
    }
    let text = if request.query.has("verbose") {
        format!("{}{endpoint} check passed\n", report.text)
    } else {
        "ok".into()
    };
    text_response(StatusCode::OK, text)
}

/// The results of the checks, one line each.
struct Report {
    text: String,
    failed: bool,
}

impl Report {
    fn of<'a>(
        outcomes: impl Iterator<Item = (&'a str, Result<(), &'static str>)>,
        excluded: BTreeSet<&str>,
    ) -> Self {
        let mut unknown = excluded.clone();
        let mut report = Self {
            text: String::new(),
            failed: false,
        };
        for (name, outcome) in outcomes {
            let line = match outcome {
                _ if excluded.contains(name) => {
                    unknown.remove(name);
                    format!("[+]{name} excluded: ok\n")
                }
                Ok(()) => format!("[+]{name} ok\n"),
                Err(why) => {
                    tracing::warn!(check = name, why, "a health check failed");
                    report.failed = true;
                    format!("[-]{name} failed: reason withheld\n")
                }
            };
            report.text.push_str(&line);
        }
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.into_iter().map(go_quote).collect();
            report.text.push_str(&format!(
                "warn: some health checks cannot be excluded: no matches for {}\n",
                names.join(",")
            ));
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_what_failed_and_withholds_why() {
        let outcomes = [("ping", Ok(())), ("etcd", Err("secret")), ("log", Ok(()))];
        let report = Report::of(outcomes.into_iter(), BTreeSet::new());
        assert!(report.failed);
        assert_eq!(
            report.text,
            "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\n"
        );
    }

    #[test]
    fn excluded_checks_count_as_well_and_unknown_ones_are_named() {
        let outcomes = [("ping", Ok(())), ("etcd", Err("secret"))];
        let report = Report::of(
            outcomes.into_iter(),
            BTreeSet::from(["etcd", "nosuch", "other"]),
        );
        assert!(!report.failed);
        assert_eq!(
            report.text,
            "[+]ping ok\n[+]etcd excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"nosuch\",\"other\"\n"
        );
    }
}
