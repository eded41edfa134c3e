//! `kubectl config`: changes of a kubeconfig.
//!
//! Guarantees: what a command does not name stays; the file is replaced whole, and readable by its
//! owner only.

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::CommandLine;
use crate::error::CliError;

/// A command of `kubectl config`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// `set-cluster`, `set-credentials` and `set-context`: sets fields of a named entry.
    Set {
        section: Section,
        name: String,
        fields: Vec<(&'static str, String)>,
    },
    UseContext(String),
    CurrentContext,
    /// `unset contexts.NAME`, or of another section.
    UnsetEntry(Section, String),
    UnsetCurrentContext,
}

/// A list of named entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Clusters,
    Users,
    Contexts,
}

impl Section {
    const ALL: [Self; 3] = [Self::Clusters, Self::Users, Self::Contexts];

    /// The name of the list.
    fn list(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::Users => "users",
            Self::Contexts => "contexts",
        }
    }

    /// The field of an entry that has its contents.
    fn entry(self) -> &'static str {
        match self {
            Self::Clusters => "cluster",
            Self::Users => "user",
            Self::Contexts => "context",
        }
    }

    /// The flags that set fields of the same name.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Clusters => &["server", "certificate-authority"],
            Self::Users => &["client-certificate", "client-key", "token"],
            Self::Contexts => &["cluster", "user", "namespace"],
        }
    }
}

impl Change {
    /// Reads the words after `config`; `None` for commands that are left to a real kubectl.
    pub(super) fn parse(words: &[&str], line: &CommandLine) -> Option<Self> {
        let set = |section: Section, name: &str| {
            let fields = section.fields().iter();
            let fields = fields.filter_map(|field| Some((*field, line.flag(field)?.to_owned())));
            Self::Set {
                section,
                name: name.to_owned(),
                fields: fields.collect(),
            }
        };
        match words {
            ["set-cluster", name] => Some(set(Section::Clusters, name)),
            ["set-credentials", name] => Some(set(Section::Users, name)),
            ["set-context", name] => Some(set(Section::Contexts, name)),
            ["use-context" | "use", name] => Some(Self::UseContext((*name).to_owned())),
            ["current-context"] => Some(Self::CurrentContext),
            ["unset", "current-context"] => Some(Self::UnsetCurrentContext),
            ["unset", path] => {
                let (list, name) = path.split_once('.')?;
                let section = Section::ALL.into_iter().find(|s| s.list() == list)?;
                Some(Self::UnsetEntry(section, name.to_owned()))
            }
            _ => None,
        }
    }
}

/// The kubeconfig without `--kubeconfig`: the first one that KUBECONFIG names, else that of the home
/// directory.
pub(super) fn default_path() -> PathBuf {
    let named = env::var_os("KUBECONFIG");
    let named = named.filter(|names| !names.is_empty()).map(|names| {
        let paths: Vec<PathBuf> = env::split_paths(&names).collect();
        let existing = paths.iter().find(|path| path.exists());
        existing.or(paths.last()).cloned().unwrap_or_default()
    });
    named.unwrap_or_else(|| {
        let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        home.join(".kube/config")
    })
}

/// Runs a command.
///
/// # Errors
/// The file cannot be read or written, or has no such context.
pub(super) fn run(line: &CommandLine, change: &Change) -> Result<(), CliError> {
    let path = line
        .flag("kubeconfig")
        .map_or_else(default_path, PathBuf::from);
    let mut config = read(&path)?;
    let message = apply(&mut config, change)?;
    if *change != Change::CurrentContext {
        let step = format!("cannot write kubeconfig {}", path.display());
        write(&path, &config).map_err(CliError::context(&step))?;
    }
    writeln!(io::stdout(), "{message}").map_err(CliError::new)
}

/// Applies a change, and returns what kubectl prints.
fn apply(config: &mut Map<String, Value>, change: &Change) -> Result<String, CliError> {
    match change {
        Change::Set {
            section,
            name,
            fields,
        } => {
            let (entry, existed) = entry(config, *section, name);
            for (field, value) in fields {
                entry.insert((*field).to_owned(), value.as_str().into());
            }
            Ok(match (section, existed) {
                (Section::Clusters, _) => format!("Cluster {name:?} set."),
                (Section::Users, _) => format!("User {name:?} set."),
                (Section::Contexts, true) => format!("Context {name:?} modified."),
                (Section::Contexts, false) => format!("Context {name:?} created."),
            })
        }
        Change::UseContext(name) => {
            if position(config, Section::Contexts, name).is_none() {
                return Err(CliError::Failed(format!(
                    "error: no context exists with the name: {name:?}"
                )));
            }
            config.insert("current-context".into(), name.as_str().into());
            Ok(format!("Switched to context {name:?}."))
        }
        Change::CurrentContext => {
            let current = config.get("current-context").and_then(Value::as_str);
            match current.filter(|name| !name.is_empty()) {
                Some(name) => Ok(name.to_owned()),
                None => Err(CliError::Failed(
                    "error: current-context is not set".to_owned(),
                )),
            }
        }
        Change::UnsetEntry(section, name) => {
            if let Some(index) = position(config, *section, name) {
                list(config, *section).remove(index);
            }
            Ok(format!("Property \"{}.{name}\" unset.", section.list()))
        }
        Change::UnsetCurrentContext => {
            config.insert("current-context".into(), "".into());
            Ok("Property \"current-context\" unset.".to_owned())
        }
    }
}

