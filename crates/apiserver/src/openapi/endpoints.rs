//! Non-resource paths that are documented: API versions and groups, `/version`, and OpenID
//! discovery.

use serde_json::Value;

use super::{
    entries::Entries,
    operation::{Media, Operation, path_item},
    paths::{Names, OBJECTS, text},
    schemas::Schemas,
};

/// A path that answers GET.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Its path; a separate document has the same name without the slashes around it.
    pub(super) path: String,
    tag: String,
    id: String,
    about: &'static str,
    answer: Answer,
}

/// The response of a non-resource path.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// A kind of the API machinery.
    Kind(&'static str),
    VersionInfo,
    /// A document that OpenAPI has no schema for.
    Text(Media),
}

impl Endpoint {
    fn new(path: &str, tag: &str, id: &str, about: &'static str, answer: Answer) -> Self {
        Self {
            path: path.to_owned(),
            tag: tag.to_owned(),
            id: id.to_owned(),
            about,
            answer,
        }
    }

    /// The pages that every server has.
    pub(super) fn fixed() -> Vec<Self> {
        vec![
            Self::new(
                "/api/",
                "core",
                "getCoreAPIVersions",
                "which versions the core group has",
                Answer::Kind("APIVersions"),
            ),
            Self::new(
                "/apis/",
                "apis",
                "getAPIVersions",
                "which groups there are",
                Answer::Kind("APIGroupList"),
            ),
            Self::new(
                "/version/",
                "version",
                "getCodeVersion",
                "which release this is",
                Answer::VersionInfo,
            ),
            Self::new(
                "/.well-known/openid-configuration/",
                "WellKnown",
                "getServiceAccountIssuerOpenIDConfiguration",
                "who issues the tokens of service accounts, and where the keys are",
                Answer::Text(&["application/json"]),
            ),
            Self::new(
                "/openid/v1/jwks/",
                "openid",
                "getServiceAccountIssuerOpenIDKeyset",
                "the public keys that tokens of service accounts are verified with",
                Answer::Text(&["application/jwk-set+json"]),
            ),
        ]
    }

    /// The versions of a group.
    pub(super) fn of_group(group: &str) -> Self {
        let Names { tag, prefix } = Names::of(group, "");
        let path = format!("/apis/{group}/");
        let id = format!("get{prefix}APIGroup");
        Self {
            path,
            tag,
            id,
            about: "which versions the group has",
            answer: Answer::Kind("APIGroup"),
        }
    }

    /// The resources of a version of a group.
    pub(super) fn of_version(root: &str, names: &Names) -> Self {
        let Names { tag, prefix } = names.clone();
        let path = format!("/{root}/");
        let id = format!("get{prefix}APIResources");
        Self {
            path,
            tag,
            id,
            about: "which resources the version has",
            answer: Answer::Kind("APIResourceList"),
        }
    }

    /// The name of the document that is about this page alone.
    pub(super) fn document(&self) -> &str {
        self.path.trim_matches('/')
    }

    /// Adds the page to the paths of a document.
    pub(super) fn add(&self, schemas: &mut Schemas, paths: &mut Entries) {
        let (answer, consumes, produces): (Value, Media, Media) = match self.answer {
            Answer::Kind(kind) => (schemas.of_meta(kind), OBJECTS, OBJECTS),
            Answer::VersionInfo => (
                schemas.of_version_info(),
                &["application/json"],
                &["application/json"],
            ),
            Answer::Text(types) => (text(), &[], types),
        };
        let operation = Operation {
            consumes,
            produces,
            ..Operation::new(self.id.clone(), self.about.to_owned(), answer)
        };
        paths.add(
            &self.path,
            &path_item(schemas.form, &self.tag, vec![("get", operation)]),
        );
    }
}
