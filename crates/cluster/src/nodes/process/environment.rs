//! Environment variables of a container.
//!
//! In: the container, the config maps, secrets and files it refers to, the services of its
//! namespace. Out: its variables, sorted by name.
//! Guarantees: later entries override earlier ones; `env` overrides `envFrom`; both override the
//! variables of services. Mirrors `makeEnvironmentVariables`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bellerophon_process_runtime::expansion::expand;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVarSource, FileKeySelector, Pod, Secret,
};
use tracing::warn;

use super::super::runtime::PodNode;
use super::{downward_api, env_file};

/// What environment variables are made from.
pub(super) struct EnvironmentInputs<'a> {
    pub(super) pod: &'a Pod,
    pub(super) node: &'a PodNode,
    pub(super) container: &'a Container,
    /// The variables of services.
    pub(super) services: BTreeMap<String, String>,
    /// The config maps and secrets that exist, by name.
    pub(super) config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub(super) secrets: BTreeMap<String, Arc<Secret>>,
    /// The directories of volumes whose files containers write, by the name of the volume.
    pub(super) empty_dirs: BTreeMap<String, PathBuf>,
}

/// The names of the config maps and secrets that a container refers to.
pub(super) fn references(container: &Container) -> (Vec<&str>, Vec<&str>) {
    let mut config_maps = Vec::new();
    let mut secrets = Vec::new();
    for source in container.env_from.iter().flatten() {
        config_maps.extend(source.config_map_ref.iter().map(|it| it.name.as_str()));
        secrets.extend(source.secret_ref.iter().map(|it| it.name.as_str()));
    }
    for source in container.env.iter().flatten() {
        let Some(source) = &source.value_from else {
            continue;
        };
        config_maps.extend(source.config_map_key_ref.iter().map(|it| it.name.as_str()));
        secrets.extend(source.secret_key_ref.iter().map(|it| it.name.as_str()));
    }
    (config_maps, secrets)
}

