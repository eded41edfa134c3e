//! A client program that a test needs, and how its absence is reported.
//!
//! Guarantee: a test whose client is missing is reported as ignored, with the reason, and never as
//! passed.

use std::env;

use libtest_mimic::{Failed, Trial};

/// A test of the harness, which runs or is ignored.
pub(crate) type ClientTest = Trial;

/// A client program.
pub(crate) struct Client {
    /// The program and its version, as printed with each test.
    label: String,
    /// The environment variable that makes a missing client a failure.
    require: Option<&'static str>,
    /// Why tests cannot run with it.
    is_available: Result<(), String>,
}

impl Client {
    pub(crate) fn new(
        label: String,
        require: Option<&'static str>,
        is_available: Result<(), String>,
    ) -> Self {
        Self {
            label,
            require,
            is_available,
        }
    }

    /// A test with this client: ignored if the client is missing, and failed if it is required.
    pub(crate) fn test(self, name: &str, run: impl FnOnce() + Send + 'static) -> ClientTest {
        let Err(reason) = self.is_available else {
            let run = || {
                run();
                Ok(())
            };
            return Trial::test(name, run).with_kind(self.label);
        };
        let is_set = |variable: &str| env::var(variable).is_ok_and(|value| value == "1");
        let is_required = self.require.is_some_and(is_set);
        let line = reason.lines().next().unwrap_or_default().to_owned();
        Trial::test(name, || Err(Failed::from(reason)))
            .with_kind(line)
            .with_ignored_flag(!is_required)
    }
}

/// The path of a function below this crate.
pub(crate) fn name_of<F>() -> &'static str {
    let name = std::any::type_name::<F>();
    name.split_once("::").map_or(name, |(_, path)| path)
}
