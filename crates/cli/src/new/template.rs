//! The templates of projects.
//!
//! Guarantee: the text of a rendered file has no marks of a template.

use std::path::Path;

use super::names::Names;

/// A file of a project.
#[derive(Clone, Copy, Debug)]
pub(super) struct TemplateFile {
    /// Its path in the project.
    pub(super) path: &'static str,
    pub(super) text: &'static str,
}

impl TemplateFile {
    /// Whether it is a setting that authors do not read.
    pub(super) fn is_hidden(&self) -> bool {
        self.path.starts_with('.')
    }
}

macro_rules! file {
    ($path:literal, $template:literal) => {
        TemplateFile {
            path: $path,
            text: include_str!(concat!("templates/", $template, ".tmpl")),
        }
    };
}

/// A project with the toolkit.
pub(super) const RUST: &[TemplateFile] = &[
    file!("Cargo.toml", "rust/Cargo.toml"),
    file!("src/main.rs", "rust/main.rs"),
    file!("src/api.rs", "rust/api.rs"),
    file!("src/plan.rs", "rust/plan.rs"),
    file!("tests/faults.rs", "rust/faults.rs"),
    file!("sample.yaml", "rust/sample.yaml"),
    file!("README.md", "rust/README.md"),
    file!(".gitignore", "rust/gitignore"),
    file!(".cargo/config.toml", "rust/cargo-config.toml"),
];

/// The file that `--webhook` adds to it.
pub(super) const RUST_WEBHOOK: TemplateFile = file!("src/webhook.rs", "rust/webhook.rs");

/// A project with controller-runtime.
pub(super) const GO: &[TemplateFile] = &[
    file!("go.mod", "go/go.mod"),
    file!("main.go", "go/main.go"),
    file!("main_test.go", "go/main_test.go"),
    file!("crd.yaml", "go/crd.yaml"),
    file!("sample.yaml", "go/sample.yaml"),
    file!("README.md", "go/README.md"),
    file!(".gitignore", "go/gitignore"),
];

/// The files that `--webhook` adds to it.
pub(super) const GO_WEBHOOK: &[TemplateFile] = &[
    file!("webhook.go", "go/webhook.go"),
    file!("webhook.yaml", "go/webhook.yaml"),
];

/// A project with kopf.
pub(super) const PYTHON: &[TemplateFile] = &[
    file!("operator.py", "python/operator.py"),
    file!("test_operator.py", "python/test_operator.py"),
    file!("requirements.txt", "python/requirements.txt"),
    file!("crd.yaml", "go/crd.yaml"),
    file!("sample.yaml", "go/sample.yaml"),
    file!("README.md", "python/README.md"),
    file!(".gitignore", "python/gitignore"),
];

/// Where each crate of the toolkit is in a checkout.
const CRATES: [(&str, &str); 3] = [
    ("bellerophon", "crates/toolkit"),
    ("bellerophon-operator", "crates/operators"),
    ("bellerophon-testkit", "crates/testkit"),
];

/// The parts of a template that are optional.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    /// Reconcile under a finalizer.
    pub(super) finalizer: bool,
    /// A mutating and a validating webhook.
    pub(super) webhook: bool,
}

impl Parts {
    /// Whether lines after the mark `//? MARK` are part of the project.
    fn selects(self, mark: &str) -> bool {
        let part = mark.strip_prefix("no-");
        let is_chosen = match part.unwrap_or(mark) {
            "finalizer" => self.finalizer,
            "webhook" => self.webhook,
            // `end`.
            _ => return true,
        };
        is_chosen != part.is_some()
    }
}

/// The text of a file: names are filled in, and parts that were not chosen are left out.
pub(super) fn render(text: &str, names: &Names, toolkit: Option<&Path>, parts: Parts) -> String {
    let mut rendered = select(text, parts);
    for (name, path) in CRATES {
        let source = match toolkit {
            Some(toolkit) => format!("path = {:?}", toolkit.join(path).display().to_string()),
            None => format!("version = {:?}", env!("CARGO_PKG_VERSION")),
        };
        let features = match name {
            "bellerophon" if parts.webhook => ", features = [\"webhooks\"]",
            _ => "",
        };
        let dependency = format!("{name} = {{ {source}{features} }}");
        rendered = rendered.replace(&format!("{{{{toolkit:{name}}}}}"), &dependency);
    }
    for (mark, value) in [
        ("{{path}}", &names.path()),
        ("{{name}}", &names.name),
        ("{{group}}", &names.group),
        ("{{kind}}", &names.kind),
        ("{{singular}}", &names.singular),
        ("{{plural}}", &names.plural),
    ] {
        rendered = rendered.replace(mark, value);
    }
    rendered
}

