//! What holds at rest: what was asked for is there and runs, and nothing else.

use std::collections::BTreeSet;

use kube::{ResourceExt as _, api::DynamicObject};

use super::{
    play::Asked,
    seen::{Seen, at, controller, holds, number, title},
    workload::{JOBS_KEPT, Kind, REVISIONS_KEPT, WORKLOADS, Wanted, Workload},
};

/// Everything that is not as it should be.
pub(super) fn check(asked: &Asked, seen: &Seen) -> Vec<String> {
    let mut problems = Vec::new();
    asked
        .workloads
        .iter()
        .for_each(|(workload, wanted)| problems.extend(runs(*workload, *wanted, seen)));
    asked
        .served
        .iter()
        .for_each(|workload| problems.extend(is_served(*workload, seen)));
    problems.extend(owners_are_there(seen));
    problems.extend(
        seen.all()
            .filter_map(|(kind, object)| is_left_over(asked, kind, object)),
    );
    problems.extend(orphaned_sets(asked, seen).flat_map(|set| has_its_pods(set, seen)));
    problems.extend(nodes_are_well(seen));
    problems.extend(storage_is_in_use(seen));
    problems.extend(namespaces_are_complete(asked, seen));
    problems
}

/// One workload has exactly its pods, all of them ready.
fn runs(workload: Workload, wanted: Wanted, seen: &Seen) -> Vec<String> {
    let kind = workload.type_().1;
    let name = workload.name;
    let Some(object) = seen.get(kind, workload.namespace, name) else {
        return vec![format!("{workload:?} is not there")];
    };
    let mut problems = Vec::new();
    let mut equal = |what: &str, is: u64, should: u64| {
        if is != should {
            problems.push(format!(
                "{}: {what} is {is}, not {should}",
                title(kind, object)
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
        Kind::DaemonSet => seen
            .within("Node", "")
            .filter(|node| wanted.count % 2 == 1 || is_in_first_zone(node))
            .count() as u64,
        _ => wanted.count,
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
            let sets = seen.controlled_by("ReplicaSet", object);
            equal(
                "replica sets with pods",
                sets.iter()
                    .filter(|set| number(set, "/spec/replicas") > 0)
                    .count() as u64,
                count.min(1),
            );
            let too_many = sets.len().saturating_sub(REVISIONS_KEPT + 1);
            equal("replica sets too many", too_many as u64, 0);
            sets.into_iter()
                .flat_map(|set| seen.controlled_by("Pod", set))
                .collect()
        }
        _ => seen.controlled_by("Pod", object),
    };
    match workload.kind {
        Kind::Job => {
            equal(
                "conditions Complete",
                u64::from(holds(object, "Complete")),
                1,
            );
            equal("active", number(object, "/status/active"), 0);
            equal(
                "pods that are counted still",
                pods.iter()
                    .filter(|pod| !pod.finalizers().is_empty())
                    .count() as u64,
                0,
            );
        }
        Kind::CronJob => {
            let jobs = seen.controlled_by("Job", object);
            equal(
                "jobs that run",
                jobs.iter().filter(|job| !holds(job, "Complete")).count() as u64,
                0,
            );
            equal(
                "jobs too many",
                jobs.len().saturating_sub(JOBS_KEPT) as u64,
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
                pods.iter().filter(|pod| holds(pod, "Ready")).count() as u64,
                count,
            );
        }
    }
    if matches!(
        workload.kind,
        Kind::Deployment | Kind::StatefulSet | Kind::DaemonSet
    ) {
        let image = workload.image(wanted);
        equal(
            "pods of the right image",
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
        let revisions = seen.controlled_by("ControllerRevision", object).len();
        equal(
            "revisions too many",
            revisions.saturating_sub(REVISIONS_KEPT + 1) as u64,
            0,
        );
    }
    if workload.kind == Kind::StatefulSet {
        let names: BTreeSet<_> = pods.iter().map(|pod| pod.name_any()).collect();
        let missing = (0..count)
            .filter(|ordinal| !names.contains(&format!("{name}-{ordinal}")))
            .count();
        equal("members missing", missing as u64, 0);
        equal(
            "revisions in use",
            u64::from(
                at(object, "/status/currentRevision") != at(object, "/status/updateRevision"),
            ) + 1,
            1,
        );
        let claims: Vec<_> = seen
            .within("PersistentVolumeClaim", workload.namespace)
            .filter(|claim| is_of(claim, name))
            .collect();
        let bound = claims
            .iter()
            .filter(|claim| at(claim, "/status/phase") == "Bound")
            .count() as u64;
        equal("claims that are not bound", claims.len() as u64 - bound, 0);
        if workload.gives_up_storage() {
            // A member that happened to be away when the set shrank leaves its claim to the set, as upstream.
            let owned = |claim: &&&DynamicObject| {
                claim
                    .owner_references()
                    .iter()
                    .any(|owner| Some(&owner.uid) == object.metadata.uid.as_ref())
            };
            equal(
                "claims that go with the set",
                claims.iter().filter(owned).count() as u64,
                claims.len() as u64,
            );
        }
        let claimed = |ordinal: &u64| {
            claims
                .iter()
                .any(|claim| claim.name_any() == format!("data-{name}-{ordinal}"))
        };
        equal(
            "members with storage",
            (0..count).filter(claimed).count() as u64,
            count,
        );
    }
    problems
}

/// The service of a workload leads to its ready pods, and its disruption budget counts them.
fn is_served(workload: Workload, seen: &Seen) -> Vec<String> {
    let namespace = workload.namespace;
    let name = workload.name;
    let ready = seen
        .within("Pod", namespace)
        .filter(|pod| is_of(pod, name) && holds(pod, "Ready"));
    let ready: BTreeSet<String> = ready
        .map(|pod| {
            at(pod, "/status/podIP")
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    let slices = seen.within("EndpointSlice", namespace).filter(|slice| {
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
    let subsets = seen
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
    let mut problems = Vec::new();
    for (what, is) in [("slices", in_slices), ("endpoints", in_endpoints)] {
        if is != ready {
            problems.push(format!(
                "service {namespace}/{name}: {what} have {is:?}, ready are {ready:?}"
            ));
        }
    }
    let healthy = seen
        .get("PodDisruptionBudget", namespace, name)
        .map(|budget| number(budget, "/status/currentHealthy"));
    if workload.kind != Kind::CronJob
        && workload.kind != Kind::Job
        && healthy != Some(ready.len() as u64)
    {
        problems.push(format!(
            "budget {namespace}/{name}: {healthy:?} are healthy, ready are {ready:?}"
        ));
    }
    problems
}

/// No owner reference leads nowhere, and nothing is on its way out.
fn owners_are_there(seen: &Seen) -> Vec<String> {
    let uids: BTreeSet<String> = seen.all().filter_map(|(_, object)| object.uid()).collect();
    let mut problems = Vec::new();
    for (kind, object) in seen.all() {
        for owner in object
            .owner_references()
            .iter()
            .filter(|owner| !uids.contains(&owner.uid))
        {
            problems.push(format!(
                "{} belongs to {} {}, which is gone",
                title(kind, object),
                owner.kind,
                owner.name
            ));
        }
        if object.metadata.deletion_timestamp.is_some() {
            problems.push(format!(
                "{} does not go: {:?}",
                title(kind, object),
                object.finalizers()
            ));
        }
    }
    problems
}

/// An object that nobody asked for and that belongs to nobody.
fn is_left_over(asked: &Asked, kind: &'static str, object: &DynamicObject) -> Option<String> {
    let namespace = object.namespace()?;
    let name = object.name_any();
    let orphan_of = |app: &str| {
        asked
            .orphaned
            .iter()
            .find(|workload| workload.namespace == namespace && workload.name == app)
    };
    let app = object.labels().get("app").cloned().unwrap_or_default();
    let expected = match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "CronJob" => asked
            .workloads
            .keys()
            .any(|workload| is(*workload, kind, object)),
        "ReplicaSet" | "Job" | "Pod" | "ControllerRevision" if controller(object).is_some() => true,
        "ReplicaSet"
            if asked
                .workloads
                .keys()
                .any(|workload| is(*workload, kind, object)) =>
        {
            true
        }
        "Job" => {
            asked
                .workloads
                .keys()
                .any(|workload| is(*workload, kind, object))
                || (name.starts_with("tick-") && orphan_of("tick").is_some())
        }
        // An owner that came back would have taken them, but a job or cron job, which takes nobody's.
        "ReplicaSet" | "Pod" | "ControllerRevision" => orphan_of(&app).is_some_and(|workload| {
            matches!(workload.kind, Kind::Job | Kind::CronJob)
                || !asked.workloads.contains_key(workload)
        }),
        "Service" | "PodDisruptionBudget" | "Endpoints" => asked
            .served
            .iter()
            .any(|workload| workload.namespace == namespace && workload.name == name),
        "EndpointSlice" => object
            .owner_references()
            .iter()
            .any(|owner| owner.kind == "Service"),
        "PersistentVolumeClaim" => match WORKLOADS.iter().find(|(_, name)| *name == app) {
            Some((kind, name)) => {
                let workload = Workload {
                    namespace: asked.namespaces.get(&*namespace)?,
                    kind: *kind,
                    name,
                };
                !workload.gives_up_storage()
                    || asked.workloads.contains_key(&workload)
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
            "{} is left over, owned by {:?}",
            title(kind, object),
            object.owner_references()
        )
    })
}

fn is(workload: Workload, kind: &str, object: &DynamicObject) -> bool {
    workload.type_().1 == kind
        && workload.name == object.name_any()
        && Some(workload.namespace) == object.metadata.namespace.as_deref()
}

/// Replica sets that outlived their deployments go on by themselves.
fn orphaned_sets<'a>(asked: &'a Asked, seen: &'a Seen) -> impl Iterator<Item = &'a DynamicObject> {
    let sets = asked
        .namespaces
        .iter()
        .flat_map(|namespace| seen.within("ReplicaSet", namespace));
    sets.filter(|set| controller(set).is_none())
}

/// A replica set has exactly the pods it asks for.
fn has_its_pods(set: &DynamicObject, seen: &Seen) -> Option<String> {
    let pods = seen.controlled_by("Pod", set).len() as u64;
    let wanted = number(set, "/spec/replicas");
    (pods != wanted).then(|| format!("{} has {pods} pods, not {wanted}", title("ReplicaSet", set)))
}

fn nodes_are_well(seen: &Seen) -> Vec<String> {
    let mut problems = Vec::new();
    for node in seen.within("Node", "") {
        let taints = at(node, "/spec/taints");
        if !holds(node, "Ready") || !taints.is_null() {
            problems.push(format!(
                "{} is not well: taints {taints}, {}",
                title("Node", node),
                at(node, "/status/conditions")
            ));
        }
    }
    problems
}

/// Every volume has its claim.
fn storage_is_in_use(seen: &Seen) -> Vec<String> {
    let uids: BTreeSet<String> = seen.all().filter_map(|(_, object)| object.uid()).collect();
    let unused = seen.within("PersistentVolume", "").filter(|volume| {
        !at(volume, "/spec/claimRef/uid")
            .as_str()
            .is_some_and(|uid| uids.contains(uid))
    });
    unused
        .map(|volume| {
            format!(
                "{} is claimed by nobody: {}",
                title("PersistentVolume", volume),
                at(volume, "/status/phase")
            )
        })
        .collect()
}

/// Namespaces that were asked for have what every namespace has; others are gone.
fn namespaces_are_complete(asked: &Asked, seen: &Seen) -> Vec<String> {
    let mut problems = Vec::new();
    for namespace in super::workload::NAMESPACES {
        let wanted = asked.namespaces.contains(namespace);
        for (kind, within, name) in [
            ("Namespace", "", namespace),
            ("ServiceAccount", namespace, "default"),
            ("ConfigMap", namespace, "kube-root-ca.crt"),
        ] {
            if seen.get(kind, within, name).is_some() != wanted {
                problems.push(format!("{kind} {name} of {namespace}: wanted is {wanted}"));
            }
        }
    }
    problems
}

/// Whether an object is labelled as the pods of a workload are.
fn is_of(object: &DynamicObject, app: &str) -> bool {
    object.labels().get("app").is_some_and(|is| is == app)
}

fn is_in_first_zone(node: &DynamicObject) -> bool {
    node.labels()
        .get("topology.kubernetes.io/zone")
        .is_some_and(|zone| zone == "zone-a")
}
