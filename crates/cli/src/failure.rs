//! Why a command ended early.
//! Out: `bellerophon: what, which, why; what to do` on stderr in one line, and the exit code.

use std::{error::Error, process::ExitCode};

/// The end of a command that did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line or the environment asks for something that does not exist.
    #[error("{0}; see `bellerophon --help`")]
    Misuse(String),
    /// It was tried and did not work.
    #[error("{what}")]
    Failed {
        what: String,
        #[source]
        cause: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl Failure {
    /// The failure of a step, from whatever stopped it.
    pub(crate) fn caused_by<E>(what: &str) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        move |cause| Self::Failed { what: what.to_owned(), cause: Some(cause.into()) }
    }

    /// A failure that its cause explains in full.
    pub(crate) fn because(cause: impl Error) -> Self {
        Self::Failed { what: in_one_line(&cause), cause: None }
    }

    /// Prints it and says what the process must exit with.
    pub(crate) fn tell(&self) -> ExitCode {
        eprintln!("bellerophon: {}", in_one_line(self));
        match self {
            Self::Failed { .. } => ExitCode::from(1),
            Self::Misuse(_) => ExitCode::from(2),
        }
    }
}

/// The whole chain of causes; one that the text before it already says is not said twice.
fn in_one_line(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        next = cause.source();
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read team-a: {source}; try again")]
    struct Explained {
        source: io::Error,
    }

    #[test]
    fn cause_is_told_once() {
        let cases = [
            (Failure::Misuse("no such thing".into()), "no such thing; see `bellerophon --help`"),
            (Failure::caused_by("cannot start")(io::Error::other("no\nmemory")), "cannot start: no memory"),
            (Failure::because(Explained { source: io::Error::other("gone") }), "cannot read team-a: gone; try again"),
            (
                Failure::caused_by("cannot start")(Explained { source: io::Error::other("gone") }),
                "cannot start: cannot read team-a: gone; try again",
            ),
        ];
        for (failure, wanted) in cases {
            assert_eq!(in_one_line(&failure), wanted);
        }
    }
}