/// Leaves out lines between `//? PART` or `//? no-PART` and `//? end` that are for the other
/// choice.
fn select(text: &str, parts: Parts) -> String {
    let mut is_selected = true;
    let mut selected = String::with_capacity(text.len());
    for line in text.lines() {
        match line.trim().strip_prefix("//? ") {
            Some(mark) => is_selected = parts.selects(mark),
            None if is_selected => {
                selected.push_str(line);
                selected.push('\n');
            }
            None => {}
        }
    }
    selected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_files_have_no_marks() {
        let names = Names::new("team-controller", "example.org", None).expect("valid");
        for file in [RUST, &[RUST_WEBHOOK], GO, GO_WEBHOOK, PYTHON].concat() {
            for is_chosen in [true, false] {
                let parts = Parts {
                    finalizer: is_chosen,
                    webhook: is_chosen,
                };
                let toolkit = Some(Path::new("/checkout"));
                let text = render(file.text, &names, toolkit, parts);
                assert!(
                    !text.contains("{{") && !text.contains("//?"),
                    "{}: {text}",
                    file.path
                );
                assert!(text.ends_with('\n'), "{}", file.path);
            }
        }
    }

    #[test]
    fn project_has_at_most_seven_files() {
        for files in [RUST, GO, PYTHON] {
            let count = files.iter().filter(|file| !file.is_hidden()).count();
            assert!(count <= 7, "{files:?}");
        }
    }

    fn is_code(line: &&str) -> bool {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//")
    }

    /// The lines that an author replaces: the fields of the spec, and the object that is made of
    /// them.
    #[test]
    fn project_has_at_most_forty_lines_of_the_author() {
        let between = |text: &str, from: &str, to: &str| {
            let begun = text.lines().skip_while(|line| !line.contains(from));
            let body = begun.skip(1).take_while(|line| *line != to);
            body.filter(is_code).count()
        };
        let file = |path: &str| {
            let file = RUST.iter().find(|file| file.path == path);
            select(file.expect("a file of the project").text, Parts::default())
        };
        let fields = between(&file("src/api.rs"), "pub struct {{kind}}Spec", "}");
        let object = between(&file("src/plan.rs"), "fn deployment(", "}");
        assert!(fields + object <= 40, "{fields} + {object} lines");
    }

    /// The whole file, and what it adds to others than tests and documentation.
    #[test]
    fn webhooks_have_at_most_forty_lines_of_the_author() {
        let lines = |file: &TemplateFile, webhook: bool| {
            let parts = Parts {
                webhook,
                ..Parts::default()
            };
            select(file.text, parts).lines().filter(is_code).count()
        };
        let sources = RUST.iter().filter(|file| file.path.starts_with("src/"));
        let added = |file: &TemplateFile| lines(file, true) - lines(file, false);
        let count = lines(&RUST_WEBHOOK, true) + sources.map(added).sum::<usize>();
        assert!(count <= 40, "{count} lines");
    }

    #[test]
    fn toolkit_is_a_path_or_a_version() {
        let names = Names::new("a", "example.org", None).expect("valid");
        let text = "{{toolkit:bellerophon}}";
        let checkout = Some(Path::new("/checkout"));
        let path = render(text, &names, checkout, Parts::default());
        assert_eq!(
            path,
            "bellerophon = { path = \"/checkout/crates/toolkit\" }\n"
        );
        let webhook = Parts {
            webhook: true,
            ..Parts::default()
        };
        let path = render(text, &names, checkout, webhook);
        let features = ", features = [\"webhooks\"] }\n";
        assert!(path.ends_with(features), "{path}");
        let version = render(text, &names, None, Parts::default());
        assert_eq!(
            version,
            format!(
                "bellerophon = {{ version = \"{}\" }}\n",
                env!("CARGO_PKG_VERSION")
            )
        );
    }
}
