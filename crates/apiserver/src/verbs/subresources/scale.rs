//! The `scale` subresource.
//! In: an object that scales, and a Scale to write. Out: its Scale.
//! Guarantees: a write changes `spec.replicas` and nothing else.
//! Mirrors `ScaleREST` in `pkg/registry/apps/deployment/storage`.

use std::sync::LazyLock;

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind, GroupResource},
    field::FieldError,
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::{
    body::Expected,
    object::{Object, ObjectMeta},
    patch::merge,
    types,
};
use bellerophon_resources::kinds::Selector;
use serde_json::{Map, Value};

use super::read_as;
use crate::{
    admission::Operation,
    api::Api,
    http::query::WriteOptions,
    managed_fields::ScaleManagedFields,
    registry::{Decoded, Resource},
    verbs::{Call, Content, Reply, change, get},
    write::{self, Change, Written},
};

static SCALE: LazyLock<Expected> = LazyLock::new(|| {
    Expected::of("autoscaling", "v1", "Scale").expect("the table of types has scales")
});

/// The number of replicas in the Scale of an object without one.
const NO_REPLICAS: i64 = i32::MIN as i64;

/// Shows the Scale of an object.
///
/// # Errors
/// No such object, or one without a wanted number of replicas.
pub(super) async fn get(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let resource = &call.target.resource;
    let stored = get::stored(api, call).await?;
    let object = resource.read(&stored);
    let places = Places::of(resource);
    if places.custom && places.replicas(&object).is_none() {
        return Err(ApiError::Internal(format!(
            "the spec replicas field {:?} does not exist",
            places.shown_spec()
        )));
    }
    Ok(Reply::ok(Content::Object(Box::new(places.read(&object)))))
}

/// Replaces the wanted number of replicas.
///
/// # Errors
/// A body that cannot be read, a stale version, a number that is not valid.
pub(super) async fn update(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "UpdateOptions", false)?;
    let mut wanted = read_as(call, &SCALE, &options)?;
    change::settle_name(call, &mut wanted)?;
    write(api, call, &options, Owning::Update, |_| Ok(wanted.clone())).await
}

/// Changes the wanted number of replicas by a patch of the Scale.
///
/// # Errors
/// A patch that cannot be read or applied, a stale version, a number that is not valid.
pub(super) async fn patch(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    if change::patch_type(call) == change::APPLY {
        return apply(api, call).await;
    }
    let options = WriteOptions::read(&call.query, "PatchOptions", false)?;
    let (patch, duplicates) = change::read_patch(call)?;
    write(api, call, &options, Owning::Update, |scale| {
        let mut patched = patch.patched(scale, |value| {
            let decoded = types::decode(SCALE.ty(), value)?;
            let object = Object::from_map(decoded.object).map_err(|e| e.to_string())?;
            Ok(Decoded {
                object,
                strict: decoded.strict,
            })
        })?;
        change::settle_name(call, &mut patched.object)?;
        patch.validate_fields(
            call,
            scale,
            [duplicates.as_slice(), &patched.unknown].concat(),
            &options,
        )?;
        Ok(patched.object)
    })
    .await
}

/// Applies a Scale.
async fn apply(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "PatchOptions", true)?;
    let change::Configuration {
        value: config,
        repeated,
    } = change::Configuration::read(&call.body)?;
    change::validate_duplicates(call, repeated.as_ref(), &options)?;
    write(api, call, &options, Owning::Apply, |scale| {
        let found = |name| config.get(name).and_then(Value::as_str).unwrap_or_default();
        if (found("apiVersion"), found("kind")) != (&scale.api_version, &scale.kind) {
            let api_version = found("apiVersion");
            let kind = found("kind");
            let slash = if api_version.contains('/') { "" } else { "/" };
            return Err(ApiError::BadRequest(format!(
                "invalid object type: {slash}{api_version}, Kind={kind}"
            )));
        }
        let mut value = scale.to_value();
        merge(&mut value, config.clone());
        let refused = |why| {
            ApiError::Unnamed(format!(
                "failed to convert new object ({}) to proper version: {why}",
                call.target.name
            ))
        };
        let decoded = types::decode(SCALE.ty(), value).map_err(refused)?;
        let mut wanted = Object::from_map(decoded.object).map_err(|e| refused(e.to_string()))?;
        change::settle_name(call, &mut wanted)?;
        Ok(wanted)
    })
    .await
}

