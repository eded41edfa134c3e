//! Backups: one snapshot file each, and schedules that create and delete them.
//!
//! ```text
//! ScheduledBackup ─→ Backup ─→ Pod (`bellerophon store backup`) ─→ file on the backup claim
//! ```
//!
//! Guarantees: a Backup is `Completed` only after its checksum was verified; it is `Completed` or
//! `Failed` within its timeout, and that never changes; the file is deleted with the Backup.

mod plan; // the next step of a Backup
mod reconciler; // reads and writes of both kinds
mod schedule; // which Backups a ScheduledBackup creates and deletes

pub(crate) use reconciler::{BackupReconciler, ScheduleReconciler};
