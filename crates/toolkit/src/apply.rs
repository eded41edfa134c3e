//! Apply: writes that are noted, so that the next reconcile sees them.
//!
//! In: the wanted object. Out: what the server made of it.
//! Holds: each successful write passes the gate and the trace; what is already as wanted is not written.

use std::fmt::Debug;

use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::{ObjectKey, Writes};

/// What a helper could not do, and with which object.
#[derive(Debug, Error)]
#[error("cannot {verb} {kind} {key}: {source}")]
pub struct WriteError {
    verb: &'static str,
    kind: String,
    key: ObjectKey,
    /// The client's error; its status tells a conflict from a refusal.
    pub source: Box<kube::Error>,
}

impl WriteError {
    /// Whether somebody else changed the object first: read again and retry.
    pub fn is_conflict(&self) -> bool {
        matches!(&*self.source, kube::Error::Api(status) if status.code == 409)
    }

    /// Whether the object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(&*self.source, kube::Error::Api(status) if status.code == 404)
    }
}

/// What [`Writes::create_or_patch`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// There was none.
    Created,
    /// It was different.
    Patched,
    /// It was as wanted; nothing was written.
    Unchanged,
}

impl<D> Writes<D> {
    /// Applies an object on the server's side, as the field manager named like the controller, which takes over the fields it names.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn apply<W>(&self, api: &Api<W>, object: &W) -> Result<W, WriteError>
    where
        W: Resource<DynamicType = D> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let key = ObjectKey::of(object);
        let mut body = self
            .json(object)
            .map_err(|error| self.failed::<W>("apply", key.clone(), error))?;
        // Fields the server keeps are refused, or would be fought over.
        if let Some(metadata) = body
            .get_mut("metadata")
            .and_then(serde_json::Value::as_object_mut)
        {
            [
                "managedFields",
                "resourceVersion",
                "uid",
                "creationTimestamp",
                "generation",
            ]
            .into_iter()
            .for_each(|field| {
                metadata.remove(field);
            });
        }
        let answer = api
            .patch(
                key.name(),
                &PatchParams::apply(self.controller()).force(),
                &Patch::Apply(&body),
            )
            .await;
        self.note("apply", key, answer)
    }

    /// Applies only the status of an object, likewise.
    ///
    /// # Errors
    /// The server refuses, or there is no such object.
    pub async fn apply_status<W>(&self, api: &Api<W>, object: &W) -> Result<W, WriteError>
    where
        W: Resource<DynamicType = D> + Clone + Debug + Serialize + DeserializeOwned,
    {
        const VERB: &str = "apply the status of";
        let key = ObjectKey::of(object);
        let whole = self
            .json(object)
            .map_err(|error| self.failed::<W>(VERB, key.clone(), error))?;
        let body = serde_json::json!({
            "apiVersion": whole["apiVersion"],
            "kind": whole["kind"],
            "metadata": { "name": key.name() },
            "status": whole["status"],
        });
        let answer = api
            .patch_status(
                key.name(),
                &PatchParams::apply(self.controller()).force(),
                &Patch::Apply(&body),
            )
            .await;
        self.note(VERB, key, answer)
    }

    /// Creates `wanted` with the change, or makes the change to `current`, which is what a cache or the server has, if it makes a difference.
    ///
    /// A change carries the version it was made from, so that nobody else's change is lost.
    ///
    /// # Errors
    /// The server refuses, or somebody else changed the object first.
    pub async fn create_or_patch<W>(
        &self,
        api: &Api<W>,
        current: Option<&W>,
        mut wanted: W,
        change: impl FnOnce(&mut W),
    ) -> Result<(W, Done), WriteError>
    where
        W: Resource<DynamicType = D> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let key = ObjectKey::of(current.unwrap_or(&wanted));
        let Some(current) = current else {
            change(&mut wanted);
            let answer = api
                .create(
                    &PostParams {
                        field_manager: Some(self.controller().into()),
                        ..PostParams::default()
                    },
                    &wanted,
                )
                .await;
            return Ok((self.note("create", key, answer)?, Done::Created));
        };
        let mut changed = current.clone();
        change(&mut changed);
        let json = |object: &W| {
            self.json(object)
                .map_err(|error| self.failed::<W>("patch", key.clone(), error))
        };
        let Some(mut patch) = difference(&json(current)?, &json(&changed)?) else {
            return Ok((current.clone(), Done::Unchanged));
        };
        patch["metadata"]["resourceVersion"] = serde_json::json!(current.resource_version());
        let params = PatchParams {
            field_manager: Some(self.controller().into()),
            ..PatchParams::default()
        };
        let answer = api.patch(key.name(), &params, &Patch::Merge(&patch)).await;
        Ok((self.note("patch", key, answer)?, Done::Patched))
    }

    /// Deletes exactly the object that was read: neither a later version nor another one of its name. Being gone already is fine.
    ///
    /// # Errors
    /// The server refuses, or the object changed since it was read.
    pub async fn delete<W>(&self, api: &Api<W>, object: &W) -> Result<(), WriteError>
    where
        W: Resource<DynamicType = D> + Clone + Debug + DeserializeOwned,
    {
        let key = ObjectKey::of(object);
        let preconditions = Preconditions {
            uid: object.uid(),
            resource_version: object.resource_version(),
        };
        match api
            .delete(
                key.name(),
                &DeleteParams::default().preconditions(preconditions),
            )
            .await
        {
            Ok(answer) => {
                // An object held by finalizers is still there, in a newer version; a status means it is gone.
                answer
                    .map_left(|held| self.wrote(&held))
                    .map_right(|_| self.deleted::<W>(key));
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(self.failed::<W>("delete", key, error)),
        }
    }

    pub(crate) fn note<W>(
        &self,
        verb: &'static str,
        key: ObjectKey,
        answer: Result<W, kube::Error>,
    ) -> Result<W, WriteError>
    where
        W: Resource<DynamicType = D>,
    {
        let answer = answer.map_err(|error| self.failed::<W>(verb, key, error))?;
        self.wrote(&answer);
        Ok(answer)
    }

    pub(crate) fn failed<W: Resource<DynamicType = D>>(
        &self,
        verb: &'static str,
        key: ObjectKey,
        source: kube::Error,
    ) -> WriteError {
        WriteError {
            verb,
            kind: W::kind(&self.kind).into_owned(),
            key,
            source: Box::new(source),
        }
    }

    /// An object as JSON, with its kind.
    fn json<W: Resource<DynamicType = D> + Serialize>(
        &self,
        object: &W,
    ) -> Result<serde_json::Value, kube::Error> {
        let mut body = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
        body["apiVersion"] = W::api_version(&self.kind).into();
        body["kind"] = W::kind(&self.kind).into();
        Ok(body)
    }
}

