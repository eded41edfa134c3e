//! The fields that selectors may name, kind by kind.
//! Guarantees: paths point into the stored version of the object.
//! Mirrors `AddFieldLabelConversionsFor…` of each API group.

use super::row::Field;

const fn same(paths: &'static [&'static str; 1]) -> Field {
    Field::own(paths[0], paths)
}

pub(crate) const POD: &[Field] = &[
    same(&["spec.nodeName"]),
    // The name of the field before Kubernetes 1.0, which old clients still send.
    Field::own("spec.host", &["spec.nodeName"]),
    same(&["spec.restartPolicy"]),
    same(&["spec.schedulerName"]),
    same(&["spec.serviceAccountName"]),
    same(&["spec.hostNetwork"]).or("false"),
    same(&["status.phase"]),
    same(&["status.podIP"]),
    // Taken, but compared with nothing: the server never fills it in.
    Field::own("status.podIPs", &[]),
    same(&["status.nominatedNodeName"]),
];

pub(crate) const NODE: &[Field] = &[same(&["spec.unschedulable"]).or("false")];
pub(crate) const NAMESPACE: &[Field] = &[same(&["status.phase"])];
pub(crate) const SECRET: &[Field] = &[same(&["type"])];
pub(crate) const SERVICE: &[Field] = &[same(&["spec.clusterIP"]), same(&["spec.type"])];
pub(crate) const REPLICATION_CONTROLLER: &[Field] = &[same(&["status.replicas"]).or("0")];
pub(crate) const JOB: &[Field] = &[Field::own("status.successful", &["status.succeeded"]).or("0")];
pub(crate) const SIGNING_REQUEST: &[Field] = &[same(&["spec.signerName"])];
pub(crate) const RESOURCE_SLICE: &[Field] = &[same(&["spec.nodeName"]), same(&["spec.driver"])];

pub(crate) const EVENT: &[Field] = &[
    same(&["involvedObject.kind"]),
    same(&["involvedObject.namespace"]),
    same(&["involvedObject.name"]),
    same(&["involvedObject.uid"]),
    same(&["involvedObject.apiVersion"]),
    same(&["involvedObject.resourceVersion"]),
    same(&["involvedObject.fieldPath"]),
    same(&["reason"]),
    same(&["reportingComponent"]),
    Field::own("source", &["source.component", "reportingComponent"]),
    same(&["type"]),
];

/// Events are kept in their core form, whatever group they are read in.
pub(crate) const EVENTS_EVENT: &[Field] = &[
    same(&["reason"]),
    Field::own("regarding.kind", &["involvedObject.kind"]),
    Field::own("regarding.namespace", &["involvedObject.namespace"]),
    Field::own("regarding.name", &["involvedObject.name"]),
    Field::own("regarding.uid", &["involvedObject.uid"]),
    Field::own("regarding.apiVersion", &["involvedObject.apiVersion"]),
    Field::own(
        "regarding.resourceVersion",
        &["involvedObject.resourceVersion"],
    ),
    Field::own("regarding.fieldPath", &["involvedObject.fieldPath"]),
    Field::own("reportingController", &["reportingComponent"]),
    same(&["type"]),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{
        object::{Object, ObjectMeta},
        registry::table::find,
    };

    fn check(
        resource: (&str, &str),
        body: serde_json::Value,
        label: &str,
        expected: Result<&str, &str>,
    ) {
        let row = find(resource.0, "v1", resource.1).expect("a row of the table");
        let meta = ObjectMeta {
            name: "a".into(),
            namespace: "n".into(),
            ..ObjectMeta::default()
        };
        let body = body.as_object().expect("written as an object").clone();
        let object = Object {
            api_version: row.api_version(),
            kind: row.kind.into(),
            meta,
            body,
        };
        let value = || {
            row.selectable
                .iter()
                .find(|f| f.label == label)
                .map_or_else(|| object.meta.name.clone(), |f| f.of(&object))
        };
        let got = row.validate_selectable(label).map(|()| value());
        assert_eq!(got.as_deref().map_err(String::as_str), expected, "{label}");
    }

    #[test]
    fn selectors_see_the_fields_kubernetes_shows_them() {
        check(("", "configmaps"), json!({}), "metadata.name", Ok("a"));
        check(
            ("", "pods"),
            json!({"spec": {"nodeName": "n1"}}),
            "spec.host",
            Ok("n1"),
        );
        check(("", "pods"), json!({}), "spec.hostNetwork", Ok("false"));
        check(
            ("", "events"),
            json!({"reportingComponent": "x", "source": {}}),
            "source",
            Ok("x"),
        );
        check(
            ("batch", "jobs"),
            json!({"status": {"succeeded": 2}}),
            "status.successful",
            Ok("2"),
        );
    }

    #[test]
    fn unknown_fields_are_refused_in_the_words_of_the_kind() {
        let usual = "\"data.a\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
        check(("", "configmaps"), json!({}), "data.a", Err(usual));
        check(
            ("", "nodes"),
            json!({}),
            "metadata.namespace",
            Err("field label not supported: metadata.namespace"),
        );
        check(
            ("batch", "jobs"),
            json!({}),
            "x",
            Err("field label \"x\" not supported for Job"),
        );
        let slice = "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: x";
        check(
            ("resource.k8s.io", "resourceslices"),
            json!({}),
            "x",
            Err(slice),
        );
    }
}
