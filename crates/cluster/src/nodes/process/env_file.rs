//! Environment variables from files of a volume (`fileKeyRef`).
//!
//! In: the text of a file that a container has written, a key. Out: its value. The syntax is a
//! subset of that of a shell: `KEY='value'`, comments, values of several lines. Mirrors `ParseEnv`.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

/// The largest file that is read.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// The limit of symbolic links in a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// What may be before a key and behind a value.
const BLANKS: [char; 2] = [' ', '\t'];

/// Why a file has no value.
#[derive(Debug, Error)]
pub(super) enum EnvFileError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("line {line} of {path}: {problem}")]
    Syntax {
        path: PathBuf,
        line: usize,
        problem: &'static str,
    },
}

/// The value of a key in a file below a volume; `None` if the file does not set it, or sets it to
/// nothing.
pub(super) fn read_value(
    volume: &Path,
    path: &str,
    key: &str,
) -> Result<Option<String>, EnvFileError> {
    let read = secure_join(volume, Path::new(path)).and_then(|file| read(&file));
    let text = read.map_err(|source| EnvFileError::Read {
        path: volume.join(path),
        source,
    })?;
    find(&text, key).map_err(|(line, problem)| EnvFileError::Syntax {
        path: volume.join(path),
        line,
        problem,
    })
}

/// A path below a root that is followed as if the root were `/`. Mirrors `SecureJoin`.
fn secure_join(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut rest: VecDeque<_> = path
        .components()
        .map(|it| it.as_os_str().to_owned())
        .collect();
    let mut joined = root.to_owned();
    let mut depth = 0;
    let mut links = 0;
    while let Some(next) = rest.pop_front() {
        match Path::new(&next).components().next() {
            Some(Component::Normal(name)) => {
                let entry = joined.join(name);
                if !fs::symlink_metadata(&entry)?.is_symlink() {
                    joined = entry;
                    depth += 1;
                    continue;
                }
                links += 1;
                if links > LINKS_MAX {
                    return Err(io::Error::other("too many symbolic links"));
                }
                for part in fs::read_link(&entry)?.components().rev() {
                    rest.push_front(part.as_os_str().to_owned());
                }
            }
            Some(Component::RootDir) => {
                joined = root.to_owned();
                depth = 0;
            }
            Some(Component::ParentDir) if depth > 0 => {
                joined.pop();
                depth -= 1;
            }
            _ => {}
        }
    }
    Ok(joined)
}

fn read(file: &Path) -> io::Result<String> {
    let invalid = |problem: &str| io::Error::new(io::ErrorKind::InvalidInput, problem);
    // To open a named pipe would wait for its writer.
    if !fs::metadata(file)?.is_file() {
        return Err(invalid("it is no regular file"));
    }
    let mut text = String::new();
    // The container may still write to it.
    let size = File::open(file)?
        .take(FILE_MAX_BYTES + 1)
        .read_to_string(&mut text)?;
    if size as u64 > FILE_MAX_BYTES {
        return Err(invalid("it is larger than 1 MiB"));
    }
    Ok(text)
}

