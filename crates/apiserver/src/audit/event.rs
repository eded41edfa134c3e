//! Audit events, as they are written: `audit.k8s.io/v1` Event.

use std::collections::BTreeMap;

use bellerophon_apimachinery::error::ApiError;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::policy::{Level, PolicyDecision, Stage};
use crate::{
    auth::{Decision, User},
    http::request_info::RequestInfo,
};

/// As `metav1.MicroTime` is written.
const MICRO_TIME: &str = "%Y-%m-%dT%H:%M:%S.%6fZ";

/// A request that is recorded, with what is known of it so far.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(super) decision: PolicyDecision,
    pub(super) audit_id: String,
    pub(super) request_uri: String,
    pub(super) request: RequestInfo,
    /// The authenticated user; empty if the authentication failed.
    pub(super) user: User,
    /// The impersonated user, if any.
    pub(super) impersonated_user: Option<User>,
    pub(super) source_ip: Option<String>,
    pub(super) user_agent: String,
    pub(super) received: Timestamp,
    /// Metadata of the object in the request body; empty for patches and deletes.
    pub(super) sent: SentMetadata,
    pub(super) request_object: Option<Value>,
    pub(super) response_object: Option<Value>,
    /// `None` until there is a response.
    pub(super) response_status: Option<ResponseStatus>,
    /// `None` until the request is authorized or not.
    pub(super) authorization: Option<Decision>,
    /// The audit annotations of admission.
    pub(crate) admission_annotations: BTreeMap<String, String>,
}

/// The metadata of an object in a request that the reference to it shows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SentMetadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
}

/// The bounded part of a `Status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ResponseStatus {
    /// Always `{}`.
    #[serde(skip_deserializing)]
    metadata: Map<String, Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
    pub(super) code: u16,
}

impl ResponseStatus {
    /// The status of a request that failed. Errors in plain text have a code only.
    pub(super) fn of_error(error: &ApiError) -> Self {
        match error {
            ApiError::NoSuchPath | ApiError::Rejected { .. } => Self {
                code: error.code(),
                ..Self::default()
            },
            error => serde_json::from_value(error.to_status()).unwrap_or_default(),
        }
    }

    /// The status in the body of a response; `None` if it is something else.
    pub(super) fn of_body(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(br#"{"kind":"Status","#) {
            return None;
        }
        serde_json::from_slice(bytes).ok()
    }
}

/// One line of the log.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    kind: &'static str,
    api_version: &'static str,
    level: Level,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: Stage,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    user: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<Value>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    source_ips: Vec<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<ObjectReference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<&'a ResponseStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_object: Option<&'a Value>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, &'a str>,
}

/// The object of a request.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectReference<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
}

impl Record {
    /// Whether a stage is recorded.
    pub(super) fn has(&self, stage: Stage) -> bool {
        !self.decision.omit_stages.contains(&stage)
    }

    /// Whether request bodies are recorded.
    pub(crate) fn has_request_object(&self) -> bool {
        self.decision.level >= Level::Request
    }

    /// Whether responses are recorded.
    pub(super) fn has_response_object(&self) -> bool {
        self.decision.level >= Level::RequestResponse
    }

    /// Records the body of a request, if it is JSON.
    pub(crate) fn request_body(&mut self, bytes: &[u8]) {
        #[derive(Deserialize)]
        struct Body {
            #[serde(default)]
            metadata: SentMetadata,
        }
        // A patch or the options of a delete is not the object.
        if matches!(self.request.verb.as_str(), "create" | "update")
            && let Ok(body) = serde_json::from_slice::<Body>(bytes)
        {
            self.sent = body.metadata;
        }
        if self.has_request_object() {
            let object = serde_json::from_slice(bytes).ok();
            self.request_object = object.map(|object| self.shown(object));
        }
    }

    /// An object as it is recorded.
    pub(super) fn shown(&self, mut object: Value) -> Value {
        if self.decision.omit_managed_fields {
            omit_managed_fields(&mut object);
        }
        object
    }

    /// The line of a stage, with its line break.
    pub(super) fn line(&self, stage: Stage, now: Timestamp) -> Vec<u8> {
        let event = Event {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: self.decision.level,
            audit_id: &self.audit_id,
            stage,
            request_uri: &self.request_uri,
            verb: &self.request.verb,
            user: user_info(&self.user),
            impersonated_user: self.impersonated_user.as_ref().map(user_info),
            source_ips: self.source_ip.iter().map(String::as_str).collect(),
            user_agent: &self.user_agent,
            object_ref: self.object_ref(),
            response_status: self.response_status.as_ref(),
            request_object: self.request_object.as_ref(),
            response_object: self
                .response_object
                .as_ref()
                .filter(|_| stage == Stage::ResponseComplete),
            request_received_timestamp: self.received.strftime(MICRO_TIME).to_string(),
            stage_timestamp: now.strftime(MICRO_TIME).to_string(),
            annotations: self.annotations(),
        };
        let mut line = serde_json::to_vec(&event).expect("an event has string keys");
        line.push(b'\n');
        line
    }

    fn object_ref(&self) -> Option<ObjectReference<'_>> {
        if !self.request.is_resource() {
            return None;
        }
        let target = &self.request.resource;
        Some(ObjectReference {
            resource: &target.resource,
            namespace: first_set(&target.namespace, &self.sent.namespace),
            name: first_set(&target.name, &self.sent.name),
            uid: &self.sent.uid,
            api_group: &target.group,
            api_version: &target.version,
            resource_version: &self.sent.resource_version,
            subresource: &target.subresource,
        })
    }

    fn annotations(&self) -> BTreeMap<&str, &str> {
        let admission = self.admission_annotations.iter();
        let mut annotations: BTreeMap<&str, &str> = admission
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let (decision, reason) = match &self.authorization {
            None => return annotations,
            Some(Decision::Allow(reason)) => ("allow", reason),
            Some(Decision::NoOpinion(reason)) => ("forbid", reason),
        };
        annotations.insert("authorization.k8s.io/decision", decision);
        annotations.insert("authorization.k8s.io/reason", reason);
        annotations
    }
}

/// The name in the path, or else the one in the body.
fn first_set<'a>(path: &'a str, sent: &'a str) -> &'a str {
    if path.is_empty() { sent } else { path }
}

fn user_info(user: &User) -> Value {
    let mut info = json!({});
    if !user.name.is_empty() {
        info["username"] = user.name.as_str().into();
    }
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.groups.is_empty() {
        info["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

/// Removes the managed fields of an object, and of the items of a list.
fn omit_managed_fields(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    if let Some(Value::Array(items)) = object.get_mut("items") {
        items.iter_mut().for_each(omit_managed_fields);
    }
}
