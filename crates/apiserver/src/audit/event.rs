//! Audit events, as they are written: `audit.k8s.io/v1` Event.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::policy::{Decision, Level, Stage};
use crate::{auth::User, http::request_info::RequestInfo, object::Time};

/// A request that is recorded, with what is known of it so far.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(super) decision: Decision,
    pub(crate) audit_id: String,
    pub(crate) request_uri: String,
    pub(crate) request: RequestInfo,
    pub(crate) user: User,
    /// Who the request was made by, if it impersonates `user`.
    pub(crate) impersonator: Option<User>,
    pub(crate) source_ip: Option<String>,
    pub(crate) user_agent: String,
    pub(crate) received: Time,
    pub(crate) request_object: Option<Value>,
    pub(crate) response_object: Option<Value>,
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
    object_ref: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_object: Option<&'a Value>,
    request_received_timestamp: String,
    stage_timestamp: String,
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
    pub(crate) fn has_response_object(&self) -> bool {
        self.decision.level >= Level::RequestResponse
    }

    /// An object as it is recorded.
    pub(crate) fn shown(&self, mut object: Value) -> Value {
        if self.decision.omit_managed_fields {
            omit_managed_fields(&mut object);
        }
        object
    }

    /// The line of a stage, with its line break.
    pub(super) fn line(&self, stage: Stage, code: Option<u16>, now: Time) -> Vec<u8> {
        let event = Event {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: self.decision.level,
            audit_id: &self.audit_id,
            stage,
            request_uri: &self.request_uri,
            verb: &self.request.verb,
            user: user_info(self.impersonator.as_ref().unwrap_or(&self.user)),
            impersonated_user: self.impersonator.as_ref().map(|_| user_info(&self.user)),
            source_ips: self.source_ip.iter().map(String::as_str).collect(),
            user_agent: &self.user_agent,
            object_ref: self.object_ref(),
            response_status: code.map(|code| json!({"metadata": {}, "code": code})),
            request_object: self.request_object.as_ref(),
            response_object: self
                .response_object
                .as_ref()
                .filter(|_| stage == Stage::ResponseComplete),
            request_received_timestamp: self.received.to_string(),
            stage_timestamp: now.to_string(),
        };
        let mut line = serde_json::to_vec(&event).expect("an event has string keys");
        line.push(b'\n');
        line
    }

    fn object_ref(&self) -> Option<Value> {
        if !self.request.is_resource() {
            return None;
        }
        let target = &self.request.resource;
        let texts = [
            ("resource", &target.resource),
            ("namespace", &target.namespace),
            ("name", &target.name),
            ("apiGroup", &target.group),
            ("apiVersion", &target.version),
            ("subresource", &target.subresource),
        ];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let map: Map<String, Value> = texts
            .map(|(name, text)| (name.to_owned(), text.as_str().into()))
            .collect();
        Some(Value::Object(map))
    }
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name});
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
