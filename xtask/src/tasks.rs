//! The subcommands of `cargo xtask`: a table of name, purpose and function.

use std::path::Path;

use crate::{
    check, codecs, dist, first_hour, processes::cargo, real, reference, root, tidy, types,
    upstream, user_crate,
};

/// Why a task failed.
#[derive(Debug)]
pub enum TaskError {
    /// The task failed. Exit code 1.
    Failed(String),
    /// The command line is invalid. Exit code 2.
    Usage(String),
}

struct Task {
    name: &'static str,
    arguments: &'static str,
    purpose: &'static str,
    run: fn(&[String]) -> Result<(), TaskError>,
}

const TASKS: &[Task] = &[
    Task {
        name: "check",
        arguments: "[STEP…]",
        purpose: "run all checks, or some of: fmt, tidy, clippy, codecs, test, doc",
        run: run_check,
    },
    Task {
        name: "tidy",
        arguments: "",
        purpose: "check module docs, crate layers, links and vocabulary",
        run: run_tidy,
    },
    Task {
        name: "codecs",
        arguments: "",
        purpose: "no operator compiles the decoder or encoder of a built-in Kubernetes type",
        run: run_codecs,
    },
    Task {
        name: "conformance",
        arguments: "[OPTION…]",
        purpose: "replay recorded responses of kube-apiserver; --help lists the options",
        run: run_conformance,
    },
    Task {
        name: "upstream",
        arguments: "[OPTION…]",
        purpose: "run the conformance tests of Kubernetes; needs Go",
        run: run_upstream,
    },
    Task {
        name: "fuzz",
        arguments: "[OPTION…]",
        purpose: "run the fuzz targets with a new seed; --help lists the options",
        run: run_fuzz,
    },
    Task {
        name: "comparison",
        arguments: "",
        purpose: "measure the Bellerophon operator on two runtimes and write docs/comparison.md",
        run: run_comparison,
    },
    Task {
        name: "user-crate",
        arguments: "",
        purpose: "build and test the project of `bellerophon new` outside of the repository",
        run: run_user_crate,
    },
    Task {
        name: "dist",
        arguments: "[OPTION…]",
        purpose: "write the files of a release: --out DIR, --binary FILE, --target TRIPLE, --url URL",
        run: run_dist,
    },
    Task {
        name: "first-hour",
        arguments: "",
        purpose: "act as a new author from `new` to manifests, and write docs/first-hour.md",
        run: run_first_hour,
    },
    Task {
        name: "real",
        arguments: "[--write-docs] [--record-reviews] [PART…]",
        purpose: "run operators and their tests on a control plane of Kubernetes; needs Go, kubectl",
        run: run_real,
    },
    Task {
        name: "reference",
        arguments: "",
        purpose: "write docs/reference/annotations.md from the sources",
        run: run_reference,
    },
    Task {
        name: "types",
        arguments: "FACTS GO_FACTS PUBLISHED",
        purpose: "generate the API server's table of built-in types",
        run: run_types,
    },
];

/// Runs the task with this name. Without a name, prints all tasks.
///
/// # Errors
/// The task failed, or is unknown.
pub fn run(arguments: &[String]) -> Result<(), TaskError> {
    let Some((name, rest)) = arguments.split_first() else {
        eprintln!("{}", usage());
        return Ok(());
    };
    let task = TASKS
        .iter()
        .find(|task| task.name == name)
        .ok_or_else(|| TaskError::Usage(format!("unknown task {name:?}")))?;
    (task.run)(rest)
}

/// The tasks, one per line.
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

fn run_check(steps: &[String]) -> Result<(), TaskError> {
    let steps = check::select(steps).map_err(TaskError::Usage)?;
    for step in steps {
        eprintln!("==> {}", step.name());
        step.run(&root()).map_err(TaskError::Failed)?;
    }
    Ok(())
}

fn run_tidy(arguments: &[String]) -> Result<(), TaskError> {
    if let Some(argument) = arguments.first() {
        return Err(TaskError::Usage(format!(
            "tidy takes no argument, got {argument:?}"
        )));
    }
    let report = tidy::tidy(&root()).map_err(TaskError::Failed)?;
    for advice in &report.advice {
        eprintln!("advice: {advice}");
    }
    report.into_result().map_err(TaskError::Failed)
}

fn run_codecs(arguments: &[String]) -> Result<(), TaskError> {
    match arguments.first() {
        None => codecs::check(&root()).map_err(TaskError::Failed),
        Some(argument) => Err(TaskError::Usage(format!(
            "codecs takes no argument, got {argument:?}"
        ))),
    }
}

