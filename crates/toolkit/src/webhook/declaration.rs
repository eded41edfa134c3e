//! Declarations: what is registered, and the objects that register it.
//!
//! In: the webhooks that a program declares. Out: a MutatingWebhookConfiguration, a
//! ValidatingWebhookConfiguration, and the conversion of CustomResourceDefinitions.
//! Guarantees: the objects depend on the declarations, the options and the bundle only, so that
//! replicas of the same program apply the same.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bellerophon_kinds::KindScope;
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::options::{Certificates, Endpoint, FailurePolicy, WebhookOptions};
use super::review::Operation;

/// The path of all conversions, as in controller-runtime.
pub(crate) const CONVERT_PATH: &str = "/convert";

/// What an admission webhook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Mutate,
    Validate,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Mutate => "mutate",
            Self::Validate => "validate",
        }
    }
}

/// What restricts the requests that a webhook is called for.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) name: Option<String>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) subresource: Option<String>,
    pub(crate) object_selector: Option<Value>,
    pub(crate) namespace_selector: Vec<Value>,
    pub(crate) match_conditions: Vec<(String, String)>,
    pub(crate) timeout: Duration,
    pub(crate) includes_system_namespaces: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: None,
            operations: vec![Operation::Create, Operation::Update],
            subresource: None,
            object_selector: None,
            namespace_selector: Vec::new(),
            match_conditions: Vec::new(),
            // As of the API.
            timeout: Duration::from_secs(10),
            includes_system_namespaces: false,
        }
    }
}

/// One declared admission webhook.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    pub(crate) verb: Verb,
    pub(crate) resource: ApiResource,
    pub(crate) scope: KindScope,
    pub(crate) failure_policy: FailurePolicy,
    pub(crate) has_side_effects: bool,
    pub(crate) settings: Settings,
}

impl Admission {
    /// The name in the configuration: a domain of at least three segments.
    pub(crate) fn name(&self) -> String {
        let ApiResource { plural, group, .. } = &self.resource;
        let group = match group.as_str() {
            "" => "core",
            group => group,
        };
        let verb = self.verb.as_str();
        match &self.settings.name {
            Some(name) => format!("{name}.{verb}.{plural}.{group}"),
            None => format!("{verb}.{plural}.{group}"),
        }
    }

    /// The path of its calls, as kubebuilder spells it.
    pub(crate) fn path(&self) -> String {
        let ApiResource {
            group,
            version,
            kind,
            ..
        } = &self.resource;
        let group = group.replace('.', "-");
        let verb = self.verb.as_str();
        let path = format!("/{verb}-{group}-{version}-{}", kind.to_lowercase());
        match &self.settings.name {
            Some(name) => format!("{path}-{name}"),
            None => path,
        }
    }

    fn entry(&self, target: &Target<'_>) -> Value {
        let settings = &self.settings;
        let resource = match &settings.subresource {
            Some(subresource) => format!("{}/{subresource}", self.resource.plural),
            None => self.resource.plural.clone(),
        };
        let scope = match self.scope {
            KindScope::Namespaced => "Namespaced",
            KindScope::Cluster => "Cluster",
            KindScope::Dynamic => "*",
        };
        let rule = json!({
            "apiGroups": [self.resource.group],
            "apiVersions": [self.resource.version],
            "operations": settings.operations,
            "resources": [resource],
            "scope": scope,
        });
        let side_effects = match self.has_side_effects {
            true => "NoneOnDryRun",
            false => "None",
        };
        let mut entry = json!({
            "name": self.name(),
            "admissionReviewVersions": ["v1"],
            "clientConfig": target.client_config(&self.path()),
            "failurePolicy": self.failure_policy.to_string(),
            "matchPolicy": "Equivalent",
            "rules": [rule],
            "sideEffects": side_effects,
            "timeoutSeconds": settings.timeout.as_secs().clamp(1, 30),
        });
        let mut namespaces = settings.namespace_selector.clone();
        let excluded = target.system_namespaces();
        if !settings.includes_system_namespaces && self.scope != KindScope::Cluster {
            namespaces.push(json!({
                "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded,
            }));
        }
        if !namespaces.is_empty() {
            entry["namespaceSelector"] = json!({"matchExpressions": namespaces});
        }
        if let Some(selector) = &settings.object_selector {
            entry["objectSelector"] = selector.clone();
        }
        if !settings.match_conditions.is_empty() {
            let conditions = settings.match_conditions.iter();
            entry["matchConditions"] = conditions
                .map(|(name, expression)| json!({"name": name, "expression": expression}))
                .collect();
        }
        entry
    }
}

