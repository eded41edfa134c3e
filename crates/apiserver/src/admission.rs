//! Admission: what the cluster as a whole demands of a request, after it is decoded and before it is stored.

use crate::{api::Api, error::ApiError, object::Object, verbs::Call};

impl Api {
    /// Changes or refuses an object that a client writes; `old` is the stored one.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) async fn admit(&self, _call: &Call, _object: &mut Object, _old: Option<&Object>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Refuses the deletion of what the cluster needs.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) fn admit_delete(&self, _call: &Call) -> Result<(), ApiError> {
        Ok(())
    }
}
