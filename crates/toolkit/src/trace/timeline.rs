//! Timeline: links a reconcile to the changes that enqueued it, to the writes that caused them,
//! and to the reconciles that wrote those.
//!
//! In: records in order. Out: the reconciles of one key, and all others whose writes led to them.
//! Guarantees: each reconcile appears once; time and memory are bounded by the number of records.
//!
//! Pure: it reads records only.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use super::record::{TraceEvent, TraceRecord};
use crate::ObjectKey;
use crate::queue::CauseEvent;

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
    /// The write that caused the change ([`TraceEvent::Wrote`]); `None` if it was not written by a
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
    /// What enqueued the key since its previous reconcile by this controller.
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

/// Kind, key and resource version of an object.
type Version = (Arc<str>, ObjectKey, Option<String>);

/// The records read so far, indexed by what links them.
#[derive(Default)]
struct Links {
    reconciles: Vec<TracedReconcile>,
    /// Enqueued by controller and key, since the last start.
    enqueued: HashMap<(Arc<str>, ObjectKey), Vec<CauseLink>>,
    /// The index of the running reconcile of a controller and key.
    running: HashMap<(Arc<str>, ObjectKey), usize>,
    /// The newest record of a change.
    delivered: HashMap<Version, Record>,
    /// Writes and the reconciles that sent them. Deletes have no version, so there may be several.
    written: HashMap<Version, Vec<(Record, Option<usize>)>>,
}

/// Links the reconciles of `key` to what led to them.
pub(super) fn link(records: &[Record], key: &ObjectKey) -> Timeline {
    let mut links = Links::default();
    records.iter().for_each(|record| links.read(record));
    links.trace_back(key)
}

impl Links {
    fn read(&mut self, record: &Record) {
        match &record.event {
            // Changes of a cache are linked by their delivery to the controller.
            TraceEvent::Accepted(_) | TraceEvent::Listed { .. } | TraceEvent::Cached { .. } => {}
            TraceEvent::Delivered {
                kind,
                key,
                resource_version,
                ..
            } => {
                self.delivered.insert(
                    (kind.clone(), key.clone(), resource_version.clone()),
                    record.clone(),
                );
            }
            TraceEvent::Enqueued {
                controller,
                key,
                cause_kind,
                cause_key,
                cause_version,
            } => {
                let version = (cause_kind.clone(), cause_key.clone(), cause_version.clone());
                let cause = CauseLink {
                    enqueued: record.clone(),
                    delivered: self.delivered.get(&version).cloned(),
                    written: None,
                };
                self.enqueued
                    .entry((controller.clone(), key.clone()))
                    .or_default()
                    .push(cause);
            }
            TraceEvent::Started {
                controller, key, ..
            } => {
                let running = (controller.clone(), key.clone());
                let causes = self.enqueued.remove(&running).unwrap_or_default();
                self.running.insert(running, self.reconciles.len());
                self.reconciles.push(TracedReconcile {
                    controller: controller.clone(),
                    key: key.clone(),
                    started: record.clone(),
                    finished: None,
                    causes,
                    writes: Vec::new(),
                });
            }
            TraceEvent::Wrote {
                controller,
                reconciling,
                kind,
                key,
                resource_version,
            } => {
                let by = self
                    .running
                    .get(&(controller.clone(), reconciling.clone()))
                    .copied();
                if let Some(by) = by {
                    self.reconciles[by].writes.push(record.clone());
                }
                self.written
                    .entry((kind.clone(), key.clone(), resource_version.clone()))
                    .or_default()
                    .push((record.clone(), by));
            }
            TraceEvent::SubresourceWritten {
                controller,
                reconciling,
                ..
            } => {
                if let Some(by) = self.running.get(&(controller.clone(), reconciling.clone())) {
                    self.reconciles[*by].writes.push(record.clone());
                }
            }
            TraceEvent::Finished {
                controller, key, ..
            } => {
                if let Some(which) = self.running.remove(&(controller.clone(), key.clone())) {
                    self.reconciles[which].finished = Some(record.clone());
                }
            }
        }
    }

    /// The write that caused a change. Its record may be newer: a watch event can arrive before the
    /// response to the write.
    fn origin(&self, delivered: &TraceRecord) -> Option<&(Record, Option<usize>)> {
        let TraceEvent::Delivered {
            kind,
            key,
            resource_version,
            event,
        } = &delivered.event
        else {
            return None;
        };
        // The response to a delete has no version, while the event of the deletion has one.
        let version = if *event == CauseEvent::Deleted {
            None
        } else {
            Some(resource_version.clone()?)
        };
        let writes = self.written.get(&(kind.clone(), key.clone(), version))?;
        writes
            .iter()
            // Of several deletes of one name, the closest in time.
            .min_by_key(|(write, _)| write.sequence.abs_diff(delivered.sequence))
    }

    fn trace_back(mut self, key: &ObjectKey) -> Timeline {
        let mut found: BTreeSet<usize> = (0..self.reconciles.len())
            .filter(|which| self.reconciles[*which].key == *key)
            .collect();
        let mut pending: Vec<usize> = found.iter().copied().collect();
        while let Some(which) = pending.pop() {
            let mut causes = std::mem::take(&mut self.reconciles[which].causes);
            for cause in &mut causes {
                let origin = cause
                    .delivered
                    .as_deref()
                    .and_then(|delivered| self.origin(delivered))
                    .cloned();
                if let Some(by) = origin.as_ref().and_then(|(_, by)| *by)
                    // Each reconcile is visited once, so cycles of controllers that write to each
                    // other end.
                    && found.insert(by)
                {
                    pending.push(by);
                }
                cause.written = origin.map(|(write, _)| write);
            }
            self.reconciles[which].causes = causes;
        }
        let all = self.reconciles.into_iter().enumerate();
        Timeline {
            reconciles: all
                .filter(|(which, _)| found.contains(which))
                .map(|(_, reconcile)| reconcile)
                .collect(),
        }
    }
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
            if let Some(TraceEvent::Wrote {
                controller,
                reconciling,
                ..
            }) = cause.written.as_ref().map(|written| &written.event)
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
    use crate::queue::Causes;
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
