//! Pod disruption budgets that preemption must respect.

use std::sync::Arc;

use bellerophon::informer::Lister;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{Selector, SelectorExt};

use super::pod_info::PodInfo;

/// Lists pod disruption budgets.
pub(crate) trait PodDisruptionBudgets {
    fn list(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>>;
}

impl PodDisruptionBudgets for Lister<PodDisruptionBudget> {
    fn list(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.in_namespace(namespace)
    }
}

/// For each pod, whether its eviction violates a budget if the pods are evicted in this order.
/// Mirrors `filterPodsWithPDBViolation`.
pub(crate) fn pdb_violations(
    pods: &[Arc<PodInfo>],
    budgets: &dyn PodDisruptionBudgets,
) -> Vec<bool> {
    let mut allowed: Vec<(Arc<PodDisruptionBudget>, i32)> = Vec::new();
    let mut violates_any = |pod: &Arc<PodInfo>| {
        let covering: Vec<_> = budgets
            .list(pod.namespace())
            .into_iter()
            .filter(|budget| covers(budget, pod))
            .collect();
        // As in filterPodsWithPDBViolation, every matching budget is decremented, even after one is
        // violated.
        let mut violates = false;
        for budget in covering {
            let at = allowed
                .iter()
                .position(|(known, _)| known.metadata.uid == budget.metadata.uid)
                .unwrap_or_else(|| {
                    let disruptions_allowed = budget
                        .status
                        .as_ref()
                        .and_then(|status| status.disruptions_allowed)
                        .unwrap_or_default();
                    allowed.push((budget, disruptions_allowed));
                    allowed.len() - 1
                });
            // Earlier victims of the list use up the budget.
            allowed[at].1 -= 1;
            violates |= allowed[at].1 < 0;
        }
        violates
    };
    pods.iter().map(&mut violates_any).collect()
}

/// Whether a budget selects a pod that it does not count as disrupted already.
fn covers(budget: &PodDisruptionBudget, pod: &PodInfo) -> bool {
    let disrupted = budget
        .status
        .as_ref()
        .and_then(|status| status.disrupted_pods.as_ref());
    // Pods without labels match no budget, not even one with an empty selector.
    if pod.labels.is_empty() || disrupted.is_some_and(|pods| pods.contains_key(pod.key.name())) {
        return false;
    }
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
    selector
        .and_then(|selector| Selector::try_from(selector).ok())
        .is_some_and(|selector| selector.matches(&pod.labels))
}
