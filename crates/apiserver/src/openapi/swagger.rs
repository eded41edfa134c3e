//! `/openapi/v2`: one document about everything that is served, in JSON or in protobuf.
//! Guarantees: the part about built-in kinds is written once per process, that of a custom resource
//! once per change of its definition; a new document is the old parts with the new ones, so it
//! follows the definitions immediately and costs little.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::{Value, json};

use super::{
    custom,
    document::{add_resource, bearer_token, info},
    endpoints::Endpoint,
    entries::{Encoding, Entries},
    form::Form,
    gnostic, parameters,
    paths::Names,
    schemas::Schemas,
    written::Written,
};
use crate::{
    discovery,
    registry::{Catalog, RemoteSwagger, Resource},
};

/// The document in one encoding, of the most recently requested catalog.
#[derive(Debug)]
pub(super) struct Swagger {
    encoding: Encoding,
    last: Mutex<Option<Last>>,
}

#[derive(Debug)]
struct Last {
    catalog: Arc<Catalog>,
    /// The custom resources of the catalog, in its order.
    custom: Vec<(Arc<Resource>, Arc<Fragment>)>,
    /// The paths and definitions of other servers.
    remote: Vec<(Arc<RemoteSwagger>, Arc<Fragment>)>,
    document: Arc<Written>,
}

/// The paths and definitions of some kinds, written but not yet put together.
#[derive(Debug)]
struct Fragment {
    paths: Vec<u8>,
    definitions: Vec<u8>,
    /// The names of the definitions.
    names: BTreeSet<String>,
}

static JSON: LazyLock<Fragment> = LazyLock::new(|| Fragment::built_in(Encoding::Json));
static PROTOBUF: LazyLock<Fragment> = LazyLock::new(|| Fragment::built_in(Encoding::Protobuf));

impl Swagger {
    pub(super) fn new(encoding: Encoding) -> Self {
        Self {
            encoding,
            last: Mutex::default(),
        }
    }

    /// The document of a catalog.
    pub(super) fn of(&self, catalog: &Arc<Catalog>) -> Arc<Written> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last
            .as_ref()
            .filter(|last| Arc::ptr_eq(&last.catalog, catalog))
        {
            return last.document.clone();
        }
        let (known, known_remote) = match last.take() {
            Some(last) => (last.custom, last.remote),
            None => Default::default(),
        };
        let custom: Vec<(Arc<Resource>, Arc<Fragment>)> = catalog
            .resources()
            .filter(|resource| resource.is_custom())
            .map(|resource| {
                let same = known
                    .iter()
                    .find(|(old, _)| Arc::ptr_eq(old, resource))
                    .map(|(_, fragment)| fragment.clone());
                (
                    resource.clone(),
                    same.unwrap_or_else(|| Arc::new(Fragment::custom(resource, self.encoding))),
                )
            })
            .collect();
        let remote: Vec<(Arc<RemoteSwagger>, Arc<Fragment>)> = catalog
            .remotes()
            .filter_map(|remote| remote.swagger.clone())
            .map(|swagger| {
                let same = known_remote
                    .iter()
                    .find(|(old, _)| *old == swagger)
                    .map(|(_, fragment)| fragment.clone());
                let fragment =
                    same.unwrap_or_else(|| Arc::new(Fragment::remote(&swagger, self.encoding)));
                (swagger, fragment)
            })
            .collect();
        let added = custom.iter().map(|(_, fragment)| &**fragment);
        let added = added.chain(remote.iter().map(|(_, fragment)| &**fragment));
        let document = self.joined(&added.collect::<Vec<_>>());
        let document = Arc::new(Written::new(document.into()));
        *last = Some(Last {
            catalog: catalog.clone(),
            custom,
            remote,
            document: document.clone(),
        });
        document
    }

    fn joined(&self, added: &[&Fragment]) -> Vec<u8> {
        let built_in = Fragment::of_encoding(self.encoding);
        let parts = || std::iter::once(built_in).chain(added.iter().copied());
        let paths: Vec<&[u8]> = parts().map(|fragment| fragment.paths.as_slice()).collect();
        let definitions: Vec<&[u8]> = parts()
            .map(|fragment| fragment.definitions.as_slice())
            .collect();
        // A remote server may serve no definitions.
        let join = |stretches: Vec<&[u8]>| {
            let stretches = stretches.into_iter().filter(|it| !it.is_empty());
            self.encoding.joined(&stretches.collect::<Vec<_>>())
        };
        let paths = join(paths);
        let definitions = join(definitions);
        match self.encoding {
            Encoding::Json => {
                let rest = frame().to_string();
                let rest = rest
                    .strip_prefix('{')
                    .expect("an object begins with a brace");
                [
                    b"{\"paths\":{",
                    &*paths,
                    b"},\"definitions\":{",
                    &*definitions,
                    b"},",
                    rest.as_bytes(),
                ]
                .concat()
            }
            Encoding::Protobuf => gnostic::document(&frame(), &paths, &definitions),
        }
    }
}