fn run_conformance(arguments: &[String]) -> Result<(), TaskError> {
    run_binary(
        &["--package", "bellerophon-conformance"],
        arguments,
        "conformance: responses differ from the recorded ones, see above",
    )
}

fn run_fuzz(arguments: &[String]) -> Result<(), TaskError> {
    run_binary(
        &[
            "--package",
            "bellerophon-fuzz",
            "--bin",
            "bellerophon-fuzz",
            "--profile",
            "fuzz",
        ],
        arguments,
        "fuzz: findings, see above; the files in fuzz/artifacts repeat them",
    )
}

/// The comparison starts the program `bellerophon` that is built beside it.
fn run_comparison(arguments: &[String]) -> Result<(), TaskError> {
    if !arguments.is_empty() {
        return Err(TaskError::Usage("comparison takes no arguments".to_owned()));
    }
    let built = cargo()
        .args(["build", "--release", "--package", "bellerophon-cli"])
        .current_dir(root())
        .status()
        .map_err(|e| TaskError::Failed(format!("cannot start cargo: {e}")))?;
    if !built.success() {
        return Err(TaskError::Failed("bellerophon was not built".to_owned()));
    }
    run_binary(
        &["--release", "--package", "hero-kube-runtime"],
        &["compare", "--write", "docs/comparison.md"].map(str::to_owned),
        "comparison: an operator did not run, see above",
    )
}

/// Runs a binary of the workspace, which needs the API server: xtask is to build fast.
fn run_binary(binary: &[&str], arguments: &[String], failure: &str) -> Result<(), TaskError> {
    let status = cargo()
        .args(["run", "--quiet"])
        .args(binary)
        .arg("--")
        .args(arguments)
        .current_dir(root())
        .status()
        .map_err(|e| TaskError::Failed(format!("cannot start cargo: {e}")))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => Err(TaskError::Usage("invalid arguments, see above".to_owned())),
        _ => Err(TaskError::Failed(failure.to_owned())),
    }
}

fn run_upstream(arguments: &[String]) -> Result<(), TaskError> {
    let options = upstream::Options::parse(arguments).map_err(TaskError::Usage)?;
    upstream::run(&root(), &options).map_err(TaskError::Failed)
}

fn run_user_crate(arguments: &[String]) -> Result<(), TaskError> {
    match arguments.first() {
        None => user_crate::run(&root()).map_err(TaskError::Failed),
        Some(argument) => Err(TaskError::Usage(format!(
            "user-crate takes no argument, got {argument:?}"
        ))),
    }
}

fn run_dist(arguments: &[String]) -> Result<(), TaskError> {
    let options = dist::Options::parse(arguments).map_err(TaskError::Usage)?;
    dist::run(&root(), &options).map_err(TaskError::Failed)
}

fn run_first_hour(arguments: &[String]) -> Result<(), TaskError> {
    match arguments.first() {
        None => first_hour::run(&root()).map_err(TaskError::Failed),
        Some(argument) => Err(TaskError::Usage(format!(
            "first-hour takes no argument, got {argument:?}"
        ))),
    }
}

fn run_real(arguments: &[String]) -> Result<(), TaskError> {
    let options = real::Options::parse(arguments).map_err(TaskError::Usage)?;
    real::run(&root(), &options).map_err(TaskError::Failed)
}

fn run_reference(arguments: &[String]) -> Result<(), TaskError> {
    match arguments.first() {
        None => reference::write(&root()).map_err(TaskError::Failed),
        Some(argument) => Err(TaskError::Usage(format!(
            "reference takes no argument, got {argument:?}"
        ))),
    }
}

fn run_types(arguments: &[String]) -> Result<(), TaskError> {
    let [facts, go_facts, published] = arguments else {
        return Err(TaskError::Usage(
            "types takes three files: FACTS GO_FACTS PUBLISHED".to_owned(),
        ));
    };
    types::generate(
        &root(),
        Path::new(facts),
        Path::new(go_facts),
        Path::new(published),
    )
    .map_err(TaskError::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_names_every_task() {
        let usage = usage();
        for task in TASKS {
            assert!(usage.contains(task.name), "{}", task.name);
            assert!(usage.contains(task.purpose), "{}", task.name);
        }
    }

    #[test]
    fn unknown_task_is_a_usage_error() {
        for arguments in [&["fly"][..], &["check", "fly"]] {
            let arguments: Vec<String> = arguments.iter().copied().map(str::to_owned).collect();
            let Err(TaskError::Usage(message)) = run(&arguments) else {
                panic!("{arguments:?} is not a usage error")
            };
            assert!(message.contains("fly"), "{message}");
        }
    }
}
