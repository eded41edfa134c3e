//! Requests as labels: which series a request belongs to.
//! Guarantees: a label is the name of a served resource or one of a few constants, whatever the
//! client wrote.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use http::{Method, header};
use prometheus_client::encoding::{EncodeLabel as _, EncodeLabelSet, LabelSetEncoder};

use crate::{
    http::{query::Query, request_info::CONNECT_SUBRESOURCES, route::ResourcePath},
    registry::Resource,
};

/// A request to a resource, as far as its metrics are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredRequest<'a> {
    pub(crate) resource: &'a Arc<Resource>,
    /// Empty for the object itself.
    pub(crate) subresource: &'static str,
    pub(crate) path: &'a ResourcePath,
    pub(crate) head: &'a http::request::Parts,
    pub(crate) query: &'a Query,
}

impl MeasuredRequest<'_> {
    pub(super) fn labels(&self) -> Labels {
        let scope = self.scope();
        Labels {
            verb: self.verb(scope),
            dry_run: Some(match self.query.get("dryRun") {
                None => "",
                Some("All") => "All",
                Some(_) => "invalid",
            }),
            resource: self.resource.clone(),
            subresource: self.subresource,
            scope,
            code: None,
        }
    }

    fn scope(&self) -> &'static str {
        match self.path {
            path if !path.name.is_empty() || self.head.method == Method::POST => "resource",
            path if !path.namespace.is_empty() => "namespace",
            _ => "cluster",
        }
    }

    fn verb(&self, scope: &str) -> &'static str {
        let watches = self.path.watch || self.query.flag("watch");
        let applies = || {
            self.head
                .headers
                .get(header::CONTENT_TYPE)
                .is_some_and(|t| t == "application/apply-patch+yaml")
        };
        match self.head.method.as_str() {
            _ if CONNECT_SUBRESOURCES.contains(&self.subresource) => "CONNECT",
            "GET" if watches => "WATCH",
            "GET" | "HEAD" if scope == "resource" => "GET",
            "GET" | "HEAD" => "LIST",
            "POST" => "POST",
            "PUT" => "PUT",
            "PATCH" if applies() => "APPLY",
            "PATCH" => "PATCH",
            "DELETE" => "DELETE",
            _ => "other",
        }
    }
}

/// A request, as the labels of its series.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    pub(super) verb: &'static str,
    /// Empty, `All` or `invalid`; `None` where the metric has no such label.
    pub(super) dry_run: Option<&'static str>,
    pub(super) resource: Arc<Resource>,
    pub(super) subresource: &'static str,
    pub(super) scope: &'static str,
    /// `None` where the metric has no such label.
    pub(super) code: Option<u16>,
}

impl PartialEq for Labels {
    /// The resource counts by its name: it is another one after each change of its definition.
    fn eq(&self, other: &Self) -> bool {
        let is_same_resource = || {
            let this = &*self.resource;
            let other = &*other.resource;
            this.plural == other.plural
                && this.group == other.group
                && this.version == other.version
        };
        self.code == other.code
            && is_same(self.verb, other.verb)
            && is_same(self.subresource, other.subresource)
            && is_same(self.scope, other.scope)
            && match (self.dry_run, other.dry_run) {
                (Some(this), Some(other)) => is_same(this, other),
                (this, other) => this.is_none() && other.is_none(),
            }
            && (Arc::ptr_eq(&self.resource, &other.resource) || is_same_resource())
    }
}

/// Compares constants. Equal ones are mostly the same one.
fn is_same(this: &'static str, other: &'static str) -> bool {
    std::ptr::eq(this, other) || this == other
}

impl Eq for Labels {}

impl Hash for Labels {
    // Part of the identity is enough to spread series, and cheaper.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.resource.plural, self.verb, self.scope, self.code).hash(state);
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Resource {
            group,
            version,
            plural,
            ..
        } = &*self.resource;
        if let Some(code) = self.code {
            ("code", u32::from(code)).encode(encoder.encode_label())?;
        }
        ("component", "apiserver").encode(encoder.encode_label())?;
        if let Some(dry_run) = self.dry_run {
            ("dry_run", dry_run).encode(encoder.encode_label())?;
        }
        let rest = [
            ("group", group.as_str()),
            ("resource", plural),
            ("scope", self.scope),
            ("subresource", self.subresource),
        ];
        for label in rest
            .into_iter()
            .chain([("verb", self.verb), ("version", version)])
        {
            label.encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

/// The labels of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OfResource {
    group: String,
    version: String,
    resource: String,
}

impl OfResource {
    pub(super) fn new(resource: &Resource) -> Self {
        let Resource {
            group,
            version,
            plural,
            ..
        } = resource;
        Self {
            group: group.clone(),
            version: version.clone(),
            resource: plural.clone(),
        }
    }
}

impl EncodeLabelSet for OfResource {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (key, value) in [
            ("group", &self.group),
            ("resource", &self.resource),
            ("version", &self.version),
        ] {
            (key, value).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}
