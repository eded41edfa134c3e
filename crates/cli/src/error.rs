//! The error of a command, printed as one line.
//!
//! Output: `bellerophon: step: cause; hint` on stderr, and the exit code.

use std::{error::Error, process::ExitCode};

/// Why a command failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CliError {
    /// The command line or an environment variable is invalid. Exit code 2.
    Usage(String),
    /// The command failed. Exit code 1.
    Failed(String),
}

impl CliError {
    /// A failure with the chain of its causes as message.
    pub(crate) fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(error_chain(&*cause.into()))
    }

    /// A failure of a step, for `map_err`.
    pub(crate) fn context<E>(step: &str) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        move |cause| Self::Failed(format!("{step}: {}", error_chain(&*cause.into())))
    }

    /// Appends what the user can do.
    pub(crate) fn with_hint(self, hint: &str) -> Self {
        let append = |message| format!("{message}; {hint}");
        match self {
            Self::Usage(message) => Self::Usage(append(message)),
            Self::Failed(message) => Self::Failed(append(message)),
        }
    }

    /// Prints the error to stderr and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let (Self::Usage(message) | Self::Failed(message)) = self;
        eprintln!("bellerophon: {message}");
        match self {
            Self::Failed(_) => ExitCode::from(1),
            Self::Usage(_) => ExitCode::from(2),
        }
    }
}

/// The messages of an error and its sources. A message that its parent already contains is skipped.
fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        // Many errors print their source themselves; the text would appear twice.
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        next = cause.source();
    }
    // One error is one line, also if a server answers with several.
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    /// An error whose message contains that of its source, or not.
    #[derive(Debug)]
    struct ReadError {
        message: &'static str,
        source: io::Error,
    }

    impl fmt::Display for ReadError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.message)
        }
    }

    impl Error for ReadError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.source)
        }
    }

    #[test]
    fn each_cause_is_printed_once() {
        let read_error = |message| ReadError {
            message,
            source: io::Error::other("not found"),
        };
        let cases = [
            (
                CliError::new(read_error("cannot read team-a")),
                "cannot read team-a: not found",
            ),
            (
                CliError::new(read_error("cannot read team-a: not found; create it")),
                "cannot read team-a: not found; create it",
            ),
            (
                CliError::context("cannot start")(read_error("no team-a")),
                "cannot start: no team-a: not found",
            ),
            (
                CliError::context("cannot start")(io::Error::other("no\nmemory"))
                    .with_hint("free some"),
                "cannot start: no memory; free some",
            ),
        ];
        for (error, expected) in cases {
            assert_eq!(error, CliError::Failed(expected.to_owned()));
        }
    }
}
