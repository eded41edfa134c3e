//! `bellerophon completions` and `bellerophon man`: what packages install next to the binary.
//!
//! Output: a script for a shell on stdout; one manual page per command in a directory.

use std::{fs, io::Write, path::PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// The directory of the pages, which is created
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the completion script of a shell.
///
/// # Errors
/// stdout cannot be written.
pub(crate) fn completions(
    arguments: &CompletionsArguments,
    mut command: Command,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "bellerophon", &mut script);
    out.write_all(&script)
        .map_err(CliError::context("cannot write to stdout"))
}

/// Writes the manual pages of all commands.
///
/// # Errors
/// The directory cannot be written.
pub(crate) fn man(arguments: &ManArguments, command: Command) -> Result<(), CliError> {
    let directory = &arguments.directory;
    let step = format!("cannot write manual pages to {}", directory.display());
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory));
    written.map_err(CliError::context(&step))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, ValueEnum as _};

    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn every_shell_gets_a_script_with_all_commands() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            let arguments = CompletionsArguments { shell: *shell };
            completions(&arguments, Arguments::command(), &mut script).expect("a script");
            let script = String::from_utf8(script).expect("UTF-8");
            for command in Arguments::command().get_subcommands() {
                assert!(
                    script.contains(command.get_name()),
                    "{shell}: {}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let directory = tempfile::tempdir().expect("a directory");
        let pages = directory.path().join("man1");
        let arguments = ManArguments {
            directory: pages.clone(),
        };
        man(&arguments, Arguments::command()).expect("pages");
        for command in Arguments::command().get_subcommands() {
            let page = pages.join(format!("bellerophon-{}.1", command.get_name()));
            assert!(page.is_file(), "{}", page.display());
        }
    }
}
