//! ServiceAccounts: references to secrets keep only their names.
//! Mirrors `ValidateServiceAccount` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::json_ext::{JsonDefaults, JsonExt};
use bellerophon_codec::object::Object;
use serde_json::json;

use super::{DeleteAnswer, Strategy};

const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

/// The strategy of ServiceAccounts. Mirrors `pkg/registry/core/serviceaccount`.
pub const SERVICE_ACCOUNT: Strategy = Strategy {
    prepare_create: clean_references,
    prepare_update: |new, _| clean_references(new),
    warnings,
    delete_answer: DeleteAnswer::Object,
    ..Strategy::PLAIN
};

fn clean_references(account: &mut Object) {
    for secret in account.body.maps_mut("secrets") {
        let name = secret.text("name").to_owned();
        secret.clear();
        if !name.is_empty() {
            secret.insert("name".into(), json!(name));
        }
    }
}

fn warnings(new: &Object, old: Option<&Object>) -> Vec<String> {
    let had = old.is_some_and(|old| old.meta.annotations.contains_key(MOUNTABLE));
    if had || !new.meta.annotations.contains_key(MOUNTABLE) {
        return Vec::new();
    }
    vec![format!(
        "metadata.annotations[{MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::create;

    #[test]
    fn references_keep_only_names() {
        let (account, _) = create(
            &SERVICE_ACCOUNT,
            json!({"secrets": [{"name": "a", "namespace": "other", "uid": "1"}]}),
        );
        assert_eq!(account.body["secrets"], json!([{"name": "a"}]));
    }
}
