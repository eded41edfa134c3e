//! Images: a table from image names to programs.
//!
//! In: entries from a YAML file (`--images FILE`) or from flags (`--image PATTERN=PROGRAM`). Out:
//! program, default arguments and environment of an image.
//! Guarantees: later entries have precedence over earlier ones, and all over the built-in one.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// The patterns of the built-in entries: the program of the node itself.
const BUILT_IN: [&str; 2] = ["bellerophon", "bellerophon/*"];

/// What runs for an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// The image name with `*` for any characters. Tag and digest are ignored where the pattern
    /// has none, and `docker.io/library/` is optional.
    pub image: String,
    /// The program, and arguments that always come first: the image's entrypoint. `command` of a
    /// container replaces it.
    #[serde(deserialize_with = "one_or_many")]
    pub program: Vec<String>,
    /// The default arguments: the image's `CMD`. `args` or `command` of a container replace them.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables that a container may override.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory of containers without one.
    #[serde(default)]
    pub working_dir: Option<String>,
}

/// A string, or a list of strings.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(program) => vec![program],
        OneOrMany::Many(program) => program,
    })
}

/// The file of a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImagesFile {
    images: Vec<Image>,
}

/// Why an image or a table cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// No entry matches the image. The kubelet reports it as `ErrImagePull`.
    #[error(
        "image {image:?} is not in the image table; \
         start the node with --image '{suggestion}=PROGRAM'"
    )]
    Unknown {
        /// The image.
        image: String,
        /// A pattern that matches it.
        suggestion: String,
    },
    /// An entry is not valid.
    #[error("{0}")]
    Invalid(String),
}

/// A table of images.
#[derive(Clone, Debug)]
pub struct ImageTable {
    /// Later entries have precedence.
    entries: Vec<Image>,
}

impl ImageTable {
    /// A table with the built-in entry: `bellerophon/*` is that program.
    pub fn new(own_program: &Path) -> Self {
        let built_in = |pattern: &str| Image {
            image: pattern.to_owned(),
            program: vec![own_program.to_string_lossy().into_owned()],
            ..Image::default()
        };
        Self {
            entries: BUILT_IN.into_iter().map(built_in).collect(),
        }
    }

    /// Adds the entries of a YAML file:
    ///
    /// ```yaml
    /// images:
    /// - image: busybox
    ///   program: /bin/busybox
    /// - image: registry.example.com/shop/*
    ///   program: [python3, server.py]
    ///   args: [--port=8080]
    ///   env: {LOG_LEVEL: debug}
    ///   workingDir: /src/shop
    /// ```
    pub fn add_yaml(&mut self, text: &str) -> Result<(), ImageError> {
        let file: ImagesFile = serde_saphyr::from_str(text)
            .map_err(|error| ImageError::Invalid(format!("invalid image table: {error}")))?;
        for image in file.images {
            self.add(image)?;
        }
        Ok(())
    }

    /// Adds an entry `PATTERN=PROGRAM`.
    pub fn add_flag(&mut self, flag: &str) -> Result<(), ImageError> {
        let (image, program) = flag.split_once('=').ok_or_else(|| {
            ImageError::Invalid(format!("invalid image {flag:?}: must be PATTERN=PROGRAM"))
        })?;
        self.add(Image {
            image: image.to_owned(),
            program: vec![program.to_owned()],
            ..Image::default()
        })
    }

    fn add(&mut self, mut image: Image) -> Result<(), ImageError> {
        let has_program = image.program.first().is_some_and(|name| !name.is_empty());
        if image.image.is_empty() || !has_program {
            let message = format!(
                "invalid image {:?}: it needs a name and a program",
                image.image
            );
            return Err(ImageError::Invalid(message));
        }
        let program = Path::new(&image.program[0]);
        // A container has its own working directory. A name without a slash is found in its PATH.
        if program.is_relative() && program.components().count() > 1 {
            let absolute = std::path::absolute(program)
                .map_err(|error| ImageError::Invalid(error.to_string()))?;
            image.program[0] = absolute.to_string_lossy().into_owned();
        }
        self.entries.push(image);
        Ok(())
    }

    /// The entry of an image.
    pub fn find(&self, image: &str) -> Result<&Image, ImageError> {
        let entry = self.entries.iter().rev();
        entry
            .into_iter()
            .find(|entry| image_matches(&entry.image, image))
            .ok_or_else(|| ImageError::Unknown {
                image: image.to_owned(),
                suggestion: without_tag(image).to_owned(),
            })
    }
}

impl Image {
    /// The program and arguments of a container with that `command` and `args`.
    pub fn argv(&self, command: &[String], args: &[String]) -> Vec<String> {
        let mut argv = if command.is_empty() {
            self.program.clone()
        } else {
            command.to_vec()
        };
        if !args.is_empty() {
            argv.extend_from_slice(args);
        } else if command.is_empty() {
            argv.extend_from_slice(&self.args);
        }
        argv
    }
}