/// The value of a key. The error is the number of a line, and what is wrong with it.
fn find(text: &str, key: &str) -> Result<Option<String>, (usize, &'static str)> {
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let error = |problem| (number, problem);
        let (name, assigned) = line.split_once('=').ok_or(error("missing '='"))?;
        if name.trim_end_matches(BLANKS).is_empty() {
            return Err(error("empty variable name"));
        }
        if name.ends_with(BLANKS) {
            return Err(error("whitespace before '=' is not allowed"));
        }
        // As in a shell, what follows the blank is not the value.
        let value = if assigned.starts_with(BLANKS) {
            String::new()
        } else {
            let quoted = assigned.strip_prefix('\'');
            let quoted = quoted.ok_or(error("value must be enclosed in single quotes"))?;
            until_quote(quoted, &mut lines).map_err(error)?
        };
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

/// A value up to its closing quote, which may be in a later line.
fn until_quote<'a>(
    first: &'a str,
    lines: &mut impl Iterator<Item = (&'a str, usize)>,
) -> Result<String, &'static str> {
    let mut value = String::new();
    let mut line = first;
    loop {
        if let Some((end, behind)) = line.split_once('\'') {
            value.push_str(end);
            let behind = behind.trim_start_matches(BLANKS);
            if behind.is_empty() || behind.starts_with('#') {
                return Ok(value);
            }
            return Err("unexpected content after closing quote");
        }
        value.push_str(line);
        value.push('\n');
        (line, _) = lines.next().ok_or("unclosed single quote")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_kubelet() {
        let cases: [(&str, Result<Option<&str>, (usize, &str)>); 18] = [
            ("  A='1'\n\tKEY='2'\nB='3'", Ok(Some("2"))),
            ("# no\n\n   # no\nKEY='a#b' # yes", Ok(Some("a#b"))),
            ("KEY='  a  b  '", Ok(Some("  a  b  "))),
            ("KEY='a=b=$C ${D} \\n \"'", Ok(Some("a=b=$C ${D} \\n \""))),
            (
                "KEY='one\n two\n\n# three' # four\n",
                Ok(Some("one\n two\n\n# three")),
            ),
            ("A='\nKEY=1'\nKEY='2'", Ok(Some("2"))),
            ("KEY='first'\nKEY='second'", Ok(Some("first"))),
            ("KEY='1'\r\nB='2'\r\n", Ok(Some("1"))),
            ("A='1'", Ok(None)),
            ("KEY=''", Ok(None)),
            ("KEY= 'a'", Ok(None)),
            ("A='1'\nKEY", Err((2, "missing '='"))),
            ("='1'", Err((1, "empty variable name"))),
            ("KEY ='1'", Err((1, "whitespace before '=' is not allowed"))),
            (
                "A=1\nKEY='1'",
                Err((1, "value must be enclosed in single quotes")),
            ),
            (
                "KEY=\"1\"",
                Err((1, "value must be enclosed in single quotes")),
            ),
            (
                "KEY='a''b'",
                Err((1, "unexpected content after closing quote")),
            ),
            ("\nKEY='a\nb\n", Err((2, "unclosed single quote"))),
        ];
        for (text, expected) in cases {
            let found = find(text, "KEY");
            let found = found.as_ref().map(Option::as_deref).map_err(|it| *it);
            assert_eq!(found, expected, "{text:?}");
        }
        // What is behind the value is not read.
        assert_eq!(find("KEY='1'\nwrong", "KEY"), Ok(Some("1".to_owned())));
    }

    #[test]
    fn only_regular_files_of_the_volume_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("directory")).unwrap();
        fs::write(dir.path().join("env"), "KEY='outside'").unwrap();
        fs::write(volume.join("env"), "KEY='inside'").unwrap();
        fs::write(volume.join("large"), vec![b'\n'; (1 << 20) + 1]).unwrap();
        for (target, link) in [
            ("env", "link"),
            ("/env", "absolute"),
            ("../../env", "upwards"),
            ("loop", "loop"),
        ] {
            std::os::unix::fs::symlink(target, volume.join(link)).unwrap();
        }
        for (path, expected) in [
            ("env", Ok("inside")),
            ("link", Ok("inside")),
            ("absolute", Ok("inside")),
            ("upwards", Ok("inside")),
            ("directory/../../env", Ok("inside")),
            ("loop", Err("too many symbolic links")),
            ("directory", Err("it is no regular file")),
            ("large", Err("it is larger than 1 MiB")),
            ("missing", Err("No such file or directory")),
        ] {
            match (read_value(&volume, path, "KEY"), expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value.as_deref(), Some(expected), "{path}"),
                (Err(error), Err(expected)) => {
                    let error = error.to_string();
                    assert!(error.contains(expected), "{path}: {error}");
                }
                (found, _) => panic!("{path}: {found:?}"),
            }
        }
    }
}
