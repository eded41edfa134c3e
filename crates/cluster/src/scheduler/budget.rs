//! Budgets: which pods may be ended without breaking a promise.

use std::sync::Arc;

use bellerophon::Lister;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{Selector, SelectorExt};

use super::pod_info::PodInfo;

/// Tells which disruption budgets there are.
pub(crate) trait Budgets {
    /// The budgets of a namespace.
    fn of(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>>;
}

impl Budgets for Lister<PodDisruptionBudget> {
    fn of(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.in_namespace(namespace)
    }
}

/// For each of the pods, whether ending all of them, in this order, breaks a budget by ending it.
pub(crate) fn violations(pods: &[Arc<PodInfo>], budgets: &dyn Budgets) -> Vec<bool> {
    let mut spent: Vec<(Arc<PodDisruptionBudget>, i32)> = Vec::new();
    let mut violates = |pod: &Arc<PodInfo>| {
        let concerned: Vec<_> = budgets
            .of(pod.namespace())
            .into_iter()
            .filter(|budget| covers(budget, pod))
            .collect();
        let mut violates = false;
        for budget in concerned {
            let at = spent
                .iter()
                .position(|(known, _)| known.metadata.uid == budget.metadata.uid)
                .unwrap_or_else(|| {
                    let allowed = budget
                        .status
                        .as_ref()
                        .and_then(|status| status.disruptions_allowed)
                        .unwrap_or_default();
                    spent.push((budget, allowed));
                    spent.len() - 1
                });
            spent[at].1 -= 1;
            violates |= spent[at].1 < 0;
        }
        violates
    };
    pods.iter().map(&mut violates).collect()
}

/// Whether a budget speaks of a pod that it does not count as disrupted already.
fn covers(budget: &PodDisruptionBudget, pod: &PodInfo) -> bool {
    let disrupted = budget
        .status
        .as_ref()
        .and_then(|status| status.disrupted_pods.as_ref());
    if pod.labels.is_empty() || disrupted.is_some_and(|pods| pods.contains_key(pod.key.name())) {
        return false;
    }
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
    selector
        .and_then(|selector| Selector::try_from(selector).ok())
        .is_some_and(|selector| selector.matches(&pod.labels))
}
