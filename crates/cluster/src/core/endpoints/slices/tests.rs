//! Slice plans change as few slices as possible.

use super::*;

fn endpoint(name: &str) -> Endpoint {
    Endpoint {
        addresses: vec![name.into()],
        ..Endpoint::default()
    }
}

fn on_port(port: i32, names: impl IntoIterator<Item = String>) -> Vec<DesiredEndpoint> {
    let ports = vec![EndpointPort {
        port: Some(port),
        ..EndpointPort::default()
    }];
    names
        .into_iter()
        .map(|name| DesiredEndpoint {
            family: IpFamily::V4,
            ports: ports.clone(),
            endpoint: endpoint(&name),
        })
        .collect()
}

fn template() -> SliceTemplate {
    let labels = Some([("app".to_owned(), "x".to_owned())].into());
    SliceTemplate {
        meta: ObjectMeta {
            generate_name: Some("web-".into()),
            labels,
            ..ObjectMeta::default()
        },
        families: vec![IpFamily::V4],
    }
}

/// The slices after the changes; new slices get unique names.
fn after(existing: &[Arc<EndpointSlice>], changes: &SliceChanges) -> Vec<Arc<EndpointSlice>> {
    let name = |slice: &EndpointSlice| slice.metadata.name.clone();
    let mut slices: Vec<_> = existing
        .iter()
        .filter(|slice| {
            changes
                .delete
                .iter()
                .all(|deleted| name(deleted) != name(slice))
        })
        .cloned()
        .collect();
    for slice in &mut slices {
        if let Some(changed) = changes
            .update
            .iter()
            .find(|changed| name(changed) == name(slice))
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

/// Number of distinct endpoints, and number of endpoints.
fn counts(slices: &[Arc<EndpointSlice>]) -> (usize, usize) {
    let all: Vec<_> = slices
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten())
        .map(endpoint_identity)
        .collect();
    (
        all.iter().collect::<std::collections::BTreeSet<_>>().len(),
        all.len(),
    )
}

#[test]
fn endpoints_fill_slices_of_100() {
    for (count, expected) in [
        (0, vec![0]),
        (1, vec![1]),
        (100, vec![100]),
        (101, vec![100, 1]),
        (250, vec![100, 100, 50]),
    ] {
        let slices = after(&[], &plan(&template(), on_port(80, names(0..count)), &[]));
        assert_eq!(sizes(&slices), expected, "{count}");
        assert_eq!(
            plan(&template(), on_port(80, names(0..count)), &slices),
            SliceChanges::default(),
            "second plan for {count} is empty"
        );
    }
}

#[test]
fn changes_touch_as_few_slices_as_possible() {
    let start = after(&[], &plan(&template(), on_port(80, names(0..250)), &[]));
    let cases: [(&str, Vec<String>, (usize, usize, usize), Vec<usize>); 6] = [
        (
            "one more is added to a slice with capacity",
            names(0..251),
            (0, 1, 0),
            vec![100, 100, 51],
        ),
        (
            "one fewer is removed from its slice",
            names(1..250),
            (0, 1, 0),
            vec![99, 100, 50],
        ),
        (
            "a replacement goes to the changed slice",
            names(1..251),
            (0, 1, 0),
            vec![100, 100, 50],
        ),
        (
            "100 more are one new slice",
            names(0..350),
            (1, 0, 0),
            vec![100, 100, 50, 100],
        ),
        (
            "a slice without endpoints is deleted",
            names(0..200),
            (0, 0, 1),
            vec![100, 100],
        ),
        (
            "no endpoints leave a placeholder",
            Vec::new(),
            (1, 0, 3),
            vec![0],
        ),
    ];
    for (case, desired, (create, update, delete), expected) in cases {
        let changes = plan(&template(), on_port(80, desired.clone()), &start);
        assert_eq!(changes.create.len(), create, "{case}");
        assert_eq!(changes.update.len(), update, "{case}");
        assert_eq!(changes.delete.len(), delete, "{case}");
        let slices = after(&start, &changes);
        assert_eq!(sizes(&slices), expected, "{case}");
        assert_eq!(counts(&slices), (desired.len(), desired.len()), "{case}");
    }
}

#[test]
fn ports_labels_and_families_determine_slices() {
    let start = after(&[], &plan(&template(), on_port(80, names(0..2)), &[]));
    let mixed = [on_port(80, names(0..1)), on_port(81, names(1..2))].concat();
    let slices = after(&start, &plan(&template(), mixed, &start));
    assert_eq!(sizes(&slices), [1, 1]);
    let mut relabelled = template();
    relabelled.meta.labels = None;
    let changes = plan(&relabelled, on_port(80, names(0..2)), &start);
    assert_eq!(changes.update.len(), 1);
    assert_eq!(changes.create.len(), 0);
    assert_eq!(changes.update[0].metadata.labels, None);
    let mut dual_stack = template();
    dual_stack.families.push(IpFamily::V6);
    let changes = plan(&dual_stack, on_port(80, names(0..2)), &start);
    assert_eq!(changes.create.len(), 1, "each IP family has a slice");
    assert_eq!(
        changes.create[0].address_type.as_str(),
        "IPv6",
        "each IP family has a slice"
    );
}

#[test]
fn updated_endpoint_stays_in_its_slice() {
    let start = after(&[], &plan(&template(), on_port(80, names(0..150)), &[]));
    let mut desired = on_port(80, names(0..150));
    desired[120].endpoint.node_name = Some("n".into());
    let changes = plan(&template(), desired, &start);
    assert_eq!(changes.create.len(), 0);
    assert_eq!(changes.update.len(), 1);
    assert_eq!(changes.delete.len(), 0);
    assert_eq!(changes.update[0].metadata.name, start[1].metadata.name);
}
