//! Versions of groups that other servers serve: APIServices with a `spec.service`.

use std::sync::Arc;

use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::decoded;
use serde_json::{Map, Value};

/// A version of a group, and the Service that serves it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RemoteVersion {
    pub(crate) group: String,
    pub(crate) version: String,
    /// Namespace, name and port of the Service.
    pub(crate) namespace: String,
    pub(crate) service: String,
    pub(crate) port: i64,
    /// The authorities of its certificate, in PEM.
    pub(crate) ca_bundle: Vec<u8>,
    pub(crate) insecure_skip_tls_verify: bool,
    pub(crate) group_priority: i64,
    pub(crate) version_priority: i64,
    /// Whether the condition `Available` is true.
    pub(crate) available: bool,
    /// The `APIVersionDiscovery` that the Service last answered.
    pub(crate) discovery: Option<Value>,
    /// Where its OpenAPI v3 document is, with the hash of the document.
    pub(crate) openapi_url: Option<String>,
    /// The part of its OpenAPI v2 document that is about this version.
    pub(crate) swagger: Option<Arc<RemoteSwagger>>,
}

/// Paths and definitions of an OpenAPI v2 document, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RemoteSwagger {
    pub(crate) paths: Map<String, Value>,
    /// The definitions that the paths refer to.
    pub(crate) definitions: Map<String, Value>,
}

impl RemoteVersion {
    /// The version that an APIService registers; `None` if this server serves it.
    pub(crate) fn of(api_service: &Object) -> Option<Self> {
        let spec = api_service.body.field("spec");
        let service = spec.get_set("service")?;
        let conditions = api_service.body.field("status").list("conditions");
        let available = conditions
            .iter()
            .find(|condition| condition.text("type") == "Available");
        Some(Self {
            group: spec.text("group").to_owned(),
            version: spec.text("version").to_owned(),
            namespace: service.text("namespace").to_owned(),
            service: service.text("name").to_owned(),
            port: service.number("port"),
            ca_bundle: decoded(spec.field("caBundle")),
            insecure_skip_tls_verify: spec.is_true("insecureSkipTLSVerify"),
            group_priority: spec.number("groupPriorityMinimum"),
            version_priority: spec.number("versionPriority"),
            available: available.is_some_and(|condition| condition.text("status") == "True"),
            discovery: None,
            openapi_url: None,
            swagger: None,
        })
    }

    /// The name of the APIService.
    pub(crate) fn api_service(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    /// `/apis/GROUP/VERSION`.
    pub(crate) fn root(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    /// Keeps the documents of the same version, as long as the same Service serves it.
    pub(crate) fn with_documents_of(self, known: Option<&Self>) -> Self {
        let service = |remote: &Self| {
            let Self {
                namespace, service, ..
            } = remote;
            (namespace.clone(), service.clone(), remote.port)
        };
        match known.filter(|known| service(known) == service(&self)) {
            None => self,
            Some(known) => Self {
                discovery: known.discovery.clone(),
                openapi_url: known.openapi_url.clone(),
                swagger: known.swagger.clone(),
                ..self
            },
        }
    }
}
