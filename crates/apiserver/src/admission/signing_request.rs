//! CertificateSigningRequests: records the requesting user, and authorizes approval and signing by
//! signer name.
//! Mirrors the plugins CertificateApproval and CertificateSigning.

use base64::{Engine, engine::general_purpose::STANDARD};
use bellerophon_apimachinery::{
    error::ApiError,
    json_ext::{JsonExt, same},
};
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds;
use x509_parser::{certification_request::X509CertificationRequest, pem::Pem, prelude::FromDer};

use super::Admission;
use crate::auth::{self, Attributes, Target};

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";
/// The signer whose certificates this server takes as proof of who its clients are.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Records the requesting user in `spec`.
pub(super) fn record(request: &Admission<'_>, object: &mut Object) {
    if request.creates(GROUP, REQUESTS) {
        kinds::record_requester(object, &request.attributes.user.to_value());
    }
}

/// Refuses approvals and certificates by those without a right for the signer, and requests for the
/// group that may do everything.
///
/// # Errors
/// 403.
pub(super) fn validate(request: &Admission<'_>, object: &Object) -> Result<(), ApiError> {
    if request.creates(GROUP, REQUESTS) {
        return refuse_masters(request, object);
    }
    let Some(old) = request.old else {
        return Ok(());
    };
    let signer = old.str_at("spec.signerName");
    let unchanged = |field| {
        same(
            object.body.field("status").field(field),
            old.body.field("status").field(field),
        )
    };
    let verb = if request.writes_subresource(GROUP, REQUESTS, "approval") {
        "approve"
    } else if request.writes_subresource(GROUP, REQUESTS, "status")
        && !(unchanged("certificate") && unchanged("conditions"))
    {
        "sign"
    } else {
        return Ok(());
    };
    if may(request, verb, signer) {
        return Ok(());
    }
    Err(request.forbid(
        object,
        format!("user not permitted to {verb} requests with signerName {signer:?}"),
    ))
}

/// A right for one signer, or for all of its domain.
fn may(request: &Admission<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    [signer.to_owned(), format!("{domain}/*")]
        .iter()
        .any(|name| {
            let target = Target::Resource {
                group: GROUP,
                resource: "signers",
                subresource: "",
                namespace: "",
                name,
            };
            auth::authorize(
                &Attributes {
                    user: request.attributes.user,
                    verb,
                    target,
                },
                request.api,
            )
            .is_allowed()
        })
}

fn refuse_masters(request: &Admission<'_>, object: &Object) -> Result<(), ApiError> {
    if object.str_at("spec.signerName") != CLIENT_SIGNER {
        return Ok(());
    }
    let bytes = STANDARD
        .decode(object.str_at("spec.request"))
        .unwrap_or_default();
    if organizations(&bytes)
        .iter()
        .any(|group| group == "system:masters")
    {
        let why = format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
        return Err(request.forbid(object, why));
    }
    Ok(())
}

/// The organizations of the subject of a PEM-encoded certificate request.
fn organizations(pem: &[u8]) -> Vec<String> {
    let Some(Ok(block)) = Pem::iter_from_buffer(pem).next() else {
        return Vec::new();
    };
    let Ok((_, request)) = X509CertificationRequest::from_der(&block.contents) else {
        return Vec::new();
    };
    let subject = &request.certification_request_info.subject;
    subject
        .iter_organization()
        .filter_map(|o| o.as_str().ok())
        .map(str::to_owned)
        .collect()
}
