//! Default service accounts: every namespace has an account that pods run as unless they say otherwise.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::each_namespace::{Standard, keep};
use crate::context::{Context, Loop};

/// The loop, under its upstream name.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let repair = |_: &mut ServiceAccount, _: &ServiceAccount| {};
    keep(
        ctx,
        Standard {
            controller: "serviceaccount-controller",
            name: "default",
            fresh: ServiceAccount::default(),
            repair,
        },
    )
}
