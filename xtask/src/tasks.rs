//! The subcommands of `cargo xtask`: a table of name, purpose and function.
//! In: the command line. Out: done, or why not.

use std::{path::Path, process::Command};

use crate::{check, root, tidy, types, upstream, user_crate};

/// Why a task did not end well.
#[derive(Debug)]
pub enum Failure {
    /// The task ran and found something wrong.
    Failed(String),
    /// The command line makes no sense.
    Misused(String),
}

struct Task {
    name: &'static str,
    arguments: &'static str,
    purpose: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

const TASKS: &[Task] = &[
    Task {
        name: "check",
        arguments: "[STEP…]",
        purpose: "all that CI runs, or the named steps of it: fmt, tidy, clippy, test, doc",
        run: run_check,
    },
    Task {
        name: "tidy",
        arguments: "",
        purpose: "the rules a compiler does not check: module heads, layers, links, words",
        run: run_tidy,
    },
    Task {
        name: "conformance",
        arguments: "[OPTION…]",
        purpose: "replay the recorded answers of a real API server; --help lists the options",
        run: run_conformance,
    },
    Task {
        name: "upstream",
        arguments: "[OPTION…]",
        purpose: "run Kubernetes' own conformance tests, where Go is present",
        run: run_upstream,
    },
    Task {
        name: "user-crate",
        arguments: "",
        purpose: "build and test ci/user-crate outside of the repository, as a user would",
        run: run_user_crate,
    },
    Task {
        name: "types",
        arguments: "FACTS GO_FACTS PUBLISHED",
        purpose: "write the API server's table of built-in types anew",
        run: run_types,
    },
];

/// Runs the task that the command line names; without a name, lists them.
///
/// # Errors
/// What the task found wrong, or an unknown task.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    let Some((name, rest)) = arguments.split_first() else {
        eprintln!("{}", usage());
        return Ok(());
    };
    let task = TASKS
        .iter()
        .find(|task| task.name == name)
        .ok_or_else(|| Failure::Misused(format!("there is no task {name:?}")))?;
    (task.run)(rest)
}

/// The tasks, a line each.
pub fn usage() -> String {
    let lines = TASKS.iter().map(|task| {
        format!(
            "  {:<26} {}",
            format!("{} {}", task.name, task.arguments),
            task.purpose
        )
    });
    format!(
        "cargo xtask TASK\n\n{}",
        lines.collect::<Vec<_>>().join("\n")
    )
}

fn run_check(steps: &[String]) -> Result<(), Failure> {
    let steps = check::select(steps).map_err(Failure::Misused)?;
    for step in steps {
        eprintln!("==> {}", step.name());
        step.run(&root()).map_err(Failure::Failed)?;
    }
    Ok(())
}

fn run_tidy(arguments: &[String]) -> Result<(), Failure> {
    if let Some(surplus) = arguments.first() {
        return Err(Failure::Misused(format!(
            "tidy takes no argument, got {surplus:?}"
        )));
    }
    let report = tidy::tidy(&root()).map_err(Failure::Failed)?;
    for advice in &report.advice {
        eprintln!("advice: {advice}");
    }
    report.into_result().map_err(Failure::Failed)
}

/// Replaying needs TLS and the embedded server, so it is a binary of its own and this build stays small.
fn run_conformance(arguments: &[String]) -> Result<(), Failure> {
    let status = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--package",
            "bellerophon-conformance",
            "--",
        ])
        .args(arguments)
        .current_dir(root())
        .status()
        .map_err(|e| Failure::Failed(format!("cannot start cargo: {e}")))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => Err(Failure::Misused(
            "conformance was called wrongly, see above".to_owned(),
        )),
        _ => Err(Failure::Failed(
            "conformance: the answers are not those on record, see above".to_owned(),
        )),
    }
}

fn run_upstream(arguments: &[String]) -> Result<(), Failure> {
    let options = upstream::Options::read(arguments).map_err(Failure::Misused)?;
    upstream::run(&root(), &options).map_err(Failure::Failed)
}

fn run_user_crate(arguments: &[String]) -> Result<(), Failure> {
    match arguments.first() {
        None => user_crate::run(&root()).map_err(Failure::Failed),
        Some(surplus) => Err(Failure::Misused(format!(
            "user-crate takes no argument, got {surplus:?}"
        ))),
    }
}

fn run_types(arguments: &[String]) -> Result<(), Failure> {
    let [facts, go_facts, published] = arguments else {
        return Err(Failure::Misused(
            "types takes three files of facts".to_owned(),
        ));
    };
    types::generate(
        &root(),
        Path::new(facts),
        Path::new(go_facts),
        Path::new(published),
    )
    .map_err(Failure::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_names_every_task() {
        let usage = usage();
        for task in TASKS {
            assert!(
                usage.contains(task.name) && usage.contains(task.purpose),
                "{}",
                task.name
            );
        }
    }

    #[test]
    fn unknown_task_is_misuse() {
        assert!(
            matches!(run(&["fly".to_owned()]), Err(Failure::Misused(why)) if why.contains("fly"))
        );
        assert!(
            matches!(run(&["check".to_owned(), "fly".to_owned()]), Err(Failure::Misused(why)) if why.contains("fly"))
        );
    }
}