/// The variables of a container; the error is the message of `CreateContainerConfigError`.
pub(super) fn environment(
    inputs: &EnvironmentInputs<'_>,
) -> Result<BTreeMap<String, String>, String> {
    let mut env = BTreeMap::new();
    inputs.add_env_from(&mut env)?;
    for variable in inputs.container.env.iter().flatten() {
        let value = match (variable.value.as_deref(), &variable.value_from) {
            (None | Some(""), Some(source)) => match inputs.value_from(source)? {
                Some(value) => value,
                None => continue,
            },
            (value, _) => expand(value.unwrap_or_default(), |name| {
                env.get(name).or_else(|| inputs.services.get(name))
            }),
        };
        env.insert(variable.name.clone(), value);
    }
    for (name, value) in &inputs.services {
        env.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Ok(env)
}

impl EnvironmentInputs<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn add_env_from(&self, env: &mut BTreeMap<String, String>) -> Result<(), String> {
        for source in self.container.env_from.iter().flatten() {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            if let Some(reference) = &source.config_map_ref {
                let found = self.config_maps.get(&reference.name);
                let found = required(found, reference.optional, || {
                    format!("configmap {:?} not found", reference.name)
                })?;
                let data = found.iter().flat_map(|it| it.data.iter().flatten());
                env.extend(data.map(|(key, value)| (format!("{prefix}{key}"), value.clone())));
            }
            if let Some(reference) = &source.secret_ref {
                let found = self.secrets.get(&reference.name);
                let found = required(found, reference.optional, || {
                    format!("secret {:?} not found", reference.name)
                })?;
                let data = found.iter().flat_map(|it| it.data.iter().flatten());
                env.extend(data.map(|(key, value)| (format!("{prefix}{key}"), text(&value.0))));
            }
        }
        Ok(())
    }

    /// The value of a variable; `None` if its source is optional and missing.
    fn value_from(&self, source: &EnvVarSource) -> Result<Option<String>, String> {
        if let Some(field) = &source.field_ref {
            return downward_api::field(self.pod, self.node, &field.field_path).map(Some);
        }
        if let Some(field) = &source.resource_field_ref {
            return downward_api::resource(self.pod, Some(&self.container.name), field).map(Some);
        }
        if let Some(reference) = &source.config_map_key_ref {
            let found = self.config_maps.get(&reference.name);
            let Some(found) = required(found, reference.optional, || {
                format!("configmap {:?} not found", reference.name)
            })?
            else {
                return Ok(None);
            };
            let value = found
                .data
                .as_ref()
                .and_then(|data| data.get(&reference.key));
            let value = required(value, reference.optional, || {
                let namespace = self.namespace();
                let name = &reference.name;
                format!(
                    "couldn't find key {} in ConfigMap {namespace}/{name}",
                    reference.key
                )
            })?;
            return Ok(value.cloned());
        }
        if let Some(reference) = &source.secret_key_ref {
            let found = self.secrets.get(&reference.name);
            let Some(found) = required(found, reference.optional, || {
                format!("secret {:?} not found", reference.name)
            })?
            else {
                return Ok(None);
            };
            let value = found
                .data
                .as_ref()
                .and_then(|data| data.get(&reference.key));
            let value = required(value, reference.optional, || {
                let namespace = self.namespace();
                let name = &reference.name;
                format!(
                    "couldn't find key {} in Secret {namespace}/{name}",
                    reference.key
                )
            })?;
            return Ok(value.map(|value| text(&value.0)));
        }
        if let Some(reference) = &source.file_key_ref {
            return self.file_value(reference);
        }
        Ok(Some(String::new()))
    }

    /// The value of a key in a file of an emptyDir.
    fn file_value(&self, reference: &FileKeySelector) -> Result<Option<String>, String> {
        let FileKeySelector {
            key,
            path,
            volume_name,
            ..
        } = reference;
        let volume = self.empty_dirs.get(volume_name);
        let volume = volume.ok_or_else(|| {
            format!("cannot find the volume {volume_name:?} referenced by FileKeyRef")
        })?;
        let value = env_file::read_value(volume, path, key).map_err(|error| {
            let pod = self.pod.metadata.name.as_deref().unwrap_or_default();
            warn!(pod, %error, "environment variables were not read from a file");
            "couldn't parse env file".to_owned()
        })?;
        required(value, reference.optional, || {
            let file = volume.join(path);
            format!("environment variable key {key:?} not found in file {file:?}")
        })
    }
}

