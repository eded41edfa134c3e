//! Why a command ended early.
//! Out: `bellerophon: what, which, why; what to do` on stderr in one line, and the exit code.

use std::{error::Error, process::ExitCode};

/// The end of a command that did not do what it was asked, in words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The command line or the environment asks for something that does not exist.
    Misused(String),
    /// It was tried and did not work.
    Failed(String),
}

impl Failure {
    /// A failure that its cause explains.
    pub(crate) fn of(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(in_one_line(&*cause.into()))
    }

    /// The failure of a step, from whatever stopped it.
    pub(crate) fn caused_by<E>(step: &str) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        move |cause| Self::Failed(format!("{step}: {}", in_one_line(&*cause.into())))
    }

    /// The same, with what to do about it.
    pub(crate) fn advising(self, advice: &str) -> Self {
        let advised = |why| format!("{why}; {advice}");
        match self {
            Self::Misused(why) => Self::Misused(advised(why)),
            Self::Failed(why) => Self::Failed(advised(why)),
        }
    }

    /// Prints it and says what the process must exit with.
    pub(crate) fn tell(&self) -> ExitCode {
        let (Self::Misused(why) | Self::Failed(why)) = self;
        eprintln!("bellerophon: {why}");
        match self {
            Self::Failed(_) => ExitCode::from(1),
            Self::Misused(_) => ExitCode::from(2),
        }
    }
}

/// The whole chain of causes; one that the text before it already says is not said twice.
fn in_one_line(error: &(dyn Error + 'static)) -> String {
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
    use std::{fmt, io};

    use super::*;

    /// Says its cause itself, or leaves that to others.
    #[derive(Debug)]
    struct Unread(io::Error, &'static str);

    impl fmt::Display for Unread {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.1)
        }
    }

    impl Error for Unread {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn cause_is_told_once() {
        let gone = |text| Unread(io::Error::other("gone"), text);
        let cases = [
            (
                Failure::of(gone("cannot read team-a")),
                "cannot read team-a: gone",
            ),
            (
                Failure::of(gone("cannot read team-a: gone; go")),
                "cannot read team-a: gone; go",
            ),
            (
                Failure::caused_by("cannot start")(gone("no team-a")),
                "cannot start: no team-a: gone",
            ),
            (
                Failure::caused_by("cannot start")(io::Error::other("no\nmemory"))
                    .advising("buy some"),
                "cannot start: no memory; buy some",
            ),
        ];
        for (failure, wanted) in cases {
            assert_eq!(failure, Failure::Failed(wanted.to_owned()));
        }
    }
}
