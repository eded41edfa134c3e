//! Admission of objects that are not stored as they are sent: reviews, bindings, evictions, scales
//! and options of connections.

use crate::{admission, admission::Attributes, admission::Operation, admission::Target, api::Api};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;

/// Lets webhooks and policies see such an object, and change it.
///
/// # Errors
/// Their refusal.
pub(crate) async fn admit(
    api: &Api,
    attributes: &Attributes<'_>,
    operation: Operation,
    dry_run: bool,
    object: &mut Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let target = Target {
        operation,
        options: None,
        dry_run,
    };
    admission::admit_virtual(api, attributes, target, object, old).await
}
