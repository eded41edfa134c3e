//! Scaling the sets of a Deployment: step by step in a rollout, in proportion when it is resized meanwhile.
//!
//! In: the family, the size. Out: the family with other numbers of replicas.
//! Holds: never more than `desired + maxSurge` pods are asked for; old sets shrink only as far as `maxUnavailable` allows,
//! counting pods that are available, unhealthy ones first.

use std::cmp::Reverse;

use super::family::{DESIRED_REPLICAS, Family, MAX_REPLICAS, Member, Size};

/// Whether the Deployment was resized since its sets were last scaled.
pub(super) fn was_resized(family: &Family, size: Size) -> bool {
    family
        .all()
        .filter(|member| member.is_active())
        .any(|member| {
            member
                .noted(DESIRED_REPLICAS)
                .is_some_and(|noted| noted != size.desired)
        })
}

/// How many pods a new set may have now, given what the others have.
pub(super) fn room_for_new(family: &Family, size: Size) -> i32 {
    let own = family.new.as_ref().map_or(0, Member::replicas);
    let total = family.sum(Member::replicas);
    if total >= size.max() {
        own
    } else {
        own + (size.max() - total).min(size.desired - own)
    }
}

/// One step of the new set towards its size. Says whether it moved.
pub(super) fn grow_new(family: &mut Family, size: Size) -> bool {
    let room = room_for_new(family, size);
    let Some(new) = &mut family.new else {
        return false;
    };
    let target = if new.replicas() > size.desired {
        size.desired
    } else {
        room
    };
    target != new.replicas() && new.scale(target, size)
}

/// One step of the old sets towards nothing. Says whether they moved.
pub(super) fn shrink_old(family: &mut Family, size: Size) -> bool {
    let Some(new) = &family.new else { return false };
    let new_unavailable = new.replicas() - new.available();
    let removable = family.sum(Member::replicas) - size.min_available() - new_unavailable;
    if removable <= 0 || family.old.iter().all(|member| !member.is_active()) {
        return false;
    }
    let unhealthy = shrink_unhealthy(&mut family.old, removable, size);
    // Pods that were just given up were not available, so the count of those that are stays right.
    let spare = family.sum(Member::available) - size.min_available();
    let healthy = shrink(&mut family.old, spare, size, |member| member.replicas());
    unhealthy || healthy
}

/// Gives up pods that are not available anyway: they would only block the rollout.
fn shrink_unhealthy(old: &mut [Member], most: i32, size: Size) -> bool {
    shrink(old, most, size, |member| {
        (member.replicas() - member.available()).max(0)
    })
}

/// Takes up to `most` pods from the sets in turn, from each as many as `takeable` says.
fn shrink(
    sets: &mut [Member],
    mut most: i32,
    size: Size,
    takeable: impl Fn(&Member) -> i32,
) -> bool {
    let mut moved = false;
    for set in sets.iter_mut().filter(|set| set.is_active()) {
        let taken = takeable(set).min(most);
        if taken > 0 {
            set.scale(set.replicas() - taken, size);
            most -= taken;
            moved = true;
        }
    }
    moved
}

/// Scales all old sets to nothing. Says whether any had pods.
pub(super) fn empty_old(family: &mut Family, size: Size) -> bool {
    shrink(&mut family.old, i32::MAX, size, Member::replicas)
}

/// Follows a resize: one set alone takes it all; in the middle of a rollout every set takes its part, so that no more
/// of the new template runs than before.
pub(super) fn resize(family: &mut Family, size: Size, rolling: bool) {
    if let Some(only) = only_or_latest(family) {
        if only.replicas() != size.desired {
            only.scale(size.desired, size);
        }
        return;
    }
    if family
        .new
        .as_ref()
        .is_some_and(|new| is_saturated(new, size))
    {
        empty_old(family, size);
    } else if rolling {
        resize_in_proportion(family, size);
    }
}

/// The one set with pods; or the newest if none has any.
fn only_or_latest(family: &mut Family) -> Option<&mut Member> {
    let active = family.all().filter(|member| member.is_active()).count();
    match active {
        0 if family.new.is_some() => family.new.as_mut(),
        0 => family.old.last_mut(),
        1 => family
            .old
            .iter_mut()
            .chain(&mut family.new)
            .find(|member| member.is_active()),
        _ => None,
    }
}

