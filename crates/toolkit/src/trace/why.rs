//! Why: from a reconcile back to the changes that queued it, to the writes that made them, and to who wrote those.
//!
//! In: records in order. Out: the reconciles of one key, and all others whose writes led to them.
//! Holds: each reconcile appears once; time and memory are bounded by the number of records.
//!
//! Pure: it looks at records only.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use super::record::{TraceEvent, TraceRecord};
use crate::{CauseEvent, ObjectKey};

type Record = Arc<TraceRecord>;

/// One change that queued a key.
#[derive(Clone, Debug)]
pub struct Because {
    /// The key was put into the queue ([`TraceEvent::Enqueued`]).
    pub enqueued: Record,
    /// A watch had told of a change ([`TraceEvent::Noticed`]); `None` if nothing changed, or if it is forgotten.
    pub noticed: Option<Record>,
    /// The write that made the change ([`TraceEvent::Wrote`]); `None` if somebody else made it, or if it is forgotten.
    pub written: Option<Record>,
}

/// One reconcile: why it was, and what it did.
#[derive(Clone, Debug)]
pub struct TracedReconcile {
    /// The controller.
    pub controller: Arc<str>,
    /// The object.
    pub key: ObjectKey,
    /// Its start ([`TraceEvent::Started`]).
    pub started: Record,
    /// Its end ([`TraceEvent::Ended`]); `None` while it runs.
    pub ended: Option<Record>,
    /// What queued the key since its last reconcile by this controller.
    pub because: Vec<Because>,
    /// Its writes ([`TraceEvent::Wrote`], [`TraceEvent::Called`]).
    pub wrote: Vec<Record>,
}

/// Reconciles of one key and of all keys whose writes led to them, in the order they began. Prints as a story.
#[derive(Clone, Debug, Default)]
pub struct Why {
    /// In the order they began.
    pub reconciles: Vec<TracedReconcile>,
}

/// An object of a kind, in a version.
type Version = (Arc<str>, ObjectKey, Option<String>);

/// What the records say, found by what links them.
#[derive(Default)]
struct Links {
    reconciles: Vec<TracedReconcile>,
    /// Enqueued by controller and key, since the last start.
    waiting: HashMap<(Arc<str>, ObjectKey), Vec<Because>>,
    /// The reconcile under way.
    running: HashMap<(Arc<str>, ObjectKey), usize>,
    /// The newest record of a change.
    noticed: HashMap<Version, Record>,
    /// Writes, and the reconciles that made them. Deletions have no version, so there may be several.
    written: HashMap<Version, Vec<(Record, Option<usize>)>>,
}

/// Finds the reconciles of `key` and what led to them.
pub(super) fn link(records: &[Record], key: &ObjectKey) -> Why {
    let mut links = Links::default();
    records.iter().for_each(|record| links.read(record));
    links.trace_back(key)
}