/// How a write comes to own the replicas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owning {
    Update,
    Apply,
}

async fn write(
    api: &Api,
    call: &Call,
    options: &WriteOptions,
    owning: Owning,
    mut edit: impl FnMut(&Object) -> Result<Object, ApiError> + Send,
) -> Result<Reply, ApiError> {
    let resource = &call.target.resource;
    let places = Places::of(resource);
    let change = Change {
        may_create: false,
        ..Change::whole(resource)
    };
    let tracker = call.tracker(api, options);
    let owners = ScaleManagedFields {
        tracker: &tracker,
        path: places.spec.iter().map(String::as_str).collect(),
    };
    let key = call.target.key();
    let mut admitted = None;
    if let Some(stored) = api.store.get(&resource.collection, &key) {
        let old = places.read(&resource.read(&stored));
        let mut wanted = edit(&old)?;
        let sent = wanted.clone();
        let attributes = call.attributes();
        let operation = Operation::Update;
        let dry_run = options.dry_run;
        write::admit(
            api,
            &attributes,
            operation,
            dry_run,
            &mut wanted,
            Some(&old),
        )
        .await?;
        admitted = (wanted != sent).then_some(wanted);
    }
    let updated = write::update(api, resource, &key, change, options.dry_run, None, |old| {
        let old = old.ok_or_else(|| call.target.not_found())?;
        let wanted = match &admitted {
            Some(admitted) => admitted.clone(),
            None => edit(&places.read(old))?,
        };
        let mut new = places.apply(resource, old, &wanted)?;
        match owning {
            Owning::Update => owners.update(old, &mut new),
            Owning::Apply => owners.apply(old, &mut new, options.force)?,
        }
        Ok(new)
    })
    .await?;
    let object = match updated.written {
        Written::Stored(stored) => resource.read(&stored),
        Written::Unstored(object) => *object,
    };
    call.warnings.add(updated.warnings);
    Ok(Reply::ok(Content::Object(Box::new(places.read(&object)))))
}

/// Where a kind keeps its replicas.
#[derive(Debug)]
struct Places {
    /// The wanted number, as a path of fields.
    spec: Vec<String>,
    /// The number there is.
    status: Vec<String>,
    /// The text of the selector that finds replicas; built-in kinds have a selector to be written
    /// out instead.
    selector: Option<Vec<String>>,
    custom: bool,
}

impl Places {
    fn of(resource: &Resource) -> Self {
        let path = |text: &str| {
            text.trim_start_matches('.')
                .split('.')
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        match resource.custom().and_then(|custom| custom.scale.as_ref()) {
            Some(scale) => Self {
                spec: path(&scale.spec_replicas_path),
                status: path(&scale.status_replicas_path),
                selector: scale.label_selector_path.as_deref().map(path),
                custom: true,
            },
            None => Self {
                spec: path("spec.replicas"),
                status: path("status.replicas"),
                selector: None,
                custom: false,
            },
        }
    }

    fn shown_spec(&self) -> String {
        format!(".{}", self.spec.join("."))
    }

    fn replicas(&self, object: &Object) -> Option<i64> {
        at(object, &self.spec).and_then(Value::as_i64)
    }

    /// The Scale of an object.
    fn read(&self, object: &Object) -> Object {
        let absent = if self.custom { NO_REPLICAS } else { 0 };
        let mut spec = Map::new();
        match self.replicas(object).unwrap_or(absent) {
            0 => {}
            replicas => spec.default_to("replicas", replicas),
        }
        let mut status = Map::new();
        status.default_to(
            "replicas",
            at(object, &self.status)
                .and_then(Value::as_i64)
                .unwrap_or_default(),
        );
        match self.selector_text(object) {
            text if text.is_empty() => {}
            text => status.default_to("selector", text),
        }
        let ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            creation_timestamp,
            ..
        } = object.meta.clone();
        Object {
            api_version: "autoscaling/v1".into(),
            kind: "Scale".into(),
            meta: ObjectMeta {
                name,
                namespace,
                uid,
                resource_version,
                creation_timestamp,
                ..ObjectMeta::default()
            },
            body: Map::from_iter([
                ("spec".to_owned(), spec.into()),
                ("status".to_owned(), status.into()),
            ]),
        }
    }

