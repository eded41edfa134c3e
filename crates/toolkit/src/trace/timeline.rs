//! Timeline: reconciles, each with the changes that enqueued it and the writes that caused them.
//!
//! In: linked reconciles. Out: a paragraph of text for each.

use std::fmt;
use std::sync::Arc;

use super::record::{TraceEvent, TraceRecord};
use crate::ObjectKey;

type Record = Arc<TraceRecord>;

/// One change that enqueued a key, linked to the write that caused it.
///
/// ```
/// use bellerophon::trace::CauseLink;
///
/// fn is_external(link: &CauseLink) -> bool {
///     link.delivered.is_some() && link.written.is_none()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct CauseLink {
    /// The key was enqueued ([`TraceEvent::Enqueued`]).
    pub enqueued: Record,
    /// The change was delivered ([`TraceEvent::Delivered`]); `None` if nothing changed, or if the
    /// record was overwritten.
    pub delivered: Option<Record>,
    /// The write that caused the change ([`TraceEvent::Wrote`],
    /// [`TraceEvent::SubresourceWritten`]); `None` if it was not written by a
    /// controller with this trace, or if the record was overwritten.
    pub written: Option<Record>,
}

/// One reconcile with its causes and writes.
///
/// ```
/// use bellerophon::trace::TracedReconcile;
///
/// fn is_running(reconcile: &TracedReconcile) -> bool {
///     reconcile.finished.is_none()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct TracedReconcile {
    /// The controller.
    pub controller: Arc<str>,
    /// The key.
    pub key: ObjectKey,
    /// Its start ([`TraceEvent::Started`]).
    pub started: Record,
    /// Its end ([`TraceEvent::Finished`]); `None` while it runs.
    pub finished: Option<Record>,
    /// The causes that enqueued the key since its previous reconcile by this controller.
    pub causes: Vec<CauseLink>,
    /// Its writes ([`TraceEvent::Wrote`], [`TraceEvent::SubresourceWritten`]).
    pub writes: Vec<Record>,
}

/// The reconciles of one key, and those whose writes led to them.
///
/// [`Display`](fmt::Display) prints a paragraph for each reconcile: its result, causes and writes.
/// Records that the ring has overwritten are missing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use bellerophon::queue::{Cause, CauseEvent};
/// use bellerophon::{ObjectKey, trace::{Trace, TraceEvent}};
/// use tokio::time::Instant;
///
/// let trace = Trace::new(100);
/// let key = ObjectKey::namespaced("team-a", "icarus");
/// let retry = Cause {
///     kind: "Hero".into(),
///     key: key.clone(),
///     resource_version: None,
///     event: CauseEvent::Retry,
///     at: Instant::now(),
///     reason: None,
/// };
/// trace.record(|| TraceEvent::Started {
///     controller: "hero".into(),
///     key: key.clone(),
///     causes: retry.into(),
///     attempt: 2,
///     waited: None,
/// });
/// assert_eq!(
///     trace.timeline(&key).to_string(),
///     "#1 hero reconciled team-a/icarus, attempt 2: still running
///   because Hero team-a/icarus retry"
/// );
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The reconciles in the order in which they started.
    pub reconciles: Vec<TracedReconcile>,
}

