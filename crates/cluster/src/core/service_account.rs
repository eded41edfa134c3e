//! ServiceAccounts controller: every namespace has a ServiceAccount named `default`.

use k8s_openapi::api::core::v1::ServiceAccount;

use bellerophon::manager::Manager;

use super::default_object::DefaultObject;

/// Adds the controller, under its upstream name.
pub(crate) fn setup(mgr: &mut Manager) {
    let default_account = DefaultObject {
        controller: "serviceaccount-controller",
        name: "default",
        desired: ServiceAccount::default(),
        // Mirrors ServiceAccountsController.syncNamespace: an existing account is never updated.
        update: |_, _| {},
    };
    default_account.setup(mgr);
}
