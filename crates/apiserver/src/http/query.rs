//! Query parameters, read once into options.
//! In: the query of a request. Out: one options struct per verb, already validated.
//! Guarantees: unknown parameters are ignored, as Kubernetes does; bad ones are refused before
//! anything else happens; none is left out.

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::{FieldError, Verbatim},
    label_selector::LabelSelector,
};
use bellerophon_storage::{FieldSelector, Selector};

use super::route::percent_decode;

/// How much of a parameter an error shows.
const SHOWN_MAX_CHARS: usize = 128;

/// The parameters of a query, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=1&b=2`.
    ///
    /// # Errors
    /// 400 for a parameter that cannot be decoded. A selector or `dryRun` that is left out would
    /// make a request do more than requested. kube-apiserver keeps bytes that are not UTF-8, which
    /// no parameter takes, and drops a parameter with a malformed escape.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let decode = |s: &str| percent_decode(&s.replace('+', " "));
        let pairs = text.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            decode(key).zip(decode(value)).ok_or_else(|| {
                let shown: String = pair.chars().take(SHOWN_MAX_CHARS).collect();
                ApiError::BadRequest(format!(
                    "invalid query parameter {shown:?}: must be percent-encoded UTF-8"
                ))
            })
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }

    /// The first value of a parameter.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }

    /// Whether a parameter is there at all.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Every value of a parameter.
    pub(crate) fn all(&self, key: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
            .collect()
    }

    fn text(&self, key: &str) -> String {
        self.get(key).unwrap_or_default().to_owned()
    }

    /// A switch: given and not `false` or `0`.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.optional_flag(key).unwrap_or(false)
    }

    fn optional_flag(&self, key: &str) -> Option<bool> {
        self.get(key)
            .map(|v| !v.eq_ignore_ascii_case("false") && v != "0")
    }

    pub(crate) fn integer(&self, key: &str) -> Result<Option<i64>, ApiError> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                ApiError::BadRequest(format!(
                    "strconv.ParseInt: parsing {text:?}: invalid syntax"
                ))
            }),
        }
    }
}

/// The handling of unknown and repeated fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Debug)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) field_validation: FieldValidation,
    /// The name under which changed fields are owned; empty when not given.
    pub(crate) field_manager: String,
    /// Take fields over from other managers.
    pub(crate) force: bool,
}

/// The longest name of a field manager.
const FIELD_MANAGER_MAX: usize = 128;

impl WriteOptions {
    /// Reads the options of a verb; `options_kind` is the name Kubernetes gives them in errors:
    /// `CreateOptions`.
    ///
    /// # Errors
    /// A value that the option does not take.
    pub(crate) fn read(query: &Query, options_kind: &str, apply: bool) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        let force = query.optional_flag("force");
        let field_manager = query.text("fieldManager");
        if options_kind == "PatchOptions" {
            if apply && field_manager.is_empty() {
                errors.push(FieldError::required(
                    "fieldManager",
                    "is required for apply patch",
                ));
            }
            if !apply && force.is_some() {
                errors.push(FieldError::forbidden(
                    "force",
                    "may not be specified for non-apply patch",
                ));
            }
        }
        if field_manager.len() > FIELD_MANAGER_MAX {
            errors.push(FieldError::too_long("fieldManager", FIELD_MANAGER_MAX));
        }
        if let Some((i, c)) = field_manager.char_indices().find(|(_, c)| c.is_control()) {
            let detail = format!("invalid character U+{:04X} (at position {i})", u32::from(c));
            errors.push(FieldError::invalid("fieldManager", &field_manager, &detail));
        }
        let dry_run = dry_run(query, &mut errors);
        let field_validation = match query.get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                errors.push(FieldError::not_supported(
                    "fieldValidation",
                    other,
                    &["", "Ignore", "Strict", "Warn"],
                ));
                FieldValidation::Warn
            }
        };
        ApiError::from_fields(GroupKind::new("meta.k8s.io", options_kind), "", errors)?;
        Ok(Self {
            dry_run,
            field_validation,
            field_manager,
            force: force.unwrap_or(false),
        })
    }
}

/// Reads `dryRun`, which may stand more than once and takes only `All`.
fn dry_run(query: &Query, errors: &mut Vec<FieldError>) -> bool {
    let given = query.all("dryRun");
    check_dry_run(&given, errors)
}

/// Whether a list of dry-run stages requests a dry run.
pub(crate) fn check_dry_run(given: &[&str], errors: &mut Vec<FieldError>) -> bool {
    if given.iter().any(|v| *v != "All") {
        let list = format!(
            "[{}]",
            given
                .iter()
                .map(|v| format!("{v:?}"))
                .collect::<Vec<_>>()
                .join(" ")
        );
        errors.push(FieldError::not_supported(
            "dryRun",
            Verbatim(&list),
            &["All"],
        ));
    }
    !given.is_empty()
}

/// How old a read may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The newest.
    Newest,
    /// Whatever there is.
    Any,
    /// Not older than a revision.
    NotOlderThan(u64),
    /// Exactly as at a revision.
    Exactly(u64),
}

