//! The options of a delete: from the body, or from the query.

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::FieldError,
};
use bellerophon_codec::body::{self, Expected};
use serde_json::{Map, Value};

use super::Call;
use crate::{
    http::query::check_dry_run,
    registry::Resource,
    write::{DeleteOptions, Effects, Preconditions, Propagation},
};

impl DeleteOptions {
    /// Reads the options of a request.
    ///
    /// # Errors
    /// A body that is no DeleteOptions (400), values that are not allowed (422).
    pub(super) fn read(call: &Call) -> Result<Self, ApiError> {
        Self::from_map(&if call.body.is_empty() {
            from_query(call)?
        } else {
            from_body(call)?
        })
    }

    /// Reads options that are already JSON.
    ///
    /// # Errors
    /// 422 for values that are not allowed.
    pub(super) fn from_map(map: &Map<String, Value>) -> Result<Self, ApiError> {
        let text = |v: &Value| v.as_str().map(str::to_owned);
        let mut errors = Vec::new();
        let policy = map.get("propagationPolicy").and_then(text);
        let orphan = map.get("orphanDependents").and_then(Value::as_bool);
        if policy.is_some() && orphan.is_some() {
            errors.push(FieldError::invalid(
                "propagationPolicy",
                policy.as_deref().unwrap_or_default(),
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        let propagation = match policy.as_deref() {
            None => orphan.map(|o| {
                if o {
                    Propagation::Orphan
                } else {
                    Propagation::Background
                }
            }),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Background") => Some(Propagation::Background),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                errors.push(FieldError::not_supported(
                    "propagationPolicy",
                    other,
                    &["Foreground", "Background", "Orphan", "nil"],
                ));
                None
            }
        };
        let stages: Vec<&str> = map
            .get("dryRun")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let dry_run = check_dry_run(&stages, &mut errors);
        ApiError::from_fields(GroupKind::new("meta.k8s.io", "DeleteOptions"), "", errors)?;
        let condition = |key: &str| {
            map.get("preconditions")
                .and_then(|p| p.get(key))
                .and_then(text)
        };
        Ok(Self {
            dry_run,
            grace_period_seconds: map.get("gracePeriodSeconds").and_then(Value::as_i64),
            preconditions: Preconditions {
                uid: condition("uid"),
                resource_version: condition("resourceVersion"),
            },
            propagation,
            effects: Effects::Immediate,
        })
    }

    /// The warning about this delete.
    pub(super) fn warnings(&self, resource: &Resource) -> Option<String> {
        resource
            .strategy
            .delete_warning
            .filter(|_| self.propagation.is_none())
            .map(str::to_owned)
    }
}

fn from_query(call: &Call) -> Result<Map<String, Value>, ApiError> {
    let mut map = Map::new();
    if let Some(seconds) = call
        .query
        .get("gracePeriodSeconds")
        .filter(|s| !s.is_empty())
    {
        let seconds: i64 = seconds.parse().map_err(|_| {
            ApiError::BadRequest(format!(
                "strconv.ParseInt: parsing {seconds:?}: invalid syntax"
            ))
        })?;
        map.insert("gracePeriodSeconds".into(), seconds.into());
    }
    if call.query.has("orphanDependents") {
        map.insert(
            "orphanDependents".into(),
            call.query.flag("orphanDependents").into(),
        );
    }
    if let Some(policy) = call.query.get("propagationPolicy") {
        map.insert("propagationPolicy".into(), policy.into());
    }
    let stages: Vec<Value> = call
        .query
        .all("dryRun")
        .into_iter()
        .map(Value::from)
        .collect();
    if !stages.is_empty() {
        map.insert("dryRun".into(), Value::Array(stages));
    }
    Ok(map)
}

fn from_body(call: &Call) -> Result<Map<String, Value>, ApiError> {
    let encoding = call.body_encoding()?;
    let expected = Expected::of("", "v1", "DeleteOptions").expect("DeleteOptions have a type");
    body::read_options(&call.body, encoding, &expected).map_err(ApiError::BadRequest)
}
