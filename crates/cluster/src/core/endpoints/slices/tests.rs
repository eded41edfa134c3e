//! Slices after changes: as few as possible are touched.

use super::*;

fn endpoint(name: &str) -> Endpoint {
    Endpoint {
        addresses: vec![name.into()],
        ..Endpoint::default()
    }
}

fn on_port(port: i32, names: impl IntoIterator<Item = String>) -> Vec<(Common, Endpoint)> {
    let ports = vec![EndpointPort {
        port: Some(port),
        ..EndpointPort::default()
    }];
    names
        .into_iter()
        .map(|name| {
            (
                Common {
                    family: Family::V4,
                    ports: ports.clone(),
                },
                endpoint(&name),
            )
        })
        .collect()
}

fn form() -> Form {
    let labels = Some([("app".to_owned(), "x".to_owned())].into());
    Form {
        meta: ObjectMeta {
            generate_name: Some("web-".into()),
            labels,
            ..ObjectMeta::default()
        },
        families: vec![Family::V4],
    }
}

/// What is there after changes were made, each slice under a name of its own.
fn after(existing: &[Arc<EndpointSlice>], changes: &Changes) -> Vec<Arc<EndpointSlice>> {
    let named = |slice: &EndpointSlice| slice.metadata.name.clone();
    let mut slices: Vec<_> = existing
        .iter()
        .filter(|slice| {
            changes
                .delete
                .iter()
                .all(|gone| named(gone) != named(slice))
        })
        .cloned()
        .collect();
    for slice in &mut slices {
        if let Some(changed) = changes
            .update
            .iter()
            .find(|changed| named(changed) == named(slice))
        {
            *slice = Arc::new(changed.clone());
        }
    }
    for (i, new) in changes.create.iter().enumerate() {
        let mut new = new.clone();
        new.metadata.name = Some(format!("s{}", existing.len() + i));
        slices.push(Arc::new(new));
    }
    slices
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("{number:04}")).collect()
}

fn sizes(slices: &[Arc<EndpointSlice>]) -> Vec<usize> {
    slices
        .iter()
        .map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len))
        .collect()
}

/// How many different endpoints there are, and how many in all.
fn counts(slices: &[Arc<EndpointSlice>]) -> (usize, usize) {
    let all: Vec<_> = slices
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten())
        .map(identity)
        .collect();
    (
        all.iter().collect::<std::collections::BTreeSet<_>>().len(),
        all.len(),
    )
}

#[test]
fn endpoints_fill_slices_of_a_hundred() {
    for (count, wanted) in [
        (0, vec![0]),
        (1, vec![1]),
        (100, vec![100]),
        (101, vec![100, 1]),
        (250, vec![100, 100, 50]),
    ] {
        let slices = after(&[], &plan(&form(), on_port(80, names(0..count)), &[]));
        assert_eq!(sizes(&slices), wanted, "{count}");
        assert_eq!(
            plan(&form(), on_port(80, names(0..count)), &slices),
            Changes::default(),
            "{count} again is nothing to do"
        );
    }
}

#[test]
fn changes_touch_as_few_slices_as_possible() {
    let start = after(&[], &plan(&form(), on_port(80, names(0..250)), &[]));
    let cases: [(&str, Vec<String>, (usize, usize, usize), Vec<usize>); 6] = [
        (
            "one more goes where there is room",
            names(0..251),
            (0, 1, 0),
            vec![100, 100, 51],
        ),
        (
            "one less is taken out of its slice",
            names(1..250),
            (0, 1, 0),
            vec![99, 100, 50],
        ),
        (
            "one for another fills the gap",
            names(1..251),
            (0, 1, 0),
            vec![100, 100, 50],
        ),
        (
            "a hundred more are a slice of their own",
            names(0..350),
            (1, 0, 0),
            vec![100, 100, 50, 100],
        ),
        (
            "the last of a slice takes it along",
            names(0..200),
            (0, 0, 1),
            vec![100, 100],
        ),
        (
            "none at all leaves an empty one",
            Vec::new(),
            (1, 0, 3),
            vec![0],
        ),
    ];
    for (why, wanted, (create, update, delete), left) in cases {
        let changes = plan(&form(), on_port(80, wanted.clone()), &start);
        assert_eq!(changes.create.len(), create, "{why}");
        assert_eq!(changes.update.len(), update, "{why}");
        assert_eq!(changes.delete.len(), delete, "{why}");
        let slices = after(&start, &changes);
        assert_eq!(sizes(&slices), left, "{why}");
        assert_eq!(counts(&slices), (wanted.len(), wanted.len()), "{why}");
    }
}

#[test]
fn other_ports_and_labels_are_other_slices_and_changes() {
    let start = after(&[], &plan(&form(), on_port(80, names(0..2)), &[]));
    let mixed = [on_port(80, names(0..1)), on_port(81, names(1..2))].concat();
    let slices = after(&start, &plan(&form(), mixed, &start));
    assert_eq!(sizes(&slices), [1, 1]);
    let mut relabelled = form();
    relabelled.meta.labels = None;
    let changes = plan(&relabelled, on_port(80, names(0..2)), &start);
    assert_eq!(changes.update.len(), 1);
    assert_eq!(changes.create.len(), 0);
    assert_eq!(changes.update[0].metadata.labels, None);
    let mut both = form();
    both.families.push(Family::V6);
    let changes = plan(&both, on_port(80, names(0..2)), &start);
    assert_eq!(changes.create.len(), 1, "each family has a slice");
    assert_eq!(
        changes.create[0].address_type.as_str(),
        "IPv6",
        "each family has a slice"
    );
}

#[test]
fn changed_endpoint_stays_where_it_is() {
    let start = after(&[], &plan(&form(), on_port(80, names(0..150)), &[]));
    let mut wanted = on_port(80, names(0..150));
    wanted[120].1.node_name = Some("n".into());
    let changes = plan(&form(), wanted, &start);
    assert_eq!(changes.create.len(), 0);
    assert_eq!(changes.update.len(), 1);
    assert_eq!(changes.delete.len(), 0);
    assert_eq!(changes.update[0].metadata.name, start[1].metadata.name);
}