fn is_saturated(new: &Member, size: Size) -> bool {
    new.replicas() == size.desired
        && new.noted(DESIRED_REPLICAS) == Some(size.desired)
        && new.available() == size.desired
}

fn resize_in_proportion(family: &mut Family, size: Size) {
    let before: i32 = family.sum(Member::actual);
    let mut members: Vec<&mut Member> = family
        .old
        .iter_mut()
        .chain(&mut family.new)
        .filter(|member| member.is_active())
        .collect();
    let allowed = if size.desired > 0 { size.max() } else { 0 };
    let to_add = allowed - members.iter().map(|member| member.replicas()).sum::<i32>();
    // Larger sets first; among equals the newer grow first and the older shrink first.
    members.sort_by_key(|member| (Reverse(member.replicas()), member.age()));
    if to_add > 0 {
        members.sort_by_key(|member| Reverse((member.replicas(), member.age())));
    }
    let mut added = 0;
    let mut sizes: Vec<i32> = Vec::with_capacity(members.len());
    for member in &members {
        let part = proportion(member, size, before, to_add, added);
        sizes.push(member.replicas() + part);
        added += part;
    }
    // What rounding left over goes to the largest.
    if let Some(largest) = sizes.first_mut() {
        *largest = (*largest + to_add - added).max(0);
    }
    for (member, replicas) in members.into_iter().zip(sizes) {
        member.scale(replicas, size);
    }
}

