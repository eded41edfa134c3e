//! POST of an Eviction: a pod is deleted if its PodDisruptionBudgets allow that.
//! Guarantees: a budget is decremented before the pod is deleted, and never for a dry run.
//! Mirrors `EvictionREST.Create` in `pkg/registry/core/pod/storage`.

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::FieldError,
    json_ext::JsonExt,
};
use bellerophon_codec::{body::Expected, object::Object};
use bellerophon_resources::kinds::{self, Verdict};
use bellerophon_storage::{Range, Scope};

use super::read_as;
use crate::{
    admission::Operation,
    api::Api,
    http::query::WriteOptions,
    registry::Resource,
    verbs::{Call, Content, Reply, create::settle_namespace},
    write::{self, Change, DeleteOptions, Written, check_preconditions},
};

/// How often an eviction is evaluated again when pod or budget change meanwhile.
const ATTEMPTS_MAX: usize = 20;

/// Evicts the pod that the path names.
///
/// # Errors
/// A body that cannot be read, a budget that allows no disruption, a precondition that does not
/// hold.
pub(super) async fn create(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let create_options = WriteOptions::read(&call.query, "CreateOptions", false)?;
    let mut expected =
        Expected::of("policy", "v1", "Eviction").expect("the table of types has evictions");
    expected.also = &["v1beta1"];
    let mut eviction = read_as(call, &expected, &create_options)?;
    settle_namespace(call, &mut eviction)?;
    if eviction.meta.name != call.target.name {
        return Err(ApiError::BadRequest(
            "name in URL does not match name in Eviction object".into(),
        ));
    }
    let attributes = call.attributes();
    let dry_run = create_options.dry_run;
    let operation = Operation::Create;
    write::admit(api, &attributes, operation, dry_run, &mut eviction, None).await?;
    let mut options = delete_options(&eviction)?;
    options.dry_run |= create_options.dry_run;
    evict(api, call, &options).await?;
    Ok(Reply::created(Content::Document(kinds::binding::answer())))
}

fn delete_options(eviction: &Object) -> Result<DeleteOptions, ApiError> {
    let options = eviction
        .body
        .field("deleteOptions")
        .as_object()
        .cloned()
        .unwrap_or_default();
    if options.is_true("ignoreStoreReadErrorWithClusterBreakingPotential") {
        let at = "deleteOptions.ignoreStoreReadErrorWithClusterBreakingPotential";
        let error = FieldError::invalid(
            at,
            true,
            "can not be set for pod eviction, try after removing the option",
        );
        let kind = GroupKind::new("policy", "Eviction");
        return Err(ApiError::Invalid {
            kind,
            name: eviction.meta.name.clone(),
            errors: vec![error],
        });
    }
    DeleteOptions::from_map(&options)
}

async fn evict(api: &Api, call: &Call, options: &DeleteOptions) -> Result<(), ApiError> {
    let pods = &call.target.resource;
    let budgets = api
        .registry
        .catalog()
        .find("policy", "v1", "poddisruptionbudgets")
        .expect("budgets are built in");
    let mut last = ApiError::modified(pods.group_resource(), call.target.name.as_str());
    for _ in 0..ATTEMPTS_MAX {
        let stored = api
            .store
            .get(&pods.collection, &call.target.key())
            .ok_or_else(|| call.target.not_found())?;
        let pod = pods.read(&stored);
        let (budget, unchanged) = match kinds::evict(
            &pod,
            &budgets_of(api, &budgets, &pod.meta.namespace),
            api.clock.now(),
        ) {
            Verdict::Refused(error) => return Err(error),
            Verdict::Allowed { budget, unchanged } => (budget, unchanged),
        };
        if let Some(budget) = budget.filter(|_| !options.dry_run) {
            match take_disruption(api, &budgets, *budget).await {
                Err(error @ ApiError::Conflict { .. }) => {
                    last = error;
                    continue;
                }
                outcome => outcome?,
            }
        }
        let mut options = options.clone();
        let has_precondition = options.preconditions.resource_version.is_some();
        if unchanged && !has_precondition {
            options.preconditions.resource_version = Some(pod.meta.resource_version.clone());
        }
        match mark_and_delete(api, call, options).await {
            // The pod changed after it was evaluated: it is evaluated again.
            Err(error @ ApiError::Conflict { .. }) if unchanged && !has_precondition => {
                last = error
            }
            outcome => return outcome,
        }
    }
    Err(last)
}

fn budgets_of(api: &Api, budgets: &Resource, namespace: &str) -> Vec<Object> {
    let range = Range::all_of(Scope::Namespace(namespace.to_owned()));
    let listing = api
        .store
        .list(&budgets.collection, &range, None)
        .expect("the newest state is always kept");
    listing
        .objects
        .iter()
        .map(|stored| budgets.read(stored))
        .collect()
}

/// Stores the budget with one disruption less, unless another client changed it.
async fn take_disruption(api: &Api, budgets: &Resource, budget: Object) -> Result<(), ApiError> {
    let key = bellerophon_storage::ObjectKey::new(&budget.meta.namespace, &budget.meta.name);
    write::update(api, budgets, &key, Change::status(), false, None, |_| {
        Ok(budget.clone())
    })
    .await
    .map(drop)
}

/// Adds the condition DisruptionTarget to the pod's status, then deletes it.
async fn mark_and_delete(
    api: &Api,
    call: &Call,
    mut options: DeleteOptions,
) -> Result<(), ApiError> {
    let pods = &call.target.resource;
    let key = call.target.key();
    let now = api.clock.now();
    if !options.dry_run {
        let wanted = options.preconditions.clone();
        let marked = write::update(api, pods, &key, Change::server_side(), false, None, |pod| {
            let mut pod = pod.cloned().ok_or_else(|| call.target.not_found())?;
            check_preconditions(pods, &pod, &wanted)?;
            kinds::mark_evicted(&mut pod, now);
            Ok(pod)
        })
        .await?;
        if let (Some(version), Written::Stored(stored)) =
            (&mut options.preconditions.resource_version, &marked.written)
        {
            *version = stored.revision.to_string();
        }
    }
    write::delete(api, pods, &key, &options).await.map(drop)
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn options_of_an_eviction_are_those_of_a_delete() {
        let read = |options: Value| {
            delete_options(&object(
                json!({"metadata": {"name": "p"}, "deleteOptions": options}),
            ))
        };
        let options = read(
            json!({"gracePeriodSeconds": 3, "dryRun": ["All"], "preconditions": {"uid": "u"}}),
        )
        .expect("good options");
        assert_eq!(options.grace_period_seconds, Some(3));
        assert!(options.dry_run);
        assert_eq!(options.preconditions.uid.as_deref(), Some("u"));
        assert!(read(json!(null)).is_ok_and(|o| !o.dry_run));
        assert!(matches!(
            read(json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true})),
            Err(ApiError::Invalid { .. })
        ));
    }
}