/// The entries of a section. Anything else in its place is replaced.
fn list(config: &mut Map<String, Value>, section: Section) -> &mut Vec<Value> {
    let list = config.entry(section.list()).or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    list.as_array_mut().expect("it was made an array")
}

fn position(config: &mut Map<String, Value>, section: Section, name: &str) -> Option<usize> {
    let entries = list(config, section);
    entries.iter().position(|entry| entry["name"] == name)
}

/// The contents of an entry, which is made if it does not exist.
fn entry<'a>(
    config: &'a mut Map<String, Value>,
    section: Section,
    name: &str,
) -> (&'a mut Map<String, Value>, bool) {
    let found = position(config, section, name);
    let entries = list(config, section);
    let index = found.unwrap_or_else(|| {
        entries.push(json!({"name": name}));
        entries.len() - 1
    });
    let contents = &mut entries[index][section.entry()];
    if !contents.is_object() {
        *contents = json!({});
    }
    let contents = contents.as_object_mut().expect("it was made an object");
    (contents, found.is_some())
}

/// The kubeconfig; a new one if there is no file.
fn read(path: &Path) -> Result<Map<String, Value>, CliError> {
    let step = format!("cannot read kubeconfig {}", path.display());
    let text = match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => text,
        Ok(_) => return Ok(empty()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(empty()),
        Err(error) => return Err(CliError::context(&step)(error)),
    };
    serde_saphyr::from_str(&text).map_err(CliError::context(&step))
}

fn empty() -> Map<String, Value> {
    let config = json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [],
                        "users": [], "current-context": "", "preferences": {}});
    config.as_object().cloned().unwrap_or_default()
}

fn write(
    path: &Path,
    config: &Map<String, Value>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let text = serde_saphyr::to_string(config)?;
    if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    let draft = path.with_extension(format!("{}.draft", std::process::id()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&draft)?.write_all(text.as_bytes())?;
    Ok(fs::rename(&draft, path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubectl(path: &Path, line: &str) -> Result<(), CliError> {
        let line = format!("config {line} --kubeconfig {}", path.display());
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let line = CommandLine::parse(&arguments).expect("known flags");
        let words: Vec<&str> = line.words[1..].iter().map(String::as_str).collect();
        run(
            &line,
            &Change::parse(&words, &line).expect("a known command"),
        )
    }

    #[test]
    fn environment_is_added_and_removed_and_the_rest_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new/config");
        for line in [
            "set-cluster kubeapitest --server=https://127.0.0.1:1 --certificate-authority=/ca",
            "set-credentials kubeapitest --client-certificate=/crt --client-key=/key",
            "set-context kubeapitest --cluster=kubeapitest --namespace=default --user=kubeapitest",
            "set-cluster other --server=https://other",
            "use-context kubeapitest",
        ] {
            kubectl(&path, line).expect(line);
        }
        let config = read(&path).expect("a kubeconfig");
        assert_eq!(config["current-context"], "kubeapitest");
        assert_eq!(
            config["clusters"],
            json!([
                {"name": "kubeapitest",
                 "cluster": {"server": "https://127.0.0.1:1", "certificate-authority": "/ca"}},
                {"name": "other", "cluster": {"server": "https://other"}},
            ])
        );
        assert_eq!(config["users"][0]["user"]["client-key"], "/key");
        assert_eq!(config["contexts"][0]["context"]["namespace"], "default");
        let error = kubectl(&path, "use-context nosuch").expect_err("refused");
        let expected = "error: no context exists with the name: \"nosuch\"";
        assert_eq!(error, CliError::Failed(expected.to_owned()));
        for line in [
            "unset contexts.kubeapitest",
            "unset clusters.kubeapitest",
            "unset users.kubeapitest",
            "unset current-context",
        ] {
            kubectl(&path, line).expect(line);
        }
        let config = read(&path).expect("a kubeconfig");
        assert_eq!(config["clusters"].as_array().map(Vec::len), Some(1));
        assert_eq!(config["contexts"], json!([]));
        assert!(kubectl(&path, "current-context").is_err());
        let files = fs::read_dir(path.parent().expect("a directory")).expect("readable");
        assert_eq!(files.count(), 1, "no draft is left");
    }

    #[test]
    fn other_commands_are_left_to_kubectl() {
        let line = CommandLine::parse(&[]).expect("no flags");
        for words in [
            &["view"][..],
            &["set", "a", "b"],
            &["unset", "preferences"],
            &["rename"],
        ] {
            assert_eq!(Change::parse(words, &line), None, "{words:?}");
        }
    }
}
