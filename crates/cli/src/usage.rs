//! From the arguments of the process to options, help, or a usage error in one line.

use clap::{
    Parser,
    error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion},
};

use crate::error::CliError;

/// Parses the command line of the process. Prints help or a version, and exits, if requested.
///
/// # Errors
/// A usage error.
pub(crate) fn parse_or_exit<P: Parser>() -> Result<P, CliError> {
    P::try_parse().map_err(|error| match error.kind() {
        // clap prints these to stdout with exit code 0; they are results, not errors.
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => {
            let mut command = P::command();
            command.build();
            let name = command.get_bin_name().unwrap_or("bellerophon");
            CliError::Usage(in_one_line(&error)).with_hint(&format!("see `{name} --help`"))
        }
    })
}

/// The message of a clap error without its usage, as one line.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    // An error is one line on stderr; the usage is what --help prints.
    let message = text.split("\n\nUsage:").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn usage_errors_are_one_line() {
        let cases: &[(&[&str], &str)] = &[
            (&["up", "--nodes", "-3"], "unexpected argument '-3' found"),
            (
                &["up", "--nodes", "many"],
                "invalid value 'many' for '--nodes <N>': invalid digit found in string",
            ),
            (
                &["up", "--cluster", "half"],
                "invalid value 'half' for '--cluster <WHAT>' [possible values: full, core, none]",
            ),
            (
                &["up", "--listen", "here"],
                "invalid value 'here' for '--listen <IP:PORT>': \
                 not an IP address and a port, such as 127.0.0.1:6443 or [::1]:0",
            ),
            (
                &["trace", "a b"],
                "invalid value 'a b' for '[OBJECT]': not a name, such as web or deployment/web",
            ),
            (&["down"], "unrecognized subcommand 'down'"),
            (
                &["kubeconfig", "--service-account", "robot"],
                "invalid value 'robot' for '--service-account <NAMESPACE/NAME>': \
                 not a namespace and a name, such as default/robot",
            ),
        ];
        for (line, expected) in cases {
            let error = Arguments::try_parse_from([&["bellerophon"], *line].concat())
                .expect_err("a usage error");
            let message = in_one_line(&error);
            assert!(message.starts_with(expected), "{line:?}: {message}");
            assert!(!message.contains('\n'), "{line:?}: {message}");
        }
    }
}
