//! Role bindings and CertificateSigningRequests. Mirrors `printRoleBinding`,
//! `printCertificateSigningRequest` and others in `pkg/printers/internalversion`.

use bellerophon_apimachinery::{duration::human_duration, table_column::Column, time::Time};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, age, name},
};

pub(super) static ROLE_BINDING: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Role", descriptions::ROLE_BINDING_ROLE),
        Column::AGE,
        Column::text("Users", "Users in the roleBinding").wide(),
        Column::text("Groups", "Groups in the roleBinding").wide(),
        Column::text("ServiceAccounts", "ServiceAccounts in the roleBinding").wide(),
    ],
    cells: binding_cells,
    ..Printer::PLAIN
};

pub(super) static CLUSTER_ROLE_BINDING: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Role", descriptions::CLUSTER_ROLE_BINDING_ROLE),
        Column::AGE,
        Column::text("Users", "Users in the clusterRoleBinding").wide(),
        Column::text("Groups", "Groups in the clusterRoleBinding").wide(),
        Column::text(
            "ServiceAccounts",
            "ServiceAccounts in the clusterRoleBinding",
        )
        .wide(),
    ],
    cells: binding_cells,
    ..Printer::PLAIN
};

pub(super) static CERTIFICATE_SIGNING_REQUEST: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::AGE,
        Column::text("SignerName", "The requested signer."),
        Column::text("Requestor", "The user that created the request."),
        Column::text(
            "RequestedDuration",
            "How long the certificate is to be good.",
        ),
        Column::text("Condition", "How far the request is."),
    ],
    cells: |object, now| {
        let duration = object
            .field("spec.expirationSeconds")
            .and_then(Value::as_i64)
            .map(human_duration);
        vec![
            name(object),
            age(object, now),
            object.filled_or("spec.signerName", "<none>").into(),
            object.text("spec.username").into(),
            duration.unwrap_or_else(|| "<none>".into()).into(),
            request_state(object).into(),
        ]
    },
    ..Printer::PLAIN
};

fn binding_cells(binding: &Object, now: Time) -> Vec<Value> {
    vec![
        name(binding),
        format!(
            "{}/{}",
            binding.text("roleRef.kind"),
            binding.text("roleRef.name")
        )
        .into(),
        age(binding, now),
        subjects(binding, "User", |subject| subject.text("name").into()),
        subjects(binding, "Group", |subject| subject.text("name").into()),
        subjects(binding, "ServiceAccount", |subject| {
            format!("{}/{}", subject.text("namespace"), subject.text("name"))
        }),
    ]
}

fn subjects(binding: &Object, kind: &str, words: fn(&Value) -> String) -> Value {
    let subjects = binding
        .list("subjects")
        .iter()
        .filter(|subject| subject.text("kind") == kind);
    subjects.map(words).collect::<Vec<_>>().join(", ").into()
}

/// Denial takes precedence over approval; failure and issued certificates are appended.
fn request_state(request: &Object) -> String {
    let is = |type_| request.typed("status.conditions", type_).is_some();
    let mut words = vec![match () {
        () if is("Denied") => "Denied",
        () if is("Approved") => "Approved",
        () => "Pending",
    }];
    words.extend(is("Failed").then_some("Failed"));
    words.extend((!request.text("status.certificate").is_empty()).then_some("Issued"));
    words.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::print::printer::tests::check;

    #[test]
    fn bindings_show_role_and_subjects() {
        let subjects = json!([
            { "kind": "User", "name": "jane" }, { "kind": "User", "name": "joe" }, { "kind": "Group", "name": "devs" },
            { "kind": "ServiceAccount", "namespace": "ns", "name": "default" },
        ]);
        let body =
            json!({ "roleRef": { "kind": "ClusterRole", "name": "view" }, "subjects": subjects });
        for kind in ["RoleBinding", "ClusterRoleBinding"] {
            check(
                "rbac.authorization.k8s.io/v1",
                kind,
                body.clone(),
                json!([
                    "x",
                    "ClusterRole/view",
                    "10m",
                    "jane, joe",
                    "devs",
                    "ns/default"
                ]),
            );
        }
    }

    #[test]
    fn certificate_requests_show_how_far_they_are() {
        for (conditions, certificate, state) in [
            (json!([]), "", "Pending"),
            (json!([{ "type": "Approved" }]), "", "Approved"),
            (json!([{ "type": "Approved" }]), "LS0t", "Approved,Issued"),
            (
                json!([{ "type": "Approved" }, { "type": "Denied" }]),
                "",
                "Denied",
            ),
            (
                json!([{ "type": "Approved" }, { "type": "Failed" }]),
                "",
                "Approved,Failed",
            ),
        ] {
            let spec = json!({ "signerName": "example.com/s", "username": "jane", "expirationSeconds": 3600 });
            let body = json!({ "spec": spec, "status": { "conditions": conditions, "certificate": certificate } });
            check(
                "certificates.k8s.io/v1",
                "CertificateSigningRequest",
                body,
                json!(["x", "10m", "example.com/s", "jane", "60m", state]),
            );
        }
    }
}