    fn selector_text(&self, object: &Object) -> String {
        if self.custom {
            let text = self
                .selector
                .as_ref()
                .and_then(|path| at(object, path))
                .and_then(Value::as_str);
            return text.unwrap_or_default().to_owned();
        }
        let selector = object.at("spec.selector");
        let is_plain = selector
            .and_then(Value::as_object)
            .is_some_and(|s| s.values().all(Value::is_string));
        if is_plain {
            return Selector::of_labels(selector.and_then(Value::as_object)).to_string();
        }
        Selector::read(selector)
            .map(|s| s.to_string())
            .unwrap_or_default()
    }

    /// The object with the replicas of a Scale.
    fn apply(&self, resource: &Resource, old: &Object, scale: &Object) -> Result<Object, ApiError> {
        let replicas = scale.body.field("spec").number("replicas");
        if self.custom && replicas == NO_REPLICAS {
            return Err(ApiError::BadRequest(format!(
                "the spec replicas field {:?} cannot be empty",
                self.shown_spec()
            )));
        }
        if !self.custom && replicas < 0 {
            let error = FieldError::invalid(
                "spec.replicas",
                replicas,
                "must be greater than or equal to 0",
            );
            let kind = GroupKind::new("autoscaling", "Scale");
            return Err(ApiError::Invalid {
                kind,
                name: old.meta.name.clone(),
                errors: vec![error],
            });
        }
        if !scale.meta.uid.is_empty() && scale.meta.uid != old.meta.uid {
            let subresource = if self.custom { "" } else { "/scale" };
            let what = GroupResource::new(
                resource.group.as_str(),
                format!("{}{subresource}", resource.plural),
            );
            let why = format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                scale.meta.uid, old.meta.uid
            );
            return Err(ApiError::Conflict {
                what,
                name: old.meta.name.clone(),
                why,
            });
        }
        let mut new = old.clone();
        if !scale.meta.resource_version.is_empty() {
            new.meta
                .resource_version
                .clone_from(&scale.meta.resource_version);
        }
        set(&mut new.body, &self.spec, replicas.into());
        Ok(new)
    }
}

fn at<'a>(object: &'a Object, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter()
        .try_fold(object.body.get(first)?, |value, step| value.get(step))
}

fn set(map: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => {
            map.insert(last.clone(), value);
        }
        [first, rest @ ..] => set(map.map_at(first), rest, value),
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;
    use serde_json::json;

    use super::*;

    fn built_in() -> Places {
        Places {
            spec: vec!["spec".into(), "replicas".into()],
            status: vec!["status".into(), "replicas".into()],
            selector: None,
            custom: false,
        }
    }

    #[test]
    fn scale_shows_replicas_and_selector() {
        let cases = [
            (
                json!({"spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}}}),
                json!({"spec": {"replicas": 3}, "status": {"replicas": 0, "selector": "app=web"}}),
            ),
            (
                json!({"spec": {"replicas": 0, "selector": {"b": "2", "a": "1"}}, "status": {"replicas": 2}}),
                json!({"spec": {}, "status": {"replicas": 2, "selector": "a=1,b=2"}}),
            ),
            (
                json!({"spec": {"selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["b", "a"]}]}}}),
                json!({"spec": {}, "status": {"replicas": 0, "selector": "app in (a,b)"}}),
            ),
        ];
        for (stored, shown) in cases {
            assert_eq!(
                Value::Object(built_in().read(&object(stored.clone())).body),
                shown,
                "{stored}"
            );
        }
    }

    #[test]
    fn custom_scale_follows_its_paths() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        let places = Places {
            spec: path("spec.size.wanted"),
            status: path("status.size"),
            selector: Some(path("status.picks")),
            custom: true,
        };
        let mut farm = object(json!({"status": {"size": 2, "picks": "a=b"}}));
        assert_eq!(
            Value::Object(places.read(&farm).body),
            json!({"spec": {"replicas": NO_REPLICAS}, "status": {"replicas": 2, "selector": "a=b"}})
        );
        set(&mut farm.body, &places.spec, json!(4));
        assert_eq!(places.replicas(&farm), Some(4));
        assert_eq!(farm.at("spec.size.wanted"), Some(&json!(4)));
    }
}
