//! Invariants of the converged state: the desired objects exist and are ready, and no others.

use std::collections::BTreeSet;

use kube::{ResourceExt as _, api::DynamicObject};

use super::{
    driver::DesiredState,
    snapshot::{Snapshot, at, controller, describe, has_condition, number},
    workload::{
        JOBS_HISTORY_LIMIT, Kind, REVISION_HISTORY_LIMIT, WORKLOADS, Workload, WorkloadSpec,
    },
};

/// All violated invariants.
pub(super) fn violations(desired: &DesiredState, snapshot: &Snapshot) -> Vec<String> {
    let mut violations = Vec::new();
    desired.workloads.iter().for_each(|(workload, spec)| {
        violations.extend(workload_is_ready(*workload, *spec, snapshot))
    });
    desired
        .exposed
        .iter()
        .for_each(|workload| violations.extend(is_exposed(*workload, snapshot)));
    violations.extend(owners_exist(snapshot));
    violations.extend(
        snapshot
            .all()
            .filter_map(|(kind, object)| is_unexpected(desired, kind, object)),
    );
    violations.extend(
        orphaned_replica_sets(desired, snapshot).flat_map(|set| has_desired_pods(set, snapshot)),
    );
    violations.extend(nodes_are_ready(snapshot));
    violations.extend(volumes_are_claimed(snapshot));
    violations.extend(namespaces_have_default_objects(desired, snapshot));
    violations
}

