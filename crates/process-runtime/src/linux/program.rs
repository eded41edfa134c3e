//! Finds the program of a container, with the errors of OCI runtimes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::error::{StartError, StartErrorKind};

fn error(kind: StartErrorKind, name: &str, problem: &str) -> StartError {
    let message = format!("unable to start container process: exec: {name:?}: {problem}");
    StartError::new(kind, message)
}

/// The path of the program. Mirrors Go's `exec.LookPath` with the `PATH` of the container.
pub(super) fn find(argv: &[String], env: &[(String, String)]) -> Result<PathBuf, StartError> {
    let Some(name) = argv.first().filter(|name| !name.is_empty()) else {
        let message = "unable to start container process: no command specified";
        return Err(StartError::new(StartErrorKind::NotFound, message));
    };
    if name.contains('/') {
        return match executable(Path::new(name)) {
            Ok(()) => Ok(name.into()),
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => {
                let problem = format!("stat {name}: no such file or directory");
                Err(error(StartErrorKind::NotFound, name, &problem))
            }
            Err(problem) if problem.kind() == io::ErrorKind::IsADirectory => {
                Err(error(StartErrorKind::NotExecutable, name, "is a directory"))
            }
            Err(problem) if problem.kind() == io::ErrorKind::PermissionDenied => Err(error(
                StartErrorKind::NotExecutable,
                name,
                "permission denied",
            )),
            Err(problem) => Err(error(
                StartErrorKind::NotExecutable,
                name,
                &problem.to_string(),
            )),
        };
    }
    let path = env
        .iter()
        .rev()
        .find(|(variable, _)| variable == "PATH")
        .map_or("", |(_, path)| path.as_str());
    std::env::split_paths(path)
        .map(|dir| dir.join(name))
        .find(|candidate| executable(candidate).is_ok())
        .ok_or_else(|| {
            let problem = "executable file not found in $PATH";
            error(StartErrorKind::NotFound, name, problem)
        })
}

fn executable(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(rustix::fs::access(path, Access::EXEC_OK)?)
}

/// The error of a program that was found and could not be executed.
pub(super) fn exec_error(argv: &[String], problem: &io::Error) -> StartError {
    let kind = match problem.kind() {
        // The interpreter of a script does not exist.
        io::ErrorKind::NotFound => StartErrorKind::NotFound,
        _ => StartErrorKind::NotExecutable,
    };
    let name = argv.first().map_or("", String::as_str);
    let problem = problem.to_string().to_lowercase();
    // The error number is not reported.
    let problem = problem.split(" (os error").next().unwrap_or(&problem);
    error(kind, name, problem)
}
