//! The recordings on disk: folders of files, each a list of scenarios, one a line.
//! Input: a folder. Output: every scenario with its file and line, in this order.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::scenario::Scenario;

/// A scenario and where it is recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The folder, for example `crud`.
    pub folder: String,
    /// The file in it, for example `create.json`.
    pub file: String,
    /// What makes names unique in one run: the place of the file, and the place of the scenario in it.
    pub(crate) place: (usize, usize),
    /// The requests and recorded responses.
    pub scenario: Scenario,
}

impl Recorded {
    /// Its name among all: `crud/create.json: a name is generated`.
    pub fn title(&self) -> String {
        format!("{}/{}: {}", self.folder, self.file, self.scenario.name)
    }
}

/// Recorded scenarios, in order of place.
#[derive(Clone, Debug, Default)]
pub struct Corpus {
    /// The scenarios. No two have the same title.
    pub scenarios: Vec<Recorded>,
}

impl Corpus {
    /// The recordings of this repository.
    ///
    /// # Errors
    /// A recording that cannot be read.
    pub fn of_repository() -> io::Result<Self> {
        Self::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors"))
    }

    /// The recordings in the folders below `root`.
    ///
    /// # Errors
    /// A recording that cannot be read, or two scenarios of one name in a file.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut scenarios: Vec<Recorded> = Vec::new();
        let files = sorted(root)?
            .into_iter()
            .filter(|folder| folder.is_dir())
            .map(|folder| sorted(&folder))
            .collect::<io::Result<Vec<_>>>()?;
        for (number, path) in files
            .into_iter()
            .flatten()
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .enumerate()
        {
            let invalid = |why: String| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{}: {why}", path.display()),
                )
            };
            let read: Vec<Scenario> =
                serde_json::from_slice(&fs::read(&path)?).map_err(|e| invalid(e.to_string()))?;
            let folder = named(path.parent().unwrap_or(root));
            let file = named(&path);
            let first = scenarios.len();
            for (index, scenario) in read.into_iter().enumerate() {
                if scenarios[first..]
                    .iter()
                    .any(|other| other.scenario.name == scenario.name)
                {
                    return Err(invalid(format!(
                        "two scenarios are named {:?}; rename one",
                        scenario.name
                    )));
                }
                scenarios.push(Recorded {
                    folder: folder.clone(),
                    file: file.clone(),
                    place: (number, index),
                    scenario,
                });
            }
        }
        Ok(Self { scenarios })
    }

    /// Only what `keep` wants.
    #[must_use]
    pub fn filtered(mut self, keep: impl FnMut(&Recorded) -> bool) -> Self {
        self.scenarios.retain(keep);
        self
    }
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn named(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_recording_of_the_repository_is_read() {
        let corpus = Corpus::of_repository().expect("the recordings are sound");
        let mut counts = BTreeMap::new();
        for recorded in &corpus.scenarios {
            *counts.entry(recorded.folder.as_str()).or_insert(0) += 1;
        }
        assert_eq!(
            counts,
            BTreeMap::from([
                ("admission", 251),
                ("clients", 30),
                ("crd", 134),
                ("crud", 141),
                ("kinds", 147),
                ("patch", 138),
                ("server", 124)
            ])
        );
    }

    #[test]
    fn one_name_twice_in_a_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::create_dir(folder.path().join("a")).expect("a folder can be made");
        fs::write(
            folder.path().join("a/x.json"),
            r#"[{"name":"n","steps":[]},{"name":"n","steps":[]}]"#,
        )
        .expect("a file can be written");
        let error = Corpus::read(folder.path()).expect_err("the name is there twice");
        assert!(
            error.to_string().contains("two scenarios are named \"n\""),
            "{error}"
        );
    }
}
