//! Label and field selectors.

use serde_json::json;

use super::{
    cluster::both_ways,
    objects::{labelled, pod},
};

/// Percent-encodes all but letters and digits.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

#[test]
fn label_selectors_select() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        place
            .set_up(&[
                (
                    "POST cm",
                    labelled("a", &json!({"app": "web", "tier": "front"})),
                ),
                (
                    "POST cm",
                    labelled("b", &json!({"app": "web", "tier": "back"})),
                ),
                ("POST cm", labelled("c", &json!({"app": "db"}))),
                ("POST cm", labelled("d", &json!({}))),
            ])
            .await;
        for (selector, names) in [
            ("", "abcd"),
            ("app=web", "ab"),
            ("app==web", "ab"),
            ("app!=web", "cd"),
            ("app in (web,db)", "abc"),
            ("app notin (web)", "cd"),
            ("app", "abc"),
            ("!app", "d"),
            ("app=web,tier=back", "b"),
            ("app,!tier", "c"),
            ("tier notin (front), app", "bc"),
            ("app=", ""),
            ("app in (),tier", ""),
            ("nothing=here", ""),
        ] {
            let answer = place
                .get(&format!("cm?labelSelector={}", encoded(selector)))
                .await;
            assert_eq!(
                answer.code,
                200,
                "{selector:?} ({:?}): {}",
                cluster.way,
                answer.message()
            );
            assert_eq!(
                answer.names().concat().as_str(),
                names,
                "{selector:?} ({:?}): {}",
                cluster.way,
                answer.message()
            );
        }
        for selector in [
            "a=b=c",
            "in (a)",
            "app in web",
            "app in (web",
            "!app=x",
            "a b",
            "=x",
            "app=web,",
            "-x=y",
            "x=-y",
            ",",
            "app>1,<2",
        ] {
            let answer = place
                .get(&format!("cm?labelSelector={}", encoded(selector)))
                .await;
            assert_eq!(answer.code, 400, "{selector:?} ({:?})", cluster.way);
            assert_eq!(
                answer.reason(),
                "BadRequest",
                "{selector:?} ({:?})",
                cluster.way
            );
        }
    });
}

#[test]
fn field_selectors_select() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let mut placed = pod("placed");
        placed["spec"]["nodeName"] = json!("n1");
        let mut odd = pod("odd");
        odd["spec"]["restartPolicy"] = json!("Never");
        odd["spec"]["schedulerName"] = json!("mine");
        place
            .set_up(&[
                ("POST pod", pod("plain")),
                ("POST pod", placed),
                ("POST pod", odd),
                ("MERGE pod/odd/status", json!({"status": {"phase": "Running"}})),
                ("POST secret", json!({"metadata": {"name": "s"}, "type": "a.dev/x"})),
                ("POST secret", json!({"metadata": {"name": "t"}})),
                (
                    "POST event",
                    json!({"metadata": {"name": "e", "namespace": "a"}, "reason": "Made", "type": "Normal",
                                      "involvedObject": {"kind": "Pod", "name": "plain", "namespace": "a"}}),
                ),
            ])
            .await;
        for (path, selector, names) in [
            ("pod", "metadata.name=odd", vec!["odd"]),
            ("pod", "metadata.name!=odd", vec!["placed", "plain"]),
            (
                "pod",
                "metadata.namespace=a,metadata.name=plain",
                vec!["plain"],
            ),
            ("pod", "metadata.namespace=b", vec![]),
            (
                "/api/v1/pods",
                "metadata.namespace=a",
                vec!["odd", "placed", "plain"],
            ),
            ("/api/v1/pods", "metadata.name=odd", vec!["odd"]),
            ("pod", "spec.nodeName=n1", vec!["placed"]),
            ("pod", "spec.nodeName=", vec!["odd", "plain"]),
            ("pod", "spec.restartPolicy=Never", vec!["odd"]),
            ("pod", "spec.schedulerName=mine", vec!["odd"]),
            ("pod", "status.phase=Running", vec!["odd"]),
            (
                "pod",
                "status.phase!=Running,spec.nodeName=n1",
                vec!["placed"],
            ),
            ("secret", "type=a.dev/x", vec!["s"]),
            ("secret", "type=Opaque", vec!["t"]),
            ("event", "involvedObject.name=plain,reason=Made", vec!["e"]),
            ("event", "involvedObject.kind=Node", vec![]),
        ] {
            let answer = place
                .get(&format!("{path}?fieldSelector={}", encoded(selector)))
                .await;
            assert_eq!(
                answer.code,
                200,
                "{selector:?} ({:?}): {}",
                cluster.way,
                answer.message()
            );
            assert_eq!(
                answer.names(),
                names.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "{selector:?} ({:?}): {}",
                cluster.way,
                answer.message()
            );
        }
        for (path, selector) in [
            ("pod", "spec.containers=1"),
            ("cm", "data.k=1"),
            ("pod", "metadata.name"),
            ("pod", "metadata.name>1"),
            ("deploy", "spec.replicas=1"),
        ] {
            let answer = place
                .get(&format!("{path}?fieldSelector={}", encoded(selector)))
                .await;
            assert_eq!(answer.code, 400, "{selector:?} ({:?})", cluster.way);
            assert_eq!(
                answer.reason(),
                "BadRequest",
                "{selector:?} ({:?})",
                cluster.way
            );
        }
    });
}