impl Fragment {
    /// The fragment of every server.
    fn built_in(encoding: Encoding) -> Self {
        let mut schemas = Schemas::new(Form::V2, encoding);
        let mut paths = Entries::paths(encoding);
        Endpoint::fixed()
            .iter()
            .for_each(|endpoint| endpoint.add(&mut schemas, &mut paths));
        for group in discovery::groups(&Catalog::default()) {
            if !group.name.is_empty() {
                Endpoint::of_group(&group.name).add(&mut schemas, &mut paths);
            }
            for version in &group.versions {
                let names = Names::of(&group.name, &version.name);
                Endpoint::of_version(&version.root(&group.name), &names)
                    .add(&mut schemas, &mut paths);
                version
                    .resources
                    .iter()
                    .for_each(|resource| add_resource(&mut schemas, &names, resource, &mut paths));
            }
        }
        Self::new(&paths, &schemas.finish())
    }

    fn new(paths: &Entries, definitions: &Entries) -> Self {
        Self {
            paths: paths.joined(),
            definitions: definitions.joined(),
            names: definitions.names().cloned().collect(),
        }
    }

    /// The fragment of every server, encoded once.
    fn of_encoding(encoding: Encoding) -> &'static Self {
        match encoding {
            Encoding::Json => &JSON,
            Encoding::Protobuf => &PROTOBUF,
        }
    }

    /// The fragment of another server. Definitions of the same name are those of this server: they
    /// are types of Kubernetes.
    fn remote(swagger: &RemoteSwagger, encoding: Encoding) -> Self {
        let mut paths = Entries::paths(encoding);
        for (path, value) in &swagger.paths {
            paths.add(path, value);
        }
        let mut definitions = Entries::schemas(encoding);
        let known = &Self::of_encoding(encoding).names;
        for (name, value) in swagger
            .definitions
            .iter()
            .filter(|(name, _)| !known.contains(*name))
        {
            definitions.add(name, value);
        }
        Self::new(&paths, &definitions)
    }

    /// The fragment of a custom resource. The types of Kubernetes that it refers to exist already.
    fn custom(resource: &Resource, encoding: Encoding) -> Self {
        let mut schemas = Schemas::new(Form::V2, encoding);
        let mut paths = Entries::paths(encoding);
        add_resource(
            &mut schemas,
            &Names::of(&resource.group, &resource.version),
            resource,
            &mut paths,
        );
        Self::new(&paths, &schemas.finish().only(&custom::names(resource)))
    }
}

/// Everything but paths and definitions.
fn frame() -> Value {
    json!({
        "swagger": "2.0",
        "info": info(),
        "parameters": parameters::shared(),
        "securityDefinitions": {"BearerToken": bearer_token()},
        "security": [{"BearerToken": []}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_defines_all_that_it_refers_to() {
        let document = Swagger::new(Encoding::Json).of(&Arc::default());
        let text = std::str::from_utf8(document.bytes()).expect("text");
        let document: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(&document["swagger"], &Value::from("2.0"));
        assert_eq!(&document["info"]["version"], &Value::from("1.36"));
        for place in ["definitions", "parameters"] {
            for reference in text.split(&format!("#/{place}/")).skip(1) {
                let name = reference.split('"').next().expect("there is a first part");
                assert!(document[place][name].is_object(), "{place} {name}");
            }
        }
        let pod = &document["definitions"]["io.k8s.api.core.v1.Pod"];
        assert_eq!(
            pod["x-kubernetes-group-version-kind"],
            json!([{"group": "", "kind": "Pod", "version": "v1"}])
        );
        assert_eq!(
            pod["properties"]["spec"]["$ref"],
            "#/definitions/io.k8s.api.core.v1.PodSpec"
        );
    }

    #[test]
    fn same_catalog_has_the_same_document() {
        let swagger = Swagger::new(Encoding::Protobuf);
        let catalog = Arc::default();
        let document = swagger.of(&catalog);
        assert!(Arc::ptr_eq(&document, &swagger.of(&catalog)));
        assert!(document.bytes().starts_with(b"\x0a\x032.0\x12"));
        assert_eq!(
            document.bytes(),
            swagger.of(&Arc::default()).bytes(),
            "and another one like it, the same bytes"
        );
    }
}
