//! The names of a project: of its package, its API group, its kind and its resource.

use crate::error::CliError;

/// The longest name of a project: the name of its Lease and labels.
const NAME_MAX: usize = 63;

/// The names that templates use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// The package, the operator and its directory: `team-controller`.
    pub(super) name: String,
    /// `example.com`.
    pub(super) group: String,
    /// `TeamController`.
    pub(super) kind: String,
    /// `teamcontroller`.
    pub(super) singular: String,
    /// `teamcontrollers`.
    pub(super) plural: String,
}

impl Names {
    /// Checks the names of the command line. Without a kind, it is made of the name.
    ///
    /// # Errors
    /// A name that Kubernetes or Cargo refuses.
    pub(super) fn new(name: &str, group: &str, kind: Option<&str>) -> Result<Self, CliError> {
        let is_label = |text: &str| {
            let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            text.starts_with(|c: char| c.is_ascii_lowercase())
                && !text.ends_with('-')
                && text.len() <= NAME_MAX
                && text.chars().all(is_inner)
        };
        if !is_label(name) {
            return Err(usage(
                format!("{name:?} cannot name a project"),
                "use lower-case letters, digits and dashes, and begin with a letter",
            ));
        }
        if !group.contains('.') || !group.split('.').all(is_label) {
            return Err(usage(
                format!("--group {group}: not an API group"),
                "use a DNS name of yours, such as example.com",
            ));
        }
        let kind = kind.map_or_else(|| camel_case(name), str::to_owned);
        let is_kind = kind.starts_with(|c: char| c.is_ascii_uppercase())
            && kind.chars().all(|c| c.is_ascii_alphanumeric())
            && kind.len() <= NAME_MAX;
        if !is_kind {
            return Err(usage(
                format!("--kind {kind}: not a kind"),
                "use letters and digits, and begin with an upper-case letter",
            ));
        }
        let singular = kind.to_ascii_lowercase();
        Ok(Self {
            name: name.to_owned(),
            group: group.to_owned(),
            plural: plural(&singular),
            kind,
            singular,
        })
    }

    /// The path of a webhook, as controller-runtime makes it: `example-com-v1alpha1-teamcontroller`.
    pub(super) fn path(&self) -> String {
        let group = self.group.replace('.', "-");
        format!("{group}-v1alpha1-{}", self.singular)
    }
}

fn usage(what: String, hint: &str) -> CliError {
    CliError::Usage(what).with_hint(hint)
}

/// `team-controller` as `TeamController`.
fn camel_case(name: &str) -> String {
    let capitalized = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        format!("{}{rest}", first.to_ascii_uppercase())
    };
    name.split('-').map(capitalized).collect()
}

/// The plural of an English noun, by its ending.
fn plural(singular: &str) -> String {
    let ends_with = |endings: &[&str]| endings.iter().any(|ending| singular.ends_with(ending));
    let before_last = singular.chars().rev().nth(1).unwrap_or('a');
    let after_consonant = !"aeiou".contains(before_last);
    match singular.strip_suffix('y') {
        Some(stem) if after_consonant => format!("{stem}ies"),
        _ if ends_with(&["s", "x", "z", "ch", "sh"]) => format!("{singular}es"),
        _ if singular.ends_with('o') && after_consonant => format!("{singular}es"),
        _ => format!("{singular}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_is_named_after_the_project() {
        for (name, kind, plural) in [
            ("team-controller", "TeamController", "teamcontrollers"),
            ("hero", "Hero", "heroes"),
            ("policy", "Policy", "policies"),
            ("gateway", "Gateway", "gateways"),
            ("box", "Box", "boxes"),
            ("studio", "Studio", "studios"),
        ] {
            let names = Names::new(name, "example.com", None).expect(name);
            assert_eq!(names.kind, kind);
            assert_eq!(names.plural, plural);
        }
        let names = Names::new("team-controller", "a.example.com", None).expect("valid");
        assert_eq!(names.path(), "a-example-com-v1alpha1-teamcontroller");
        let names = Names::new("a", "example.com", Some("Mouse")).expect("valid");
        assert_eq!(names.plural, "mouses");
    }

    #[test]
    fn names_that_kubernetes_refuses_are_usage_errors() {
        for (name, group, kind) in [
            ("Hero", "example.com", None),
            ("1hero", "example.com", None),
            ("a/b", "example.com", None),
            ("..", "example.com", None),
            ("hero-", "example.com", None),
            ("hero", "example", None),
            ("hero", "Example.com", None),
            ("hero", "example.com", Some("hero")),
            ("hero", "example.com", Some("He-ro")),
        ] {
            let result = Names::new(name, group, kind);
            assert!(
                matches!(result, Err(CliError::Usage(_))),
                "{name} {group} {kind:?}"
            );
        }
    }
}
