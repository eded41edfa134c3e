//! Parameters of a request.

use bellerophon::ObjectKey;

use crate::filter::Filter;

/// The parameters of a URL.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.into_owned().collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// The filter that the parameters `namespace` and `kind` are; each may be repeated.
    pub(super) fn filter(&self) -> Filter {
        let values = |name: &str| {
            let found = self.0.iter().filter(|(found, _)| found == name);
            let values = found.map(|(_, value)| value.clone());
            values.filter(|value| !value.is_empty()).collect()
        };
        Filter {
            namespaces: values("namespace"),
            kinds: values("kind"),
        }
    }

    /// The object that `namespace` and `name` name.
    pub(super) fn key(&self) -> Option<ObjectKey> {
        let namespace = self.get("namespace").filter(|value| !value.is_empty());
        Some(ObjectKey::new(namespace, self.get("name")?))
    }
}