/// A workload has exactly its desired pods, all ready.
fn workload_is_ready(workload: Workload, spec: WorkloadSpec, snapshot: &Snapshot) -> Vec<String> {
    let kind = workload.type_().1;
    let name = workload.name;
    let Some(object) = snapshot.get(kind, workload.namespace, name) else {
        return vec![format!("{workload:?} does not exist")];
    };
    let mut violations = Vec::new();
    let mut equal = |name: &str, actual: u64, expected: u64| {
        if actual != expected {
            violations.push(format!(
                "{}: {name} is {actual}, not {expected}",
                describe(kind, object)
            ));
        }
    };
    if !matches!(workload.kind, Kind::Job | Kind::CronJob) {
        equal(
            "observedGeneration",
            number(object, "/status/observedGeneration"),
            object.metadata.generation.unwrap_or(0) as u64,
        );
    }
    let count = match workload.kind {
        Kind::DaemonSet => snapshot
            .within("Node", "")
            .filter(|node| spec.count % 2 == 1 || is_in_first_zone(node))
            .count() as u64,
        _ => spec.count,
    };
    let counters: &[&str] = match workload.kind {
        Kind::Deployment => &[
            "/spec/replicas",
            "/status/replicas",
            "/status/updatedReplicas",
            "/status/readyReplicas",
            "/status/availableReplicas",
        ],
        Kind::ReplicaSet => &[
            "/spec/replicas",
            "/status/replicas",
            "/status/readyReplicas",
            "/status/availableReplicas",
        ],
        Kind::StatefulSet => &[
            "/spec/replicas",
            "/status/replicas",
            "/status/updatedReplicas",
            "/status/currentReplicas",
            "/status/readyReplicas",
        ],
        Kind::DaemonSet => &[
            "/status/desiredNumberScheduled",
            "/status/currentNumberScheduled",
            "/status/updatedNumberScheduled",
            "/status/numberReady",
            "/status/numberAvailable",
        ],
        Kind::Job => &["/status/succeeded"],
        Kind::CronJob => &[],
    };
    counters
        .iter()
        .for_each(|counter| equal(counter, number(object, counter), count));
    let pods = match workload.kind {
        Kind::Deployment => {
            let sets = snapshot.controlled_by("ReplicaSet", object);
            equal(
                "active ReplicaSets",
                sets.iter()
                    .filter(|set| number(set, "/spec/replicas") > 0)
                    .count() as u64,
                count.min(1),
            );
            let surplus = sets.len().saturating_sub(REVISION_HISTORY_LIMIT + 1);
            equal("surplus ReplicaSets", surplus as u64, 0);
            sets.into_iter()
                .flat_map(|set| snapshot.controlled_by("Pod", set))
                .collect()
        }
        _ => snapshot.controlled_by("Pod", object),
    };
    match workload.kind {
        Kind::Job => {
            equal(
                "conditions Complete",
                u64::from(has_condition(object, "Complete")),
                1,
            );
            equal("active", number(object, "/status/active"), 0);
            equal(
                "pods with finalizers",
                pods.iter()
                    .filter(|pod| !pod.finalizers().is_empty())
                    .count() as u64,
                0,
            );
        }
        Kind::CronJob => {
            let jobs = snapshot.controlled_by("Job", object);
            equal(
                "active Jobs",
                jobs.iter()
                    .filter(|job| !has_condition(job, "Complete"))
                    .count() as u64,
                0,
            );
            equal(
                "surplus Jobs",
                jobs.len().saturating_sub(JOBS_HISTORY_LIMIT) as u64,
                0,
            );
            equal(
                "active",
                at(object, "/status/active").as_array().map_or(0, Vec::len) as u64,
                0,
            );
        }
        _ => {
            equal("pods", pods.len() as u64, count);
            equal(
                "ready pods",
                pods.iter()
                    .filter(|pod| has_condition(pod, "Ready"))
                    .count() as u64,
                count,
            );
        }
    }
    if matches!(
        workload.kind,
        Kind::Deployment | Kind::StatefulSet | Kind::DaemonSet
    ) {
        let image = workload.image(spec);
        equal(
            "pods with the desired image",
            pods.iter()
                .filter(|pod| at(pod, "/spec/containers/0/image") == image.as_str())
                .count() as u64,
            count,
        );
    }
    if workload.kind == Kind::DaemonSet {
        let nodes: BTreeSet<_> = pods
            .iter()
            .map(|pod| at(pod, "/spec/nodeName").as_str())
            .collect();
        equal("nodes with a pod", nodes.len() as u64, count);
    }
    if matches!(workload.kind, Kind::StatefulSet | Kind::DaemonSet) {
        let revisions = snapshot.controlled_by("ControllerRevision", object).len();
        equal(
            "surplus revisions",
            revisions.saturating_sub(REVISION_HISTORY_LIMIT + 1) as u64,
            0,
        );
    }
    if workload.kind == Kind::StatefulSet {
        let names: BTreeSet<_> = pods.iter().map(|pod| pod.name_any()).collect();
        let missing = (0..count)
            .filter(|ordinal| !names.contains(&format!("{name}-{ordinal}")))
            .count();
        equal("missing ordinals", missing as u64, 0);
        equal(
            "revisions in use",
            u64::from(
                at(object, "/status/currentRevision") != at(object, "/status/updateRevision"),
            ) + 1,
            1,
        );
        let claims: Vec<_> = snapshot
            .within("PersistentVolumeClaim", workload.namespace)
            .filter(|claim| has_app_label(claim, name))
            .collect();
        let bound = claims
            .iter()
            .filter(|claim| at(claim, "/status/phase") == "Bound")
            .count() as u64;
        equal("claims that are not bound", claims.len() as u64 - bound, 0);
        if workload.deletes_claims() {
            // The claim of a pod that did not exist during the scale-down is owned by the set, as
            // upstream.
            let is_owned = |claim: &&&DynamicObject| {
                claim
                    .owner_references()
                    .iter()
                    .any(|owner| Some(&owner.uid) == object.metadata.uid.as_ref())
            };
            equal(
                "claims owned by the StatefulSet",
                claims.iter().filter(is_owned).count() as u64,
                claims.len() as u64,
            );
        }
        let has_claim = |ordinal: &u64| {
            claims
                .iter()
                .any(|claim| claim.name_any() == format!("data-{name}-{ordinal}"))
        };
        equal(
            "ordinals with a claim",
            (0..count).filter(has_claim).count() as u64,
            count,
        );
    }
    violations
}