/// How the API server reaches the webhooks.
pub(crate) struct Target<'a> {
    pub(crate) options: &'a WebhookOptions,
    pub(crate) endpoint: &'a Endpoint,
    /// The certificates that the API server accepts, in PEM; `None` if another component sets them.
    pub(crate) bundle: Option<&'a str>,
}

impl Target<'_> {
    fn client_config(&self, path: &str) -> Value {
        let mut config = match self.endpoint {
            Endpoint::Url(url) => json!({"url": format!("{}{path}", url.trim_end_matches('/'))}),
            Endpoint::Service {
                namespace,
                name,
                port,
            } => {
                let service =
                    json!({"namespace": namespace, "name": name, "port": port, "path": path});
                json!({"service": service})
            }
        };
        if let Some(bundle) = self.bundle {
            config["caBundle"] = BASE64_STANDARD.encode(bundle).into();
        }
        config
    }

    /// The namespaces whose objects webhooks are not called for: the cluster's and their own, so
    /// that their own pods start without them.
    fn system_namespaces(&self) -> Vec<&str> {
        let mut namespaces = vec!["kube-system"];
        if let Endpoint::Service { namespace, .. } = self.endpoint
            && !namespaces.contains(&namespace.as_str())
        {
            namespaces.push(namespace);
        }
        namespaces
    }

    fn metadata(&self, name: &str) -> Value {
        match &self.options.certificates {
            Certificates::CertManager { certificate, .. } => {
                let annotation = json!({"cert-manager.io/inject-ca-from": certificate});
                json!({"name": name, "annotations": annotation})
            }
            _ => json!({"name": name}),
        }
    }
}

/// All declarations of a Manager.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declarations {
    pub(crate) admission: Vec<Admission>,
    /// The names of CustomResourceDefinitions that are converted.
    pub(crate) converted: Vec<String>,
}

/// An object that registers webhooks, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Registered {
    pub(crate) path: String,
    pub(crate) object: Value,
}

impl Declarations {
    pub(crate) fn is_empty(&self) -> bool {
        self.admission.is_empty() && self.converted.is_empty()
    }

    /// The objects that register the webhooks.
    pub(crate) fn objects(&self, target: &Target<'_>) -> Vec<Registered> {
        let mut objects = Vec::new();
        for (verb, kind, plural) in [
            (
                Verb::Mutate,
                "MutatingWebhookConfiguration",
                "mutatingwebhookconfigurations",
            ),
            (
                Verb::Validate,
                "ValidatingWebhookConfiguration",
                "validatingwebhookconfigurations",
            ),
        ] {
            let webhooks = self.admission.iter().filter(|webhook| webhook.verb == verb);
            let entries: Vec<_> = webhooks.map(|webhook| webhook.entry(target)).collect();
            if entries.is_empty() {
                continue;
            }
            let name = target.options.name();
            objects.push(Registered {
                path: format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}"),
                object: json!({
                    "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                    "metadata": target.metadata(name),
                    "webhooks": entries,
                }),
            });
        }
        for name in &self.converted {
            let webhook = json!({
                "clientConfig": target.client_config(CONVERT_PATH),
                "conversionReviewVersions": ["v1"],
            });
            objects.push(Registered {
                path: format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"),
                object: json!({
                    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                    "metadata": target.metadata(name),
                    "spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}},
                }),
            });
        }
        objects
    }
}

/// The `caBundle`s of an object that registers webhooks, in PEM; those that are not set are empty.
pub(crate) fn bundles(object: &Value) -> Vec<String> {
    let webhooks = object["webhooks"].as_array();
    let conversion = object.pointer("/spec/conversion/webhook");
    let all = webhooks.into_iter().flatten().chain(conversion);
    all.map(|webhook| {
        let bundle = webhook["clientConfig"]["caBundle"].as_str();
        let decoded = bundle.and_then(|bundle| BASE64_STANDARD.decode(bundle).ok());
        String::from_utf8(decoded.unwrap_or_default()).unwrap_or_default()
    })
    .collect()
}
