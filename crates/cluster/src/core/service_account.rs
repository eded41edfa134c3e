//! ServiceAccounts controller: every namespace has a ServiceAccount named `default`.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::default_object::{DefaultObject, default_object_controller};
use crate::context::{Context, Loop};

/// The controller, under its upstream name.
pub(crate) fn controller(ctx: &Context) -> Loop {
    // Mirrors ServiceAccountsController.syncNamespace: an existing account is never updated.
    let update = |_: &mut ServiceAccount, _: &ServiceAccount| {};
    default_object_controller(
        ctx,
        DefaultObject {
            controller: "serviceaccount-controller",
            name: "default",
            desired: ServiceAccount::default(),
            update,
        },
    )
}