impl fmt::Display for TracedReconcile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (attempt, causes) = match &self.started.event {
            TraceEvent::Started {
                attempt, causes, ..
            } => (*attempt, causes.to_string()),
            _ => (1, String::new()),
        };
        write!(
            f,
            "#{} {} reconciled {}",
            self.started.sequence, self.controller, self.key
        )?;
        if attempt > 1 {
            write!(f, ", attempt {attempt}")?;
        }
        match self.finished.as_ref().map(|finished| &finished.event) {
            Some(TraceEvent::Finished { result, took, .. }) => {
                write!(f, ": {result} after {took:?}")?
            }
            _ => f.write_str(": still running")?,
        }
        // A retry and an expired delay are causes without a change.
        if self.causes.is_empty() && !causes.is_empty() {
            write!(f, "\n  because {causes}")?;
        }
        for cause in &self.causes {
            match (&cause.delivered, &cause.enqueued.event) {
                (Some(delivered), _) => write!(f, "\n  because {delivered}")?,
                (
                    None,
                    TraceEvent::Enqueued {
                        cause_kind,
                        cause_key,
                        ..
                    },
                ) => {
                    write!(f, "\n  because of {cause_kind} {cause_key}")?;
                }
                _ => {}
            }
            if let Some(
                TraceEvent::Wrote {
                    controller,
                    reconciling,
                    ..
                }
                | TraceEvent::SubresourceWritten {
                    controller,
                    reconciling,
                    ..
                },
            ) = cause.written.as_ref().map(|written| &written.event)
            {
                write!(f, ", written by {controller} for {reconciling}")?;
            }
        }
        for write in &self.writes {
            match &write.event {
                TraceEvent::Wrote {
                    kind,
                    key,
                    resource_version: Some(version),
                    ..
                } => {
                    write!(f, "\n  wrote #{} {kind} {key} at {version}", write.sequence)?;
                }
                TraceEvent::Wrote {
                    kind,
                    key,
                    resource_version: None,
                    ..
                } => write!(f, "\n  deleted #{} {kind} {key}", write.sequence)?,
                TraceEvent::SubresourceWritten {
                    kind,
                    key,
                    subresource,
                    ..
                } => write!(
                    f,
                    "\n  wrote #{} {subresource} of {kind} {key}",
                    write.sequence
                )?,
                _ => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, reconcile) in self.reconciles.iter().enumerate() {
            write!(f, "{}{reconcile}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::queue::{CauseEvent, Causes};
    use crate::trace::Trace;

    /// Records `delivered Hero h 1`, `queued hero h by Hero h 1`, `start hero h`,
    /// `wrote hero h Pod p 2` (a delete with version `-`) and `end hero h`, separated by `·`, and
    /// compares the timeline of `key`.
    fn check(script: &str, key: &str, expected: &[&str]) {
        let trace = Trace::new(100);
        for step in script.split(" · ") {
            let name = |name: &str| ObjectKey::cluster(name);
            let version = |version: &str| Some(version.to_string());
            trace.record(|| match step.split(' ').collect::<Vec<_>>()[..] {
                ["delivered", kind, key, rv, "deleted"] => TraceEvent::Delivered {
                    kind: kind.into(),
                    key: name(key),
                    resource_version: version(rv),
                    event: CauseEvent::Deleted,
                },
                ["delivered", kind, key, rv] => TraceEvent::Delivered {
                    kind: kind.into(),
                    key: name(key),
                    resource_version: version(rv),
                    event: CauseEvent::Updated,
                },
                ["queued", controller, key, "by", kind, other, rv] => TraceEvent::Enqueued {
                    controller: controller.into(),
                    key: name(key),
                    cause_kind: kind.into(),
                    cause_key: name(other),
                    cause_version: (rv != "-").then(|| rv.to_string()),
                },
                ["start", controller, key] => TraceEvent::Started {
                    controller: controller.into(),
                    key: name(key),
                    causes: Causes::default(),
                    attempt: 1,
                    waited: None,
                },
                ["wrote", controller, key, kind, other, rv] => TraceEvent::Wrote {
                    controller: controller.into(),
                    reconciling: name(key),
                    kind: kind.into(),
                    key: name(other),
                    resource_version: (rv != "-").then(|| rv.to_string()),
                },
                ["end", controller, key] => TraceEvent::Finished {
                    controller: controller.into(),
                    key: name(key),
                    result: "success",
                    took: Duration::ZERO,
                    requeue_after: None,
                    error: None,
                },
                _ => panic!("no such step: {step}"),
            });
            // The index reads each record once, however often it is called.
            trace.timeline(&ObjectKey::cluster(key));
        }
        let timeline = trace.timeline(&ObjectKey::cluster(key)).to_string();
        assert_eq!(timeline.lines().collect::<Vec<_>>(), expected, "{script}");
    }

    #[tokio::test(start_paused = true)]
    async fn timeline_links_reconciles_from_write_to_write() {
        let script = "delivered Hero h 1 · queued hero h by Hero h 1 · start hero h · \
                      wrote hero h Set s 2 · end hero h · \
                      delivered Set s 2 · queued set s by Set s 2 · start set s · \
                      wrote set s Pod p 3 · end set s · \
                      delivered Other o 4 · queued other o by Other o 4 · start other o · \
                      end other o";
        check(
            script,
            "s",
            &[
                "#3 hero reconciled h: success after 0ns",
                "  because #1 Hero h updated at 1",
                "  wrote #4 Set s at 2",
                "#8 set reconciled s: success after 0ns",
                "  because #6 Set s updated at 2, written by hero for h",
                "  wrote #9 Pod p at 3",
            ],
        );
        check(
            script,
            "o",
            &[
                "#13 other reconciled o: success after 0ns",
                "  because #11 Other o updated at 4",
            ],
        );
        check(script, "missing", &[]);
    }

    #[tokio::test(start_paused = true)]
    async fn event_delivered_before_the_response_is_linked() {
        check(
            "start hero h · delivered Pod p 2 · queued pod p by Pod p 2 · start pod p · \
             wrote hero h Pod p 2",
            "p",
            &[
                "#1 hero reconciled h: still running",
                "  wrote #5 Pod p at 2",
                "#4 pod reconciled p: still running",
                "  because #2 Pod p updated at 2, written by hero for h",
            ],
        );
    }

    #[tokio::test(start_paused = true)]
    async fn deletion_is_linked_to_the_nearest_delete() {
        check(
            "start a x · wrote a x Pod p - · end a x · delivered Pod p 1 deleted · \
             delivered Pod p 5 · start b y · wrote b y Pod p - · delivered Pod p 5 deleted · \
             queued pod p by Pod p 5 · start pod p",
            "p",
            &[
                "#6 b reconciled y: still running",
                "  deleted #7 Pod p",
                "#10 pod reconciled p: still running",
                "  because #8 Pod p deleted at 5, written by b for y",
            ],
        );
    }

    #[tokio::test(start_paused = true)]
    async fn change_during_a_reconcile_belongs_to_the_next_one() {
        check(
            "start pod p · delivered Pod p 2 · queued pod p by Pod p 2 · \
             queued pod p by Timer t - · end pod p · start pod p",
            "p",
            &[
                "#1 pod reconciled p: success after 0ns",
                "#6 pod reconciled p: still running",
                "  because #2 Pod p updated at 2",
                "  because of Timer t",
            ],
        );
    }
}
