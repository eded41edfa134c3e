//! Definitions whose names conflict.
//! Guarantees: an accepted name is not lost to a later definition, which gets it when it becomes
//! free.

use serde_json::{Value, json};

use super::{
    cluster::{Cluster, both_ways},
    custom::defined,
    objects::widgets,
};

/// The definition of `gadgets.example.dev` with other names.
fn gadgets(names: &Value) -> Value {
    let mut definition = widgets();
    definition["metadata"]["name"] = json!("gadgets.example.dev");
    definition["spec"]["names"] = json!({"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"});
    for (name, value) in names.as_object().expect("a map of names") {
        definition["spec"]["names"][name] = value.clone();
    }
    definition
}

async fn conditions(cluster: &Cluster) -> Vec<String> {
    let definition = cluster
        .request(
            "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.dev",
            &Value::Null,
        )
        .await
        .body;
    let all = definition["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let text =
        |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    all.iter()
        .map(|c| {
            format!(
                "{} {} {}: {}",
                text(c, "type"),
                text(c, "status"),
                text(c, "reason"),
                text(c, "message")
            )
        })
        .collect()
}

#[test]
fn taken_name_is_not_given_twice() {
    let accepted = [
        "NamesAccepted True NoConflicts: no conflicts found",
        "Established True InitialNamesAccepted: the initial names have been accepted",
    ];
    let refused = |reason: &str, name: &str| {
        [
            format!("NamesAccepted False {reason}: {name:?} is already in use"),
            "Established False NotAccepted: not all names are accepted".to_owned(),
        ]
    };
    both_ways(async |cluster| {
        for (names, expected) in [
            (json!({}), accepted.map(str::to_owned)),
            (json!({"kind": "Widget"}), refused("KindConflict", "Widget")),
            (
                json!({"listKind": "WidgetList"}),
                refused("ListKindConflict", "WidgetList"),
            ),
            (
                json!({"singular": "widget"}),
                refused("SingularConflict", "widget"),
            ),
            (
                json!({"shortNames": ["widgets"]}),
                refused("ShortNamesConflict", "widgets"),
            ),
            (json!({"shortNames": ["g"]}), accepted.map(str::to_owned)),
        ] {
            defined(cluster).await;
            let made = cluster
                .request(
                    "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                    &gadgets(&names),
                )
                .await;
            assert_eq!(made.code, 201, "{names}: {}", made.message());
            assert_eq!(
                conditions(cluster).await,
                expected,
                "{names} ({:?})",
                cluster.way
            );
            let served = cluster
                .request("GET /apis/example.dev/v1/gadgets", &Value::Null)
                .await
                .code;
            let wanted = if expected[0].contains("True") {
                200
            } else {
                404
            };
            assert_eq!(served, wanted, "{names} ({:?})", cluster.way);
            assert_eq!(
                cluster
                    .request("GET /apis/example.dev/v1/widgets", &Value::Null)
                    .await
                    .code,
                200,
                "{names}: the first is not touched"
            );
            for name in ["widgets", "gadgets"] {
                let line = format!(
                    "DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}.example.dev"
                );
                assert_eq!(
                    cluster.request(&line, &Value::Null).await.code,
                    200,
                    "{names}: {name}"
                );
            }
        }
    });
}

#[test]
fn freed_name_is_accepted_for_the_waiting_definition() {
    both_ways(async |cluster| {
        defined(cluster).await;
        let waiting = gadgets(&json!({"kind": "Widget"}));
        assert_eq!(
            cluster
                .request(
                    "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                    &waiting
                )
                .await
                .code,
            201
        );
        assert_eq!(
            cluster
                .request("GET /apis/example.dev/v1/gadgets", &Value::Null)
                .await
                .code,
            404
        );
        let line =
            "DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.dev";
        assert_eq!(cluster.request(line, &Value::Null).await.code, 200);
        assert_eq!(
            cluster
                .request("GET /apis/example.dev/v1/gadgets", &Value::Null)
                .await
                .code,
            200
        );
        assert_eq!(conditions(cluster).await.len(), 2);
        assert!(
            conditions(cluster)
                .await
                .iter()
                .all(|condition| condition.contains("True")),
            "{:?}",
            conditions(cluster).await
        );
    });
}