/// The part of a set in what is to be added (or taken, if negative), given what others got.
fn proportion(member: &Member, size: Size, before: i32, to_add: i32, added: i32) -> i32 {
    let own = member.replicas();
    let left = to_add - added;
    if own == 0 || left == 0 {
        return 0;
    }
    let fraction = if size.desired == 0 {
        -own
    } else {
        // Without the note, how many pods there are is the next best base.
        match member
            .noted(MAX_REPLICAS)
            .filter(|max| *max > 0)
            .unwrap_or(before)
        {
            0 => 0,
            base => rounded(f64::from(own) * f64::from(size.max()) / f64::from(base)) - own,
        }
    };
    if to_add > 0 {
        fraction.min(left)
    } else {
        fraction.max(left)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a float that is too large becomes the largest number, which is then cut to what is left"
)]
fn rounded(number: f64) -> i32 {
    number.round() as i32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
    use serde_json::json;

    use super::*;

    /// Sets as `replicas/available/noted max`, old ones first, the new one last, `-` for none.
    fn family(sets: &[&str], desired: i32) -> Family {
        let template =
            |image: &str| json!({ "spec": { "containers": [{ "name": "x", "image": image }] } });
        let deployment: Deployment = serde_json::from_value(
            json!({ "spec": { "replicas": desired, "selector": {}, "template": template("new") } }),
        )
        .unwrap();
        let last = sets.len() - 1;
        let sets = sets
            .iter()
            .enumerate()
            .filter(|(_, form)| **form != "-")
            .map(|(index, form)| {
                let parts: Vec<i32> = form.split('/').map(|part| part.parse().unwrap()).collect();
                let image = if index == last {
                    "new".into()
                } else {
                    format!("old-{index}")
                };
                let set: ReplicaSet = serde_json::from_value(json!({
                    "metadata": {
                        "name": format!("s{index}"),
                        "creationTimestamp": format!("2026-01-01T00:00:0{index}Z"),
                        "annotations": { MAX_REPLICAS: parts[2].to_string() },
                    },
                    "spec": { "replicas": parts[0], "selector": {}, "template": template(&image) },
                    "status": { "replicas": parts[0], "availableReplicas": parts[1] },
                }))
                .unwrap();
                Arc::new(set)
            });
        Family::of(&deployment, &sets.collect::<Vec<_>>())
    }

    fn numbers(family: &Family) -> Vec<i32> {
        family.all().map(Member::replicas).collect()
    }

    fn size(desired: i32, max_surge: i32, max_unavailable: i32) -> Size {
        Size {
            desired,
            max_surge,
            max_unavailable,
        }
    }

    #[test]
    fn new_set_grows_into_the_room_there_is() {
        for (sets, size, grown) in [
            (&["10/10/12", "0/0/12"][..], size(10, 2, 2), vec![10, 2]),
            (&["8/8/12", "2/0/12"], size(10, 2, 2), vec![8, 4]),
            (&["8/8/12", "4/0/12"], size(10, 2, 2), vec![8, 4]),
            (&["0/0/12", "8/8/12"], size(10, 2, 2), vec![0, 10]),
            (&["0/0/12", "12/8/12"], size(10, 2, 2), vec![0, 10]),
        ] {
            let mut family = family(sets, size.desired);
            let moved = grow_new(&mut family, size);
            assert_eq!(numbers(&family), grown, "{sets:?} {size:?}");
            assert_eq!(
                moved,
                family.new.as_ref().unwrap().replicas()
                    != family.new.as_ref().unwrap().replicas_before(),
                "{sets:?}"
            );
        }
    }

    #[test]
    fn old_sets_shrink_as_far_as_availability_allows() {
        for (what, sets, size, shrunk) in [
            (
                "two may be missing",
                &["10/10/13", "3/0/13"][..],
                size(10, 3, 2),
                vec![8, 3],
            ),
            (
                "the new ones are available",
                &["8/8/13", "5/5/13"],
                size(10, 3, 2),
                vec![3, 5],
            ),
            (
                "the new ones crash",
                &["8/8/13", "5/0/13"],
                size(10, 3, 2),
                vec![8, 5],
            ),
            (
                "an old one is lost while the new ones crash",
                &["8/7/13", "5/0/13"],
                size(10, 3, 2),
                vec![8, 5],
            ),
            (
                "rolled back: crashing ones go",
                &["5/0/13", "8/7/13"],
                size(10, 3, 2),
                vec![1, 8],
            ),
            (
                "rolled over: unhealthy ones go first",
                &["8/8/13", "5/0/13", "0/0/13"],
                size(10, 3, 2),
                vec![8, 0, 0],
            ),
            (
                "nothing is left",
                &["0/0/13", "10/10/13"],
                size(10, 3, 2),
                vec![0, 10],
            ),
            (
                "no one may be missing",
                &["10/10/11", "1/0/11"],
                size(10, 1, 0),
                vec![10, 1],
            ),
            (
                "one is replaced",
                &["10/10/11", "1/1/11"],
                size(10, 1, 0),
                vec![9, 1],
            ),
        ] {
            let mut family = family(sets, size.desired);
            shrink_old(&mut family, size);
            assert_eq!(numbers(&family), shrunk, "{what}: {sets:?} {size:?}");
        }
    }

    #[test]
    fn resize_in_a_rollout_is_shared_in_proportion() {
        for (what, sets, size, resized) in [
            (
                "one set takes it all",
                &["5/5/5", "0/0/5"][..],
                size(10, 0, 1),
                vec![10, 0],
            ),
            (
                "none has pods: the new one",
                &["0/0/5", "0/0/5"],
                size(10, 0, 1),
                vec![0, 10],
            ),
            (
                "none has pods and none is new: the latest",
                &["0/0/5", "0/0/5", "-"],
                size(10, 0, 1),
                vec![0, 10],
            ),
            (
                "doubled",
                &["8/8/13", "5/0/13"],
                size(20, 6, 2),
                vec![16, 10],
            ),
            (
                "halved",
                &["16/16/26", "10/0/26"],
                size(10, 3, 2),
                vec![8, 5],
            ),
            (
                "the largest takes the rest",
                &["6/6/10", "4/0/10"],
                size(5, 0, 1),
                vec![3, 2],
            ),
            (
                "to nothing",
                &["8/8/13", "5/0/13"],
                size(0, 0, 0),
                vec![0, 0],
            ),
            (
                "the newer of equals grows first",
                &["5/5/10", "5/0/10"],
                size(11, 0, 1),
                vec![5, 6],
            ),
            (
                "the note was lost",
                &["8/8/0", "5/0/0"],
                size(20, 6, 2),
                vec![16, 10],
            ),
        ] {
            let mut family = family(sets, size.desired);
            resize(&mut family, size, true);
            assert_eq!(numbers(&family), resized, "{what}: {sets:?} {size:?}");
        }
    }
}
