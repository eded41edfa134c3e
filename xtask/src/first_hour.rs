//! `cargo xtask first-hour`: acts as a new author in an empty directory, and writes
//! docs/first-hour.md.
//!
//! Steps: `bellerophon new`, `bellerophon dev`, a change of the plan, `cargo test`, and the manifests
//! on a cluster of `bellerophon up`. Each is timed; files and lines of the project are counted.
//!
//! Guarantee: every wait has a timeout, and no process outlives the task.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    generated_part,
    processes::{Running, binary, now, succeed},
};

/// The page, relative to the root.
const PAGE: &str = "docs/first-hour.md";

/// The command that writes a part of the page.
const COMMAND: &str = "cargo xtask first-hour";

/// The line of src/plan.rs that the author inserts another field before.
const EDITED: &str = "replicas: Some(";

/// Runs the steps, and writes their figures to the page.
///
/// # Errors
/// A step fails, or takes too long.
pub fn run(root: &Path) -> Result<(), String> {
    let directory = env::temp_dir().join(format!("bellerophon-author-{}", std::process::id()));
    let failed = |error| format!("cannot create {}: {error}", directory.display());
    fs::create_dir_all(&directory).map_err(failed)?;
    let result = author(root, &directory);
    if let Err(error) = fs::remove_dir_all(&directory) {
        eprintln!("xtask: cannot remove {}: {error}", directory.display());
    }
    let text = report(&result?);
    generated_part::write(root, PAGE, COMMAND, &text)
}

/// A step of the author.
struct Step {
    command: &'static str,
    result: String,
    took: Duration,
}

fn author(root: &Path, directory: &Path) -> Result<Vec<Step>, String> {
    let binary = binary(root)?;
    let mut steps = vec![first_project(root, directory, &binary)?];
    let project = directory.join("hero");

    let begun = now();
    let mut command = Command::new(&binary);
    command.args(["new", "hero", "--toolkit"]).arg(root);
    succeed(command.current_dir(directory), "bellerophon new")?;
    let (files, lines) = count(&project)?;
    steps.push(Step {
        command: "`bellerophon new hero && cd hero`",
        result: format!("{files} files, {lines} lines"),
        took: begun.elapsed(),
    });

    let begun = now();
    let mut command = Command::new(&binary);
    command.arg("dev").current_dir(&project);
    let mut dev = Running::start(command.env(BUILD_DIR, build_dir(&project)))?;
    dev.wait_for("hero reconciles default/sample")?;
    steps.push(Step {
        command: "`bellerophon dev`",
        result: "cluster, live page, CRD, sample, first reconcile".to_owned(),
        took: begun.elapsed(),
    });

    let plan = project.join("src/plan.rs");
    let source = fs::read_to_string(&plan).map_err(|error| format!("src/plan.rs: {error}"))?;
    let begun = now();
    let edited = source.replacen(
        EDITED,
        "min_ready_seconds: Some(1),\n            replicas: Some(",
        1,
    );
    if edited == source {
        return Err(format!("src/plan.rs has no line {EDITED:?} to change"));
    }
    fs::write(&plan, edited).map_err(|error| format!("src/plan.rs: {error}"))?;
    dev.wait_for("dev: built in")?;
    dev.wait_for("hero wrote Deployment.apps default/sample")?;
    steps.push(Step {
        command: "a line in `src/plan.rs`, saved",
        result: "built, restarted, the Deployment is changed; objects kept".to_owned(),
        took: begun.elapsed(),
    });
    dev.interrupt()?;

    let begun = now();
    succeed(cargo(&project).args(["test", "--quiet"]), "cargo test")?;
    steps.push(Step {
        command: "`cargo test`",
        result: "undisturbed, a crash after each write, every fault".to_owned(),
        took: begun.elapsed(),
    });

    let begun = now();
    let mut cluster = Running::start(
        Command::new(&binary)
            .args(["up", "--operators", "none"])
            .current_dir(directory),
    )?;
    cluster.wait_for("ready in")?;
    let manifests = succeed(
        cargo(&project).args(["run", "--quiet", "--", "manifests"]),
        "manifests",
    )?;
    let file = directory.join("manifests.yaml");
    fs::write(&file, manifests).map_err(|error| format!("manifests.yaml: {error}"))?;
    let kubeconfig = directory.join(".bellerophon/kubeconfig");
    let kubectl = |line: &str| {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(&kubeconfig);
        command.args(line.split(' ')).current_dir(directory);
        succeed(&mut command, line)
    };
    kubectl("apply -f manifests.yaml")?;
    kubectl("rollout status deployment/hero -n hero-system --timeout=120s")?;
    steps.push(Step {
        command: "`cargo run -- manifests \\| kubectl apply -f -`",
        result: "CRD, account, RBAC rules, Deployment with two ready pods".to_owned(),
        took: begun.elapsed(),
    });
    cluster.interrupt()?;
    Ok(steps)
}

/// Another project before: the first one of a machine compiles the toolkit, all others share it.
fn first_project(root: &Path, directory: &Path, binary: &Path) -> Result<Step, String> {
    let mut command = Command::new(binary);
    command.args(["new", "first", "--toolkit"]).arg(root);
    succeed(command.current_dir(directory), "bellerophon new")?;
    let begun = now();
    let mut command = cargo(&directory.join("first"));
    for arguments in [&["build", "--quiet"][..], &["test", "--quiet", "--no-run"]] {
        succeed(command.args(arguments), "cargo build")?;
        command = cargo(&directory.join("first"));
    }
    Ok(Step {
        command: "once per machine",
        result: "the first project compiles the toolkit and the testkit".to_owned(),
        took: begun.elapsed(),
    })
}

fn cargo(project: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(project)
        // Cargo sets it for the build of this program; the project is another one.
        .env_remove("CARGO_MANIFEST_DIR")
        .env(BUILD_DIR, build_dir(project));
    command
}

/// The build directory that projects share. Not that of the user: it is to be empty at first.
const BUILD_DIR: &str = "CARGO_BUILD_BUILD_DIR";

fn build_dir(project: &Path) -> PathBuf {
    project.with_file_name("build")
}

/// The files of the project and their lines, without hidden files, Cargo.lock and build results.
fn count(directory: &Path) -> Result<(usize, usize), String> {
    let failed = |error| format!("cannot read {}: {error}", directory.display());
    let mut files = 0;
    let mut lines = 0;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with('.') || name == "target" || name == "Cargo.lock" {
            continue;
        }
        if path.is_dir() {
            let (more_files, more_lines) = count(&path)?;
            files += more_files;
            lines += more_lines;
        } else {
            files += 1;
            lines += fs::read_to_string(&path).map_err(failed)?.lines().count();
        }
    }
    Ok((files, lines))
}

fn report(steps: &[Step]) -> String {
    let mut text =
        "| step | what the author does | result | seconds |\n|---|---|---|---|\n".to_owned();
    for (number, step) in steps.iter().enumerate() {
        let seconds = step.took.as_secs_f64();
        text.push_str(&format!(
            "| {number} | {} | {} | {seconds:.1} |\n",
            step.command, step.result
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_has_the_line_that_the_author_changes() {
        let plan = crate::root().join("crates/cli/src/new/templates/rust/plan.rs.tmpl");
        let plan = fs::read_to_string(plan).expect("the template");
        assert!(plan.contains(EDITED), "{plan}");
    }

    #[test]
    fn page_has_a_generated_part() {
        let page = fs::read_to_string(crate::root().join(PAGE)).expect("the page");
        assert!(generated_part::replace(&page, COMMAND, "").is_some());
    }
}