/// The endpoints of a workload's Service are its ready pods, and its PodDisruptionBudget counts
/// them.
fn is_exposed(workload: Workload, snapshot: &Snapshot) -> Vec<String> {
    let namespace = workload.namespace;
    let name = workload.name;
    let ready = snapshot
        .within("Pod", namespace)
        .filter(|pod| has_app_label(pod, name) && has_condition(pod, "Ready"));
    let ready: BTreeSet<String> = ready
        .map(|pod| {
            at(pod, "/status/podIP")
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    let slices = snapshot.within("EndpointSlice", namespace).filter(|slice| {
        slice
            .labels()
            .get("kubernetes.io/service-name")
            .is_some_and(|s| s == name)
    });
    let endpoints =
        slices.flat_map(|slice| at(slice, "/endpoints").as_array().into_iter().flatten());
    let in_slices: BTreeSet<String> = endpoints
        .filter(|endpoint| endpoint["conditions"]["ready"] == true)
        .map(|endpoint| {
            endpoint["addresses"][0]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    let subsets = snapshot
        .get("Endpoints", namespace, name)
        .map(|object| at(object, "/subsets"))
        .and_then(|subsets| subsets.as_array());
    let addresses = subsets
        .into_iter()
        .flatten()
        .flat_map(|subset| subset["addresses"].as_array().into_iter().flatten());
    let in_endpoints: BTreeSet<String> = addresses
        .map(|address| address["ip"].as_str().unwrap_or_default().to_owned())
        .collect();
    let mut violations = Vec::new();
    for (name_of_list, actual) in [("slices", in_slices), ("endpoints", in_endpoints)] {
        if actual != ready {
            violations.push(format!(
                "service {namespace}/{name}: {name_of_list} have {actual:?}, ready are {ready:?}"
            ));
        }
    }
    let healthy = snapshot
        .get("PodDisruptionBudget", namespace, name)
        .map(|budget| number(budget, "/status/currentHealthy"));
    if workload.kind != Kind::CronJob
        && workload.kind != Kind::Job
        && healthy != Some(ready.len() as u64)
    {
        violations.push(format!(
            "budget {namespace}/{name}: {healthy:?} are healthy, ready are {ready:?}"
        ));
    }
    violations
}

/// All owners exist, and no object is terminating.
fn owners_exist(snapshot: &Snapshot) -> Vec<String> {
    let uids: BTreeSet<String> = snapshot
        .all()
        .filter_map(|(_, object)| object.uid())
        .collect();
    let mut violations = Vec::new();
    for (kind, object) in snapshot.all() {
        for owner in object
            .owner_references()
            .iter()
            .filter(|owner| !uids.contains(&owner.uid))
        {
            violations.push(format!(
                "{} has owner {} {}, which does not exist",
                describe(kind, object),
                owner.kind,
                owner.name
            ));
        }
        if object.metadata.deletion_timestamp.is_some() {
            violations.push(format!(
                "{} is terminating: {:?}",
                describe(kind, object),
                object.finalizers()
            ));
        }
    }
    violations
}

/// An object that is neither desired nor owned.
fn is_unexpected(
    desired: &DesiredState,
    kind: &'static str,
    object: &DynamicObject,
) -> Option<String> {
    let namespace = object.namespace()?;
    let name = object.name_any();
    let orphan_of = |app: &str| {
        desired
            .orphaned
            .iter()
            .find(|workload| workload.namespace == namespace && workload.name == app)
    };
    let app = object.labels().get("app").cloned().unwrap_or_default();
    let expected = match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "CronJob" => desired
            .workloads
            .keys()
            .any(|workload| is(*workload, kind, object)),
        "ReplicaSet" | "Job" | "Pod" | "ControllerRevision" if controller(object).is_some() => true,
        "ReplicaSet"
            if desired
                .workloads
                .keys()
                .any(|workload| is(*workload, kind, object)) =>
        {
            true
        }
        "Job" => {
            desired
                .workloads
                .keys()
                .any(|workload| is(*workload, kind, object))
                || (name.starts_with("tick-") && orphan_of("tick").is_some())
        }
        // A recreated owner adopts orphans, except a Job or CronJob.
        "ReplicaSet" | "Pod" | "ControllerRevision" => orphan_of(&app).is_some_and(|workload| {
            matches!(workload.kind, Kind::Job | Kind::CronJob)
                || !desired.workloads.contains_key(workload)
        }),
        "Service" | "PodDisruptionBudget" | "Endpoints" => desired
            .exposed
            .iter()
            .any(|workload| workload.namespace == namespace && workload.name == name),
        "EndpointSlice" => object
            .owner_references()
            .iter()
            .any(|owner| owner.kind == "Service"),
        "PersistentVolumeClaim" => match WORKLOADS.iter().find(|(_, name)| *name == app) {
            Some((kind, name)) => {
                let workload = Workload {
                    namespace: desired.namespaces.get(&*namespace)?,
                    kind: *kind,
                    name,
                };
                !workload.deletes_claims()
                    || desired.workloads.contains_key(&workload)
                    || orphan_of(name).is_some()
            }
            None => false,
        },
        "ServiceAccount" => name == "default",
        "ConfigMap" => name == "kube-root-ca.crt",
        _ => false,
    };
    (!expected).then(|| {
        format!(
            "{} is unexpected, owned by {:?}",
            describe(kind, object),
            object.owner_references()
        )
    })
}

fn is(workload: Workload, kind: &str, object: &DynamicObject) -> bool {
    workload.type_().1 == kind
        && workload.name == object.name_any()
        && Some(workload.namespace) == object.metadata.namespace.as_deref()
}

/// ReplicaSets that were orphaned by their Deployment keep their replicas.
fn orphaned_replica_sets<'a>(
    desired: &'a DesiredState,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = &'a DynamicObject> {
    let sets = desired
        .namespaces
        .iter()
        .flat_map(|namespace| snapshot.within("ReplicaSet", namespace));
    sets.filter(|set| controller(set).is_none())
}

/// A ReplicaSet has exactly its desired replicas.
fn has_desired_pods(set: &DynamicObject, snapshot: &Snapshot) -> Option<String> {
    let pods = snapshot.controlled_by("Pod", set).len() as u64;
    let replicas = number(set, "/spec/replicas");
    (pods != replicas).then(|| {
        format!(
            "{} has {pods} pods, not {replicas}",
            describe("ReplicaSet", set)
        )
    })
}

fn nodes_are_ready(snapshot: &Snapshot) -> Vec<String> {
    let mut violations = Vec::new();
    for node in snapshot.within("Node", "") {
        let taints = at(node, "/spec/taints");
        if !has_condition(node, "Ready") || !taints.is_null() {
            violations.push(format!(
                "{} is not ready or tainted: {taints}, {}",
                describe("Node", node),
                at(node, "/status/conditions")
            ));
        }
    }
    violations
}

/// Every PersistentVolume has a claim.
fn volumes_are_claimed(snapshot: &Snapshot) -> Vec<String> {
    let uids: BTreeSet<String> = snapshot
        .all()
        .filter_map(|(_, object)| object.uid())
        .collect();
    let unused = snapshot.within("PersistentVolume", "").filter(|volume| {
        !at(volume, "/spec/claimRef/uid")
            .as_str()
            .is_some_and(|uid| uids.contains(uid))
    });
    unused
        .map(|volume| {
            format!(
                "{} has no claim: {}",
                describe("PersistentVolume", volume),
                at(volume, "/status/phase")
            )
        })
        .collect()
}

/// Desired namespaces have their default objects; others do not exist.
fn namespaces_have_default_objects(desired: &DesiredState, snapshot: &Snapshot) -> Vec<String> {
    let mut violations = Vec::new();
    for namespace in super::workload::NAMESPACES {
        let expected = desired.namespaces.contains(namespace);
        for (kind, within, name) in [
            ("Namespace", "", namespace),
            ("ServiceAccount", namespace, "default"),
            ("ConfigMap", namespace, "kube-root-ca.crt"),
        ] {
            if snapshot.get(kind, within, name).is_some() != expected {
                violations.push(format!("{kind} {name} of {namespace}: expected {expected}"));
            }
        }
    }
    violations
}

/// Whether an object has the label `app` of a workload.
fn has_app_label(object: &DynamicObject, app: &str) -> bool {
    object.labels().get("app").is_some_and(|value| value == app)
}

fn is_in_first_zone(node: &DynamicObject) -> bool {
    node.labels()
        .get("topology.kubernetes.io/zone")
        .is_some_and(|zone| zone == "zone-a")
}