/// Options of list, watch and deletecollection.
#[derive(Clone, Debug)]
pub(crate) struct ListOptions {
    pub(crate) selector: Selector,
    pub(crate) limit: usize,
    pub(crate) next: Option<String>,
    pub(crate) resource_version: String,
    pub(crate) resource_version_match: String,
    pub(crate) timeout_seconds: Option<i64>,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
}

impl ListOptions {
    /// Reads and checks the options.
    ///
    /// # Errors
    /// Values that do not parse (400) and combinations that are not allowed (422).
    pub(crate) fn read(query: &Query) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())
            .map_err(ApiError::BadRequest)?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())
            .map_err(ApiError::BadRequest)?;
        let options = Self {
            selector: Selector { labels, fields },
            limit: query
                .integer("limit")?
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(0),
            next: query
                .get("continue")
                .filter(|c| !c.is_empty())
                .map(str::to_owned),
            resource_version: query.text("resourceVersion"),
            resource_version_match: query.text("resourceVersionMatch"),
            timeout_seconds: query.integer("timeoutSeconds")?,
            watch: query.flag("watch"),
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial_events: query.optional_flag("sendInitialEvents"),
        };
        let errors = if options.watch {
            options.watch_errors()
        } else {
            options.list_errors()
        };
        ApiError::from_fields(GroupKind::new("meta.k8s.io", "ListOptions"), "", errors)?;
        Ok(options)
    }

    fn list_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let field = "resourceVersionMatch";
        if !self.resource_version_match.is_empty() {
            if self.resource_version.is_empty() {
                errors.push(FieldError::forbidden(
                    field,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if self.next.is_some() {
                errors.push(FieldError::forbidden(
                    field,
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if !matches!(
                self.resource_version_match.as_str(),
                "Exact" | "NotOlderThan"
            ) {
                errors.push(FieldError::not_supported(
                    field,
                    &self.resource_version_match,
                    &["Exact", "NotOlderThan", ""],
                ));
            }
            if self.resource_version_match == "Exact" && self.resource_version == "0" {
                errors.push(FieldError::forbidden(
                    field,
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
        }
        if self.send_initial_events.is_some() {
            errors.push(FieldError::forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        errors
    }

    fn watch_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let field = "resourceVersionMatch";
        let version_match = self.resource_version_match.as_str();
        if self.send_initial_events.is_some() && version_match != "NotOlderThan" {
            errors.push(FieldError::forbidden(
                field,
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if !version_match.is_empty() && self.send_initial_events.is_none() {
            errors.push(FieldError::forbidden(
                field,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if !version_match.is_empty()
            && self.send_initial_events.is_some()
            && version_match != "NotOlderThan"
        {
            errors.push(FieldError::not_supported(
                field,
                version_match,
                &["NotOlderThan"],
            ));
        }
        if self.next.is_some() {
            errors.push(FieldError::forbidden(
                field,
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        errors
    }

    /// The meaning of resourceVersion and resourceVersionMatch for a list.
    ///
    /// # Errors
    /// A resourceVersion that is no number.
    pub(crate) fn freshness(&self) -> Result<Freshness, ApiError> {
        let revision = parse_revision(&self.resource_version)
            .map_err(|e| ApiError::BadRequest(format!("invalid resource version: {e}")))?;
        Ok(match (revision, self.resource_version_match.as_str()) {
            (None, _) => Freshness::Newest,
            (Some(0), _) => Freshness::Any,
            (Some(n), "Exact") => Freshness::Exactly(n),
            (Some(n), "") if self.limit > 0 => Freshness::Exactly(n),
            (Some(n), _) => Freshness::NotOlderThan(n),
        })
    }
}

/// Parses a resourceVersion; empty is none.
///
/// # Errors
/// The message of Kubernetes for text that is no number.
pub(crate) fn parse_revision(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let detail = match text.parse::<u64>() {
        Ok(revision) if !text.starts_with('+') => return Ok(Some(revision)),
        Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => {
            format!("strconv.ParseUint: parsing {text:?}: value out of range")
        }
        _ => format!("strconv.ParseUint: parsing {text:?}: invalid syntax"),
    };
    Err(FieldError::invalid("resourceVersion", text, &detail).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_in_order() {
        let query = Query::parse("a=1&b=x%2Cy+z&a=2&&c").expect("a good query");
        assert_eq!(query.all("a"), ["1", "2"]);
        assert_eq!(query.get("b"), Some("x,y z"));
        assert_eq!(query.get("c"), Some(""));
    }

    /// They used to be left out, so that a deletion by a selector deleted everything.
    #[test]
    fn parameters_that_cannot_be_decoded_are_refused() {
        for text in [
            "labelSelector=app%3D%FF",
            "dryRun=All%ff",
            "%ff=1",
            "limit=%",
            "a=1&b=%zz",
        ] {
            let refused = Query::parse(text).expect_err(text);
            assert_eq!(refused.code(), 400, "{text}");
        }
    }
}
