//! The code blocks of README.md and docs: every kind of block is checked by a test.
//!
//! | block | check |
//! |---|---|
//! | `sh`, `shell`, `console` | command lines of `bellerophon` and `kubectl bellerophon` are parsed by the command line of this binary |
//! | `rust` | the page is compiled as documentation of a crate; `rust,ignore` is for fragments |
//! | `yaml` | is YAML |
//! | `python` | is compiled by Python, where that is installed |
//! | `text`, `mermaid`, `json`, `toml`, `go`, `java` | output, pictures and fragments of other programs: not checked |

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::{
    Parser as _,
    error::{ContextKind, ContextValue, ErrorKind},
};
use serde_json::Value;

use crate::{arguments::Arguments, plugin::PluginArguments};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

struct Block {
    /// Where it is: a file and a line.
    place: String,
    language: String,
    text: String,
}

/// The code blocks of a page. Blocks in lists are indented.
fn blocks(path: &Path) -> Vec<Block> {
    let text = fs::read_to_string(path).expect("a page");
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        match (&mut open, trimmed.strip_prefix("```")) {
            (None, Some(language)) => {
                let block = Block {
                    place: format!("{}:{}", path.display(), index + 1),
                    language: language.trim().to_owned(),
                    text: String::new(),
                };
                open = Some((block, indent));
            }
            (Some(_), Some("")) => blocks.extend(open.take().map(|(block, _)| block)),
            (Some((block, indent)), _) => {
                block.text.push_str(line.get(*indent..).unwrap_or(trimmed));
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block has no end", path.display());
    blocks
}

/// All pages: README.md, CONTRIBUTING.md and docs.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    let mut directories = vec![root().join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

fn all_blocks() -> Vec<Block> {
    pages().iter().flat_map(|page| blocks(page)).collect()
}

/// The commands of a shell script, each as words. Only what the documentation uses of a shell.
fn commands(script: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut quote: Option<char> = None;
    let script = script.replace("\\\n", " ");
    let mut characters = script.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            // A command within double quotes is a command, too.
            (Some('"') | None, '$') if characters.peek() == Some(&'(') => {
                characters.next();
                let inner: String = characters.by_ref().take_while(|c| *c != ')').collect();
                commands.extend(self::commands(&inner));
                word.push('x');
            }
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if word.is_empty() => {
                characters
                    .by_ref()
                    .take_while(|c| *c != '\n')
                    .for_each(drop);
                commands.push(std::mem::take(&mut words));
            }
            (None, '\n' | '|' | '&' | ';' | '(' | ')' | '>' | '<') => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
                commands.push(std::mem::take(&mut words));
            }
            (None, c) if c.is_whitespace() => {
                words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
            }
            (None, c) => word.push(c),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

/// A command line of this binary, or of the plugin, in a command.
fn own_command_line(words: &[String]) -> Option<Vec<String>> {
    let is_assignment = |word: &&String| {
        word.split_once('=')
            .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    let is_before = |word: &&String| *word == "$" || is_assignment(word);
    let skipped = words.iter().take_while(is_before).count();
    let words = &words[skipped..];
    let text: Vec<&str> = words.iter().map(String::as_str).collect();
    match text.as_slice() {
        ["bellerophon", ..] => Some(words.to_vec()),
        ["kubectl", "bellerophon", ..] => Some(words[1..].to_vec()),
        ["cargo", "run", rest @ ..] => {
            let arguments = rest.iter().position(|word| *word == "--")?;
            // Options of another package are not ours.
            let is_ours = rest[..arguments].iter().all(|word| *word == "--release");
            let own = words[2 + arguments + 1..].iter().cloned();
            is_ours.then(|| {
                [String::from("bellerophon")]
                    .into_iter()
                    .chain(own)
                    .collect()
            })
        }
        _ => None,
    }
}

/// Whether the value of an option is a placeholder, such as `HOST:PORT`, that does not parse.
fn is_of_placeholder(error: &clap::Error) -> bool {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return false;
    };
    error.kind() == ErrorKind::ValueValidation
        && value
            .chars()
            .all(|c| c.is_ascii_uppercase() || "_:,/".contains(c))
}

#[test]
fn command_lines_of_the_documentation_are_valid() {
    let mut checked = 0;
    for block in all_blocks() {
        if !matches!(block.language.as_str(), "sh" | "shell" | "console" | "bash") {
            continue;
        }
        for words in commands(&block.text) {
            let Some(mut line) = own_command_line(&words) else {
                continue;
            };
            // The value of a variable is not known; those of the documentation are numbers.
            for word in line.iter_mut().filter(|word| word.starts_with('$')) {
                "1".clone_into(word);
            }
            // The tutorial runs `manifests` of the user's own program.
            if block.place.contains("tutorial.md")
                && line.get(1).is_some_and(|word| word == "manifests")
            {
                continue;
            }
            let is_plugin = words.iter().any(|word| word == "kubectl");
            let error = match is_plugin {
                true => PluginArguments::try_parse_from(&line).err(),
                false => Arguments::try_parse_from(&line).err(),
            };
            let error = error.filter(|error| error.use_stderr() && !is_of_placeholder(error));
            assert!(
                error.is_none(),
                "{}: {line:?}: {}",
                block.place,
                error.expect("an error")
            );
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked} command lines were found");
}

#[test]
fn rust_of_the_documentation_is_compiled() {
    let included: Vec<String> = ["toolkit", "testkit"]
        .iter()
        .map(|name| root().join("crates").join(name).join("src/lib.rs"))
        .map(|path| fs::read_to_string(path).expect("a crate"))
        .collect();
    for page in pages() {
        let has_examples = |block: &Block| {
            let mut words = block.language.split(',');
            words.next() == Some("rust") && !words.any(|word| word == "ignore")
        };
        if !blocks(&page).iter().any(has_examples) {
            continue;
        }
        let name = page.strip_prefix(root()).expect("a page of the repository");
        let include = format!("include_str!(\"../../../{}\")", name.display());
        assert!(
            included.iter().any(|crate_| crate_.contains(&include)),
            "{} has examples in Rust that nothing compiles: add it to the doctests of a crate",
            name.display()
        );
    }
}

#[test]
fn yaml_of_the_documentation_is_yaml() {
    for block in all_blocks().iter().filter(|block| block.language == "yaml") {
        let documents = serde_saphyr::from_multiple::<Value>(&block.text);
        assert!(documents.is_ok(), "{}: {documents:?}", block.place);
    }
}

#[test]
fn python_of_the_documentation_compiles() {
    for block in all_blocks()
        .iter()
        .filter(|block| block.language == "python")
    {
        let output = Command::new("python3")
            .args([
                "-c",
                "import sys; compile(sys.argv[1], 'block', 'exec')",
                &block.text,
            ])
            .output();
        // Without Python nothing is checked; CI has it.
        let Ok(output) = output else { return };
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {error}", block.place);
    }
}

#[test]
fn blocks_have_a_language_that_is_known() {
    const KNOWN: [&str; 14] = [
        "sh", "shell", "console", "bash", "rust", "yaml", "python", "text", "mermaid", "json",
        "toml", "go", "java", "xml",
    ];
    for block in all_blocks() {
        let language = block.language.split(',').next().unwrap_or_default();
        assert!(
            KNOWN.contains(&language),
            "{}: {:?}",
            block.place,
            block.language
        );
    }
}

#[test]
fn shell_is_split_into_commands() {
    let script = "A=1 bellerophon up --image 'a*=b c' # start\nexport X=\"$(bellerophon envtest \
                  --print path)\"\ncat x | kubectl bellerophon why a && \\\n  $ cargo run --release \
                  -- trace b";
    let lines: Vec<String> = commands(script)
        .iter()
        .filter_map(|words| own_command_line(words))
        .map(|line| line.join("·"))
        .collect();
    assert_eq!(
        lines,
        [
            "bellerophon·up·--image·a*=b c",
            "bellerophon·envtest·--print·path",
            "bellerophon·why·a",
            "bellerophon·trace·b",
        ]
    );
}