fn image_matches(pattern: &str, image: &str) -> bool {
    let short = image.strip_prefix("docker.io/").unwrap_or(image);
    let short = short.strip_prefix("library/").unwrap_or(short);
    [image, short]
        .into_iter()
        .any(|image| matches(pattern, image) || matches(pattern, without_tag(image)))
}

/// An image without tag and digest. A colon before the last slash is that of a port.
fn without_tag(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    let name_start = image.rfind('/').map_or(0, |slash| slash + 1);
    match image[name_start..].find(':') {
        Some(colon) => &image[..name_start + colon],
        None => image,
    }
}

/// Whether a text matches a pattern in which `*` is any number of any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<_> = pieces.collect();
    let Some(last) = pieces.pop() else {
        return rest.is_empty();
    };
    for piece in pieces {
        match rest.find(piece) {
            Some(start) => rest = &rest[start + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> ImageTable {
        let mut table = ImageTable::new(Path::new("/usr/bin/bellerophon"));
        let yaml = "
images:
- image: busybox
  program: /bin/busybox
- image: registry.example.com:5000/shop/*
  program: [python3, server.py]
  args: [--port=8080]
  env: {LOG_LEVEL: debug}
- image: registry.example.com:5000/shop/api:v2
  program: api-v2
";
        table.add_yaml(yaml).unwrap();
        table.add_flag("*/agnhost=/opt/agnhost").unwrap();
        table
    }

    #[test]
    fn images_are_found_by_pattern() {
        let cases = [
            ("bellerophon:0.1.0", "/usr/bin/bellerophon"),
            ("bellerophon/reboot:dev", "/usr/bin/bellerophon"),
            ("busybox", "/bin/busybox"),
            ("busybox:1.36", "/bin/busybox"),
            ("docker.io/library/busybox@sha256:abc", "/bin/busybox"),
            ("registry.example.com:5000/shop/api:v1", "python3"),
            ("registry.example.com:5000/shop/api:v2", "api-v2"),
            (
                "registry.k8s.io/e2e-test-images/agnhost:2.59",
                "/opt/agnhost",
            ),
        ];
        for (image, program) in cases {
            assert_eq!(table().find(image).unwrap().program[0], program, "{image}");
        }
    }

    #[test]
    fn relative_paths_of_programs_are_those_of_the_node() {
        let mut table = table();
        table.add_flag("web=target/web").unwrap();
        table.add_flag("api=./api").unwrap();
        table.add_flag("sh=sh").unwrap();
        let current = std::env::current_dir().unwrap();
        let program = |image: &str| table.find(image).unwrap().program[0].clone();
        assert_eq!(program("web"), current.join("target/web").to_string_lossy());
        assert_eq!(program("api"), current.join("api").to_string_lossy());
        assert_eq!(program("sh"), "sh");
    }

    #[test]
    fn unknown_image_names_the_flag_to_add() {
        let error = table()
            .find("localhost:5000/web:v1")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("--image 'localhost:5000/web=PROGRAM'"),
            "{error}"
        );
        assert!(error.contains("\"localhost:5000/web:v1\""), "{error}");
    }

    #[test]
    fn command_and_args_replace_those_of_the_image() {
        let table = table();
        let image = table.find("registry.example.com:5000/shop/api").unwrap();
        let list =
            |text: &str| -> Vec<String> { text.split_whitespace().map(Into::into).collect() };
        let cases = [
            ("", "", "python3 server.py --port=8080"),
            ("", "a b", "python3 server.py a b"),
            ("sh -c", "", "sh -c"),
            ("sh -c", "ls", "sh -c ls"),
        ];
        for (command, args, expected) in cases {
            let argv = image.argv(&list(command), &list(args));
            assert_eq!(argv.join(" "), expected, "{command} / {args}");
        }
    }

    #[test]
    fn invalid_entries_are_rejected_with_the_problem() {
        let mut table = table();
        let cases = [
            (
                "images: [{image: x, program: ''}]",
                "needs a name and a program",
            ),
            ("images: [{image: x, programm: y}]", "programm"),
            ("image: x", "invalid image table"),
        ];
        for (yaml, expected) in cases {
            let error = table.add_yaml(yaml).unwrap_err().to_string();
            assert!(error.contains(expected), "{yaml}: {error}");
        }
        let error = table.add_flag("busybox").unwrap_err().to_string();
        assert!(error.contains("must be PATTERN=PROGRAM"), "{error}");
    }

    #[test]
    fn star_matches_any_characters() {
        let cases = [
            ("a*", "a", true),
            ("a*c", "abbc", true),
            ("a*b*c", "a/b/c", true),
            ("a*b*c", "acb", false),
            ("*", "", true),
            ("ab*ba", "aba", false),
            ("a", "ab", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
