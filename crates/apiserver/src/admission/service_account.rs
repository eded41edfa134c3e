//! Sets the service account of a pod and mounts its token.
//! Guarantees: a pod is stored only with an account that exists, or as a mirror pod of a kubelet.
//! Mirrors the plugin ServiceAccount.

use std::{collections::BTreeSet, time::Duration};

use bellerophon_apimachinery::{
    error::ApiError,
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::Admission;

/// The account of pods that name none.
const DEFAULT: &str = "default";
/// A new namespace gets its default account a moment after it is made; pods wait for it this long.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
const VOLUME_PREFIX: &str = "kube-api-access-";
const VOLUME_SUFFIX_LEN: usize = 5;
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// An hour and a little, so that tokens meant for an hour are distinguished from those of pods.
const TOKEN_SECONDS: i64 = 60 * 60 + 7;

/// Gives a new pod its account, the account's token and pull secrets.
///
/// # Errors
/// 403 for an account that does not exist.
pub(super) async fn mutate(request: &Admission<'_>, pod: &mut Object) -> Result<(), ApiError> {
    if !request.creates("", "pods") || pod.meta.annotations.contains_key(MIRROR) {
        return Ok(());
    }
    pod.section("spec")
        .default_text("serviceAccountName", DEFAULT);
    if pod.str_at("spec.serviceAccountName") == DEFAULT {
        // An account that never comes is reported by the look-up below.
        let _waited = tokio::time::timeout(DEFAULT_WAIT, default_account(request)).await;
    }
    let account = account_of(request, pod)?;
    let name = account.meta.name.as_str();
    let spec = pod.section("spec");
    spec.insert("serviceAccount".into(), name.into());
    let automount = [
        spec.get_set("automountServiceAccountToken"),
        account.body.get_set("automountServiceAccountToken"),
    ];
    if automount.into_iter().flatten().next() != Some(&Value::Bool(false)) {
        mount_token(pod, || {
            format!(
                "{VOLUME_PREFIX}{}",
                request.api.entropy.suffix(VOLUME_SUFFIX_LEN)
            )
        });
    }
    let secrets = account.body.list("imagePullSecrets");
    let spec = pod.section("spec");
    if spec.is_empty_at("imagePullSecrets") && !secrets.is_empty() {
        spec.insert(
            "imagePullSecrets".into(),
            secrets
                .iter()
                .map(|s| json!({"name": s.text("name")}))
                .collect(),
        );
    }
    Ok(())
}

/// Checks that a pod uses no more than its account may.
///
/// # Errors
/// 403 for secrets that the account does not list, and for mirror pods that need an account.
pub(super) fn validate(request: &Admission<'_>, pod: &Object) -> Result<(), ApiError> {
    let containers: &[(&str, &str)] = if request.creates("", "pods") {
        &[
            ("initContainers", "init container"),
            ("containers", "container"),
        ]
    } else if request.writes_subresource("", "pods", "ephemeralcontainers") {
        &[("ephemeralContainers", "ephemeral container")]
    } else {
        return Ok(());
    };
    if request.old.is_none() && pod.meta.annotations.contains_key(MIRROR) {
        return validate_mirror(pod).map_err(|why| request.forbid(pod, why));
    }
    if pod.str_at("spec.serviceAccountName").is_empty() {
        let why = format!(
            "no service account specified for pod {}/{}",
            request.namespace(),
            pod.meta.name
        );
        return Err(request.forbid(pod, why));
    }
    let account = account_of(request, pod)?;
    if account
        .meta
        .annotations
        .get(ENFORCE)
        .is_none_or(|value| !is_true(value))
    {
        return Ok(());
    }
    validate_secrets(pod, &account, containers, request.old.is_none())
        .map_err(|why| request.forbid(pod, why))
}

/// Resolves when the default account of the namespace exists.
async fn default_account(request: &Admission<'_>) {
    loop {
        let revision = request.api.store.revision();
        if request
            .look_up("/serviceaccounts", request.namespace(), DEFAULT)
            .is_some()
        {
            return;
        }
        request.api.store.reached(revision + 1).await;
    }
}

fn account_of(request: &Admission<'_>, pod: &Object) -> Result<Object, ApiError> {
    let namespace = request.namespace();
    let name = pod.str_at("spec.serviceAccountName");
    request.look_up("/serviceaccounts", namespace, name).ok_or_else(|| {
        let why = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
        request.forbid(pod, why)
    })
}

/// Mounts the token volume into every container that has nothing in its place.
fn mount_token(pod: &mut Object, new_name: impl FnOnce() -> String) {
    let spec = pod.section("spec");
    let known = spec
        .list("volumes")
        .iter()
        .map(|v| v.text("name"))
        .find(|name| name.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let has_volume = known.is_some();
    let volume = known.unwrap_or_else(new_name);
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in spec.maps_mut(list) {
            let mut mounts = container.list("volumeMounts").to_vec();
            if !mounts.iter().any(|m| m.text("mountPath") == MOUNT_PATH) {
                mounts.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}));
                container.insert("volumeMounts".into(), mounts.into());
                needed = true;
            }
        }
    }
    if needed && !has_volume {
        let mut volumes = spec.list("volumes").to_vec();
        volumes.push(json!({"name": volume, "projected": {"defaultMode": 0o644, "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}}));
        spec.insert("volumes".into(), volumes.into());
    }
}

/// As Go reads a flag; anything else is false.
fn is_true(text: &str) -> bool {
    ["1", "t", "T", "true", "TRUE", "True"].contains(&text)
}

/// A mirror pod refers to no objects of the cluster.
fn validate_mirror(pod: &Object) -> Result<(), String> {
    let spec = pod.body.field("spec");
    if !spec.text("serviceAccountName").is_empty() {
        return Err("a mirror pod may not reference service accounts".into());
    }
    let containers = ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| spec.list(list));
    let in_containers = containers.flat_map(secrets_of).next().is_some();
    let in_volumes = spec.list("volumes").iter().any(|v| {
        v.has("secret")
            || v.field("projected")
                .list("sources")
                .iter()
                .any(|s| s.has("secret"))
    });
    if in_containers || in_volumes || !spec.list("imagePullSecrets").is_empty() {
        return Err("a mirror pod may not reference secrets".into());
    }
    let sources = spec
        .list("volumes")
        .iter()
        .flat_map(|v| v.field("projected").list("sources"));
    if sources
        .into_iter()
        .any(|source| source.has("serviceAccountToken"))
    {
        return Err("a mirror pod may not use ServiceAccountToken volume projections".into());
    }
    Ok(())
}

/// Where a container refers to a secret: how the message names the place, and the secret.
fn secrets_of(container: &Value) -> impl Iterator<Item = (String, &str)> {
    let env = container.list("env").iter().filter_map(|e| {
        let secret = e.field("valueFrom").get_set("secretKeyRef")?;
        Some((format!("envVar {}", e.text("name")), secret.text("name")))
    });
    let env_from = container
        .list("envFrom")
        .iter()
        .filter_map(|e| Some(("envFrom".to_owned(), e.get_set("secretRef")?.text("name"))));
    env.chain(env_from)
}

fn validate_secrets(
    pod: &Object,
    account: &Object,
    containers: &[(&str, &str)],
    whole: bool,
) -> Result<(), String> {
    let spec = pod.body.field("spec");
    let owner = &account.meta.name;
    let names = |list: &str| -> BTreeSet<&str> {
        let references = account.body.list(list).iter();
        references.map(|reference| reference.text("name")).collect()
    };
    let secrets = names("secrets");
    let pull_secrets = names("imagePullSecrets");
    if whole {
        for secret in spec
            .list("volumes")
            .iter()
            .filter_map(|v| v.get_set("secret"))
            .map(|s| s.text("secretName"))
        {
            if !secrets.contains(secret) {
                return Err(format!(
                    "volume with secret.secretName=\"{secret}\" is not allowed because service account {owner} does not reference that secret"
                ));
            }
        }
    }
    for (list, kind) in containers {
        for container in spec.list(list) {
            if let Some((place, secret)) =
                secrets_of(container).find(|(_, secret)| !secrets.contains(secret))
            {
                let name = container.text("name");
                return Err(format!(
                    "{kind} {name} with {place} referencing secret.secretName=\"{secret}\" is not allowed because service account {owner} does not reference that secret"
                ));
            }
        }
    }
    for (i, secret) in spec
        .list("imagePullSecrets")
        .iter()
        .map(|s| s.text("name"))
        .enumerate()
        .filter(|_| whole)
    {
        if !pull_secrets.contains(secret) {
            return Err(format!(
                "imagePullSecrets[{i}].name=\"{secret}\" is not allowed because service account {owner} does not reference that imagePullSecret"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;

    use super::*;

    #[test]
    fn token_is_mounted_where_nothing_is_in_its_place() {
        let mounted = |spec: Value| {
            let mut pod = object(json!({ "spec": spec }));
            mount_token(&mut pod, || "kube-api-access-new".into());
            let spec = &pod.body["spec"];
            let volumes = spec
                .list("volumes")
                .iter()
                .map(|v| v.text("name").to_owned())
                .collect::<Vec<_>>()
                .join(" ");
            let mounts = spec
                .list("initContainers")
                .iter()
                .chain(spec.list("containers"));
            let mounts = mounts
                .map(|c| {
                    c.list("volumeMounts")
                        .iter()
                        .map(|m| m.text("name"))
                        .collect::<Vec<_>>()
                        .join("+")
                })
                .collect::<Vec<_>>();
            (volumes, mounts.join(" "))
        };
        let taken = json!([{"name": "mine", "mountPath": MOUNT_PATH}]);
        let cases = [
            (
                json!({"containers": [{}], "initContainers": [{}]}),
                "kube-api-access-new",
                "kube-api-access-new kube-api-access-new",
            ),
            (
                json!({"volumes": [{"name": "mine"}], "containers": [{"volumeMounts": taken}]}),
                "mine",
                "mine",
            ),
            (
                json!({"volumes": [{"name": "kube-api-access-old"}], "containers": [{}]}),
                "kube-api-access-old",
                "kube-api-access-old",
            ),
        ];
        for (spec, volumes, mounts) in cases {
            assert_eq!(
                mounted(spec.clone()),
                (volumes.to_owned(), mounts.to_owned()),
                "{spec}"
            );
        }
    }

    #[test]
    fn account_that_lists_its_secrets_gives_no_others() {
        let account = object(
            json!({"metadata": {"name": "ci"}, "secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "p"}]}),
        );
        let containers = [
            ("initContainers", "init container"),
            ("containers", "container"),
        ];
        let cases = [
            (
                json!({"volumes": [{"secret": {"secretName": "a"}}], "imagePullSecrets": [{"name": "p"}]}),
                "",
            ),
            (
                json!({"volumes": [{"secret": {"secretName": "b"}}]}),
                "volume with secret.secretName=\"b\" is not allowed because service account ci does not reference that secret",
            ),
            (
                json!({"containers": [{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "b"}}}]}]}),
                "container c with envVar E referencing secret.secretName=\"b\" is not allowed because service account ci does not reference that secret",
            ),
            (
                json!({"initContainers": [{"name": "c", "envFrom": [{"secretRef": {"name": "b"}}]}]}),
                "init container c with envFrom referencing secret.secretName=\"b\" is not allowed because service account ci does not reference that secret",
            ),
            (
                json!({"imagePullSecrets": [{"name": "q"}]}),
                "imagePullSecrets[0].name=\"q\" is not allowed because service account ci does not reference that imagePullSecret",
            ),
        ];
        for (spec, why) in cases {
            let result = validate_secrets(
                &object(json!({ "spec": spec })),
                &account,
                &containers,
                true,
            );
            assert_eq!(result.err().unwrap_or_default(), why, "{spec}");
        }
    }
}
