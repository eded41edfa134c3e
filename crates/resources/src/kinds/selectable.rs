//! The fields that field selectors support, by kind.
//! Guarantees: paths point into the stored version of the object.
//! Mirrors `AddFieldLabelConversionsFor…` of each API group.

use super::row::Field;

const fn same(paths: &'static [&'static str; 1]) -> Field {
    Field::own(paths[0], paths)
}

/// The fields that selectors of Pods may name.
pub const POD: &[Field] = &[
    same(&["spec.nodeName"]),
    // The name of the field before Kubernetes 1.0, which old clients still send.
    Field::own("spec.host", &["spec.nodeName"]),
    same(&["spec.restartPolicy"]),
    same(&["spec.schedulerName"]),
    same(&["spec.serviceAccountName"]),
    same(&["spec.hostNetwork"]).or("false"),
    same(&["status.phase"]),
    same(&["status.podIP"]),
    // Accepted, but without a value: the server never sets it.
    Field::own("status.podIPs", &[]),
    same(&["status.nominatedNodeName"]),
];

/// The fields that selectors of Nodes may name.
pub const NODE: &[Field] = &[same(&["spec.unschedulable"]).or("false")];
/// The fields that selectors of Namespaces may name.
pub const NAMESPACE: &[Field] = &[same(&["status.phase"])];
/// The fields that selectors of Secrets may name.
pub const SECRET: &[Field] = &[same(&["type"])];
/// The fields that selectors of Services may name.
pub const SERVICE: &[Field] = &[same(&["spec.clusterIP"]), same(&["spec.type"])];
/// The fields that selectors of ReplicationControllers may name.
pub const REPLICATION_CONTROLLER: &[Field] = &[same(&["status.replicas"]).or("0")];
/// The fields that selectors of Jobs may name.
pub const JOB: &[Field] = &[Field::own("status.successful", &["status.succeeded"]).or("0")];
/// The fields that selectors of CertificateSigningRequests may name.
pub const SIGNING_REQUEST: &[Field] = &[same(&["spec.signerName"])];
/// The fields that selectors of ResourceSlices may name.
pub const RESOURCE_SLICE: &[Field] = &[same(&["spec.nodeName"]), same(&["spec.driver"])];

/// The fields that selectors of Events of the core group may name.
pub const EVENT: &[Field] = &[
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

/// Events are stored in their core form, whatever group they are read in.
pub const EVENTS_EVENT: &[Field] = &[
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
