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

/// The text of a file: names are filled in, and parts for other options are left out.
pub(super) fn render(text: &str, names: &Names, toolkit: Option<&Path>, finalizer: bool) -> String {
    let mut rendered = select(text, finalizer);
    for (name, path) in CRATES {
        let version = env!("CARGO_PKG_VERSION");
        let dependency = match toolkit {
            Some(toolkit) => {
                let path = toolkit.join(path);
                format!("{name} = {{ path = {:?} }}", path.display().to_string())
            }
            None => format!("{name} = \"{version}\""),
        };
        rendered = rendered.replace(&format!("{{{{toolkit:{name}}}}}"), &dependency);
    }
    for (mark, value) in [
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

/// Leaves out lines between `//? finalizer` or `//? no-finalizer` and `//? end` that are for the
/// other choice.
fn select(text: &str, finalizer: bool) -> String {
    let mut is_selected = true;
    let mut selected = String::with_capacity(text.len());
    for line in text.lines() {
        match line.trim().strip_prefix("//? ") {
            Some("finalizer") => is_selected = finalizer,
            Some("no-finalizer") => is_selected = !finalizer,
            Some(_) => is_selected = true,
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
        for file in [RUST, GO, PYTHON].concat() {
            for finalizer in [true, false] {
                let toolkit = Some(Path::new("/checkout"));
                let text = render(file.text, &names, toolkit, finalizer);
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

    /// The lines that an author replaces: the fields of the spec, and the object that is made of
    /// them.
    #[test]
    fn project_has_at_most_forty_lines_of_the_author() {
        let between = |text: &str, from: &str, to: &str| {
            let begun = text.lines().skip_while(|line| !line.contains(from));
            let body = begun.skip(1).take_while(|line| *line != to);
            let is_code = |line: &&str| {
                let line = line.trim();
                !line.is_empty() && !line.starts_with("//")
            };
            body.filter(is_code).count()
        };
        let file = |path: &str| {
            let file = RUST.iter().find(|file| file.path == path);
            select(file.expect("a file of the project").text, false)
        };
        let fields = between(&file("src/api.rs"), "pub struct {{kind}}Spec", "}");
        let object = between(&file("src/plan.rs"), "fn deployment(", "}");
        assert!(fields + object <= 40, "{fields} + {object} lines");
    }

    #[test]
    fn toolkit_is_a_path_or_a_version() {
        let names = Names::new("a", "example.org", None).expect("valid");
        let text = "{{toolkit:bellerophon}}";
        let path = render(text, &names, Some(Path::new("/checkout")), false);
        assert_eq!(
            path,
            "bellerophon = { path = \"/checkout/crates/toolkit\" }\n"
        );
        let version = render(text, &names, None, false);
        assert_eq!(
            version,
            format!("bellerophon = \"{}\"\n", env!("CARGO_PKG_VERSION"))
        );
    }
}