impl Links {
    fn read(&mut self, record: &Record) {
        match &record.event {
            // What a cache saw, a controller was told as well.
            TraceEvent::Listed { .. } | TraceEvent::Cached { .. } => {}
            TraceEvent::Noticed {
                kind,
                key,
                resource_version,
                ..
            } => {
                self.noticed.insert(
                    (kind.clone(), key.clone(), resource_version.clone()),
                    record.clone(),
                );
            }
            TraceEvent::Enqueued {
                controller,
                key,
                because_kind,
                because_key,
                because_version,
            } => {
                let version = (
                    because_kind.clone(),
                    because_key.clone(),
                    because_version.clone(),
                );
                let because = Because {
                    enqueued: record.clone(),
                    noticed: self.noticed.get(&version).cloned(),
                    written: None,
                };
                self.waiting
                    .entry((controller.clone(), key.clone()))
                    .or_default()
                    .push(because);
            }
            TraceEvent::Started {
                controller, key, ..
            } => {
                let who = (controller.clone(), key.clone());
                let because = self.waiting.remove(&who).unwrap_or_default();
                self.running.insert(who, self.reconciles.len());
                self.reconciles.push(TracedReconcile {
                    controller: controller.clone(),
                    key: key.clone(),
                    started: record.clone(),
                    ended: None,
                    because,
                    wrote: Vec::new(),
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
                    self.reconciles[by].wrote.push(record.clone());
                }
                self.written
                    .entry((kind.clone(), key.clone(), resource_version.clone()))
                    .or_default()
                    .push((record.clone(), by));
            }
            TraceEvent::Called {
                controller,
                reconciling,
                ..
            } => {
                if let Some(by) = self.running.get(&(controller.clone(), reconciling.clone())) {
                    self.reconciles[*by].wrote.push(record.clone());
                }
            }
            TraceEvent::Ended {
                controller, key, ..
            } => {
                if let Some(which) = self.running.remove(&(controller.clone(), key.clone())) {
                    self.reconciles[which].ended = Some(record.clone());
                }
            }
        }
    }

    /// The write that a change came from. Its record may be newer: the watch can be faster than the answer.
    fn origin(&self, noticed: &TraceRecord) -> Option<&(Record, Option<usize>)> {
        let TraceEvent::Noticed {
            kind,
            key,
            resource_version,
            event,
        } = &noticed.event
        else {
            return None;
        };
        let version = if *event == CauseEvent::Deleted {
            None
        } else {
            Some(resource_version.clone()?)
        };
        let writes = self.written.get(&(kind.clone(), key.clone(), version))?;
        writes
            .iter()
            .min_by_key(|(write, _)| write.sequence.abs_diff(noticed.sequence))
    }

    fn trace_back(mut self, key: &ObjectKey) -> Why {
        let mut found: BTreeSet<usize> = (0..self.reconciles.len())
            .filter(|which| self.reconciles[*which].key == *key)
            .collect();
        let mut unread: Vec<usize> = found.iter().copied().collect();
        while let Some(which) = unread.pop() {
            let mut because = std::mem::take(&mut self.reconciles[which].because);
            for because in &mut because {
                let origin = because
                    .noticed
                    .as_deref()
                    .and_then(|noticed| self.origin(noticed))
                    .cloned();
                if let Some(by) = origin.as_ref().and_then(|(_, by)| *by)
                    && found.insert(by)
                {
                    unread.push(by);
                }
                because.written = origin.map(|(write, _)| write);
            }
            self.reconciles[which].because = because;
        }
        let all = self.reconciles.into_iter().enumerate();
        Why {
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
            } => (*attempt, causes.as_str()),
            _ => (1, ""),
        };
        write!(
            f,
            "#{} {} reconciled {}",
            self.started.sequence, self.controller, self.key
        )?;
        if attempt > 1 {
            write!(f, ", attempt {attempt}")?;
        }
        match self.ended.as_ref().map(|ended| &ended.event) {
            Some(TraceEvent::Ended { result, took, .. }) => write!(f, ": {result} after {took:?}")?,
            _ => f.write_str(": still running")?,
        }
        // A retry and a time that has come are causes without a change.
        if self.because.is_empty() && !causes.is_empty() {
            write!(f, "\n  because {causes}")?;
        }
        for because in &self.because {
            match (&because.noticed, &because.enqueued.event) {
                (Some(noticed), _) => write!(f, "\n  because {noticed}")?,
                (
                    None,
                    TraceEvent::Enqueued {
                        because_kind,
                        because_key,
                        ..
                    },
                ) => {
                    write!(f, "\n  because of {because_kind} {because_key}")?;
                }
                _ => {}
            }
            if let Some(TraceEvent::Wrote {
                controller,
                reconciling,
                ..
            }) = because.written.as_ref().map(|written| &written.event)
            {
                write!(f, ", written by {controller} for {reconciling}")?;
            }
        }
        for wrote in &self.wrote {
            match &wrote.event {
                TraceEvent::Wrote {
                    kind,
                    key,
                    resource_version: Some(version),
                    ..
                } => {
                    write!(f, "\n  wrote #{} {kind} {key} at {version}", wrote.sequence)?;
                }
                TraceEvent::Wrote {
                    kind,
                    key,
                    resource_version: None,
                    ..
                } => write!(f, "\n  deleted #{} {kind} {key}", wrote.sequence)?,
                TraceEvent::Called {
                    kind, key, what, ..
                } => write!(f, "\n  wrote #{} {what} of {kind} {key}", wrote.sequence)?,
                _ => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Why {
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
    use crate::TraceBus;

    /// Records `noticed Hero h 1 added`, `queued hero h by Hero h 1`, `start hero h`, `wrote hero h Pod p 2`,
    /// `deleted hero h Pod p`, `end hero h`, separated by `·`, and tells why `key` was reconciled.
    fn check(script: &str, key: &str, expected: &[&str]) {
        let bus = TraceBus::new(100);
        for step in script.split(" · ") {
            let name = |name: &str| ObjectKey::cluster(name);
            let version = |version: &str| Some(version.to_string());
            bus.record(|| match step.split(' ').collect::<Vec<_>>()[..] {
                ["noticed", kind, key, rv, "deleted"] => TraceEvent::Noticed {
                    kind: kind.into(),
                    key: name(key),
                    resource_version: version(rv),
                    event: CauseEvent::Deleted,
                },
                ["noticed", kind, key, rv] => TraceEvent::Noticed {
                    kind: kind.into(),
                    key: name(key),
                    resource_version: version(rv),
                    event: CauseEvent::Updated,
                },
                ["queued", controller, key, "by", kind, other, rv] => TraceEvent::Enqueued {
                    controller: controller.into(),
                    key: name(key),
                    because_kind: kind.into(),
                    because_key: name(other),
                    because_version: (rv != "-").then(|| rv.to_string()),
                },
                ["start", controller, key] => TraceEvent::Started {
                    controller: controller.into(),
                    key: name(key),
                    causes: String::new(),
                    attempt: 1,
                },
                ["wrote", controller, key, kind, other, rv] => TraceEvent::Wrote {
                    controller: controller.into(),
                    reconciling: name(key),
                    kind: kind.into(),
                    key: name(other),
                    resource_version: (rv != "-").then(|| rv.to_string()),
                },
                ["end", controller, key] => TraceEvent::Ended {
                    controller: controller.into(),
                    key: name(key),
                    result: "success",
                    took: Duration::ZERO,
                },
                _ => panic!("no such step: {step}"),
            });
        }
        let why = bus.why(&ObjectKey::cluster(key)).to_string();
        assert_eq!(why.lines().collect::<Vec<_>>(), expected, "{script}");
    }

    #[tokio::test(start_paused = true)]
    async fn chain_leads_from_write_to_write() {
        let script = "noticed Hero h 1 · queued hero h by Hero h 1 · start hero h · wrote hero h Set s 2 · end hero h · \
                      noticed Set s 2 · queued set s by Set s 2 · start set s · wrote set s Pod p 3 · end set s · \
                      noticed Other o 4 · queued other o by Other o 4 · start other o · end other o";
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
        check(script, "nobody", &[]);
    }

    #[tokio::test(start_paused = true)]
    async fn event_that_outran_the_answer_is_linked() {
        check(
            "start hero h · noticed Pod p 2 · queued pod p by Pod p 2 · start pod p · wrote hero h Pod p 2",
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
            "start a x · wrote a x Pod p - · end a x · noticed Pod p 1 deleted · noticed Pod p 5 · start b y · wrote b y Pod p - · \
             noticed Pod p 5 deleted · queued pod p by Pod p 5 · start pod p",
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
    async fn what_is_queued_while_it_runs_belongs_to_the_next_run() {
        check(
            "start pod p · noticed Pod p 2 · queued pod p by Pod p 2 · queued pod p by Timer t - · end pod p · start pod p",
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