/// What was found; an error if it is missing and not optional.
fn required<T>(
    found: Option<T>,
    optional: Option<bool>,
    error: impl FnOnce() -> String,
) -> Result<Option<T>, String> {
    if found.is_none() && optional != Some(true) {
        return Err(error());
    }
    Ok(found)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(container: Value) -> Result<String, String> {
        let mut container = container;
        container["name"] = json!("app");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "labels": {"a": "b"}},
            "spec": {"nodeName": "node-1", "containers": [container]},
        }))
        .unwrap();
        let config_map: ConfigMap =
            serde_json::from_value(json!({"data": {"COLOR": "red", "SIZE": "$(COLOR)"}})).unwrap();
        // "s3cret" in base64.
        let secret: Secret =
            serde_json::from_value(json!({"data": {"PASSWORD": "czNjcmV0"}})).unwrap();
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("env"), "COLOR='blue'\n").unwrap();
        std::fs::write(files.path().join("wrong"), "COLOR=blue\n").unwrap();
        let node = PodNode {
            name: "node-1".into(),
            host_ip: "172.16.0.1".into(),
            pod_ip: Some("10.128.1.2".into()),
        };
        let inputs = EnvironmentInputs {
            pod: &pod,
            node: &node,
            container: &pod.spec.as_ref().unwrap().containers[0],
            services: [("DB_SERVICE_HOST".to_owned(), "10.96.0.9".to_owned())].into(),
            config_maps: [("settings".to_owned(), Arc::new(config_map))].into(),
            secrets: [("login".to_owned(), Arc::new(secret))].into(),
            empty_dirs: [("shared".to_owned(), files.path().to_owned())].into(),
        };
        let mut env = environment(&inputs)?;
        env.remove("DB_SERVICE_HOST");
        let pairs: Vec<_> = env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        Ok(pairs.join(" "))
    }

    #[test]
    fn variables_come_from_all_sources_in_order() {
        let key_ref = |kind: &str, name: &str, key: &str, optional: bool| {
            let reference = json!({"name": name, "key": key, "optional": optional});
            json!({"env": [{"name": "A", "valueFrom": {kind: reference}}]})
        };
        let field_ref = |path: &str| json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]});
        let file_ref = |volume: &str, path: &str, key: &str, optional: bool| {
            let reference =
                json!({"volumeName": volume, "path": path, "key": key, "optional": optional});
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": reference}}]})
        };
        let resource = json!({"resource": "limits.memory", "divisor": "1Mi"});
        let cases = [
            (
                json!({"env": [
                    {"name": "B", "value": "$(A) $(DB_SERVICE_HOST)"},
                    {"name": "A", "value": "1"},
                    {"name": "C", "value": "$(A)$$(A)"},
                ]}),
                Ok("A=1 B=$(A) 10.96.0.9 C=1$(A)"),
            ),
            (
                json!({"envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}],
                       "env": [{"name": "P_COLOR", "value": "blue"}]}),
                Ok("P_COLOR=blue P_SIZE=$(COLOR)"),
            ),
            (
                json!({"envFrom": [{"secretRef": {"name": "login"}}]}),
                Ok("PASSWORD=s3cret"),
            ),
            (
                json!({"envFrom": [{"secretRef": {"name": "none", "optional": true}}]}),
                Ok(""),
            ),
            (
                json!({"envFrom": [{"secretRef": {"name": "none"}}]}),
                Err("secret \"none\" not found"),
            ),
            (
                key_ref("configMapKeyRef", "settings", "COLOR", false),
                Ok("A=red"),
            ),
            (
                key_ref("secretKeyRef", "login", "PASSWORD", false),
                Ok("A=s3cret"),
            ),
            (
                key_ref("configMapKeyRef", "none", "COLOR", false),
                Err("configmap \"none\" not found"),
            ),
            (key_ref("configMapKeyRef", "settings", "X", true), Ok("")),
            (
                key_ref("configMapKeyRef", "settings", "X", false),
                Err("couldn't find key X in ConfigMap shop/settings"),
            ),
            (
                key_ref("secretKeyRef", "login", "X", false),
                Err("couldn't find key X in Secret shop/login"),
            ),
            (file_ref("shared", "env", "COLOR", false), Ok("A=blue")),
            (file_ref("shared", "env", "SIZE", true), Ok("")),
            (
                file_ref("shared", "wrong", "COLOR", true),
                Err("couldn't parse env file"),
            ),
            (
                file_ref("shared", "missing", "COLOR", true),
                Err("couldn't parse env file"),
            ),
            (
                file_ref("other", "env", "COLOR", true),
                Err("cannot find the volume \"other\" referenced by FileKeyRef"),
            ),
            (field_ref("metadata.name"), Ok("A=web")),
            (field_ref("metadata.labels['a']"), Ok("A=b")),
            (field_ref("status.podIP"), Ok("A=10.128.1.2")),
            (field_ref("spec.nodeName"), Ok("A=node-1")),
            (
                json!({"resources": {"limits": {"memory": "64Mi"}},
                       "env": [{"name": "A", "valueFrom": {"resourceFieldRef": resource}}]}),
                Ok("A=64"),
            ),
        ];
        for (container, expected) in cases {
            let found = check(container.clone());
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(found, expected, "{container}");
        }
    }
}