/// The smallest merge patch (RFC 7386) from one JSON value to the other; `None` if they are equal.
///
/// What a merge patch cannot say is not said: a `null` inside an object reads as the field's absence.
pub fn difference(from: &serde_json::Value, to: &serde_json::Value) -> Option<serde_json::Value> {
    use serde_json::{Map, Value};
    match (from, to) {
        _ if from == to => None,
        (Value::Object(from), Value::Object(to)) => {
            let gone = from
                .keys()
                .filter(|key| !to.contains_key(*key))
                .map(|key| (key.clone(), Value::Null));
            let new = to.iter().filter_map(|(key, value)| match from.get(key) {
                Some(known) => difference(known, value).map(|patch| (key.clone(), patch)),
                None => Some((key.clone(), value.clone())),
            });
            Some(Value::Object(gone.chain(new).collect::<Map<_, _>>()))
        }
        _ => Some(to.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn difference_is_the_smallest_merge_patch() {
        for (from, to, patch) in [
            (json!({"a": 1}), json!({"a": 1}), None),
            (json!({"a": 1}), json!({"a": 2}), Some(json!({"a": 2}))),
            (
                json!({"a": 1, "b": {"c": 1, "d": 2}}),
                json!({"a": 1, "b": {"c": 1}}),
                Some(json!({"b": {"d": null}})),
            ),
            (
                json!({"a": [1, 2]}),
                json!({"a": [1]}),
                Some(json!({"a": [1]})),
            ),
            (
                json!({}),
                json!({"a": {"b": 1}}),
                Some(json!({"a": {"b": 1}})),
            ),
        ] {
            assert_eq!(difference(&from, &to), patch, "{from} -> {to}");
        }
    }
}
