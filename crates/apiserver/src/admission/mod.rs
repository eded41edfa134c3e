//! Admission: what the cluster as a whole demands of a request, after it is decoded and before it is checked and stored.
//! In: a client's call and the object it writes. Out: the object completed, or a refusal.
//! Holds: the order of the list in [`Api::admit`] is the order of the real server; what the server writes by itself does not pass here.

mod namespace; // objects live in namespaces that exist and stay
mod policy; // nobody grants more than they hold

use crate::{api::Api, error::ApiError, object::Object, verbs::Call};

impl Api {
    /// Changes or refuses an object that a client writes; `old` is the stored one.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) async fn admit(&self, call: &Call, object: &mut Object, old: Option<&Object>) -> Result<(), ApiError> {
        let request = Admission { api: self, call, old };
        namespace::admit(&request, object)?;
        policy::admit(&request, object)
    }

    /// Refuses the deletion of what the cluster needs.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn admit_delete(&self, call: &Call) -> Result<(), ApiError> {
        namespace::admit_delete(call)
    }
}

/// What a check looks at besides the object.
struct Admission<'a> {
    api: &'a Api,
    call: &'a Call,
    /// The stored object; `None` when it is made.
    old: Option<&'a Object>,
}
