//! Certificates of the webhook server: signed in memory by an authority in a Secret, or read from
//! files.

pub(crate) mod authority; // what signs, and its rotation
pub(crate) mod files; // certificates of others
pub(crate) mod secret; // where the authority is kept, and the certificate of this replica
