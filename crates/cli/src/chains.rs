//! Summaries of chains: what followed from one write, a line per controller.
//!
//! Input: a write, and the reconciles that it led to. Output: lines of text.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::trace::{Timeline, TraceEvent, TracedReconcile};
use tokio::time::Instant;

/// The width of the names of controllers.
const NAME_WIDTH: usize = 28;

/// The root of a chain.
#[derive(Clone, Debug)]
pub(crate) struct ChainRoot {
    /// What was done: `apply Deployment.apps default/stable`.
    pub(crate) command: String,
    /// The kind of the object.
    pub(crate) kind: String,
    /// The object.
    pub(crate) key: ObjectKey,
    /// Its version.
    pub(crate) version: String,
    /// When it was written.
    pub(crate) at: Instant,
}

/// What one controller did in a chain.
#[derive(Default)]
struct Share {
    first: Option<Instant>,
    reconciles: usize,
    errors: usize,
    /// Objects written, by kind.
    writes: BTreeMap<String, BTreeSet<String>>,
}

/// The lines of a chain.
pub(crate) fn summary(root: &ChainRoot, effects: &Timeline) -> Vec<String> {
    let mut lines = vec![root.command.clone()];
    let mut shares: BTreeMap<&str, Share> = BTreeMap::new();
    let mut end = root.at;
    for reconcile in &effects.reconciles {
        let share = shares.entry(&reconcile.controller).or_default();
        add(share, reconcile);
        let ended = reconcile.finished.as_ref().unwrap_or(&reconcile.started);
        end = end.max(ended.at);
    }
    let mut shares: Vec<_> = shares.into_iter().collect();
    shares.sort_by_key(|(_, share)| share.first);
    for (controller, share) in &shares {
        let first = share.first.unwrap_or(root.at);
        let after = time(first.saturating_duration_since(root.at));
        let what = written(share);
        lines.push(format!("  {controller:NAME_WIDTH$} {what}, after {after}"));
    }
    let reconciles = effects.reconciles.len();
    let took = time(end.saturating_duration_since(root.at));
    lines.push(match reconciles {
        0 => "  no controller was enqueued".to_owned(),
        1 => format!("  converged after {took}: 1 reconcile"),
        _ => format!("  converged after {took}: {reconciles} reconciles"),
    });
    lines
}

fn add(share: &mut Share, reconcile: &TracedReconcile) {
    let started = reconcile.started.at;
    share.first = Some(share.first.map_or(started, |first| first.min(started)));
    share.reconciles += 1;
    if let Some(TraceEvent::Finished {
        result: "error", ..
    }) = reconcile.finished.as_ref().map(|finished| &finished.event)
    {
        share.errors += 1;
    }
    for write in &reconcile.writes {
        let (kind, key, verb) = match &write.event {
            TraceEvent::Wrote {
                kind,
                key,
                resource_version,
                ..
            } => {
                let verb = match resource_version {
                    Some(_) => "wrote",
                    None => "deleted",
                };
                (kind, key, verb)
            }
            TraceEvent::SubresourceWritten {
                kind,
                key,
                subresource,
                ..
            } => {
                let verb = match subresource.starts_with("binding") {
                    true => "bound",
                    false => "wrote",
                };
                (kind, key, verb)
            }
            _ => continue,
        };
        let kind = kind.split('.').next().unwrap_or_default();
        let objects = share.writes.entry(format!("{verb} {kind}")).or_default();
        objects.insert(key.name().to_owned());
    }
}

/// `wrote ReplicaSet stable-7d4b9c6f5`, `bound 2 Pods`.
fn written(share: &Share) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (what, objects) in &share.writes {
        let (verb, kind) = what.split_once(' ').unwrap_or_default();
        parts.push(match objects.len() {
            1 => format!(
                "{what} {}",
                objects.iter().next().map_or("", String::as_str)
            ),
            many => format!("{verb} {many} {kind}s"),
        });
    }
    if parts.is_empty() {
        parts.push("wrote nothing".to_owned());
    }
    let mut text = parts.join(", ");
    if share.errors > 0 {
        text.push_str(&format!(
            " ({} of {} failed)",
            share.errors, share.reconciles
        ));
    }
    text
}

/// `2.4 ms`, `1.017 s`.
fn time(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{:.1} ms", duration.as_secs_f64() * 1000.0),
        _ => format!("{:.3} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use bellerophon::queue::Causes;
    use bellerophon::trace::Trace;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn summary_has_a_line_per_controller() {
        let trace = Trace::new(100);
        let key = |name: &str| ObjectKey::namespaced("default", name);
        let root = ChainRoot {
            command: "apply Deployment.apps default/stable".to_owned(),
            kind: "Deployment.apps".to_owned(),
            key: key("stable"),
            version: "7".to_owned(),
            at: Instant::now(),
        };
        let steps = [
            (
                "deployment-controller",
                "stable",
                ("Deployment.apps", "stable", "7"),
                vec![("ReplicaSet.apps", "stable-1", "8")],
            ),
            (
                "replicaset-controller",
                "stable-1",
                ("ReplicaSet.apps", "stable-1", "8"),
                vec![("Pod", "a", "9"), ("Pod", "b", "10")],
            ),
            ("other", "other", ("Other", "other", "1"), vec![]),
        ];
        for (controller, name, (kind, cause, version), writes) in steps {
            tokio::time::advance(Duration::from_micros(1500)).await;
            trace.record(|| TraceEvent::Enqueued {
                controller: controller.into(),
                key: key(name),
                cause_kind: kind.into(),
                cause_key: key(cause),
                cause_version: Some(version.to_owned()),
            });
            trace.record(|| TraceEvent::Started {
                controller: controller.into(),
                key: key(name),
                causes: Causes::default(),
                attempt: 1,
                waited: None,
            });
            for (kind, written, version) in writes {
                trace.record(|| TraceEvent::Wrote {
                    controller: controller.into(),
                    reconciling: key(name),
                    kind: kind.into(),
                    key: key(written),
                    resource_version: Some(version.to_owned()),
                });
            }
            trace.record(|| TraceEvent::Finished {
                controller: controller.into(),
                key: key(name),
                result: "success",
                took: Duration::ZERO,
                requeue_after: None,
                error: None,
            });
        }
        let effects = trace.effects(&root.kind, &root.key, &root.version);
        assert_eq!(
            summary(&root, &effects),
            [
                "apply Deployment.apps default/stable",
                "  deployment-controller        wrote ReplicaSet stable-1, after 1.5 ms",
                "  replicaset-controller        wrote 2 Pods, after 3.0 ms",
                "  converged after 3.0 ms: 2 reconciles",
            ]
        );
        let nothing = summary(&root, &Timeline::default());
        assert_eq!(nothing[1], "  no controller was enqueued");
    }
}
