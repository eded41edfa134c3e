//! Health: whether the process is alive and whether it is ready.
//!
//! In: checks. Out: a page in the words Kubernetes users know.
//! Holds: a check is asked each time the page is asked for; checks do not block.

use std::fmt;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// One condition with a name.
#[derive(Clone)]
pub struct Check {
    name: Arc<str>,
    ask: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

impl Check {
    /// A condition; the error says in a few words what is missing. It must not block.
    pub fn new(
        name: impl Into<String>,
        ask: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into().into(),
            ask: Arc::new(ask),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Check").field(&self.name).finish()
    }
}

/// The conditions of being ready. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<Vec<Check>>>);

impl Health {
    pub(super) fn require(&self, check: Check) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(check);
    }

    /// Whether every condition holds.
    pub fn is_ready(&self) -> bool {
        self.readiness().is_ok()
    }

    /// Every condition on a line, and the sum: passed or failed.
    ///
    /// # Errors
    /// A condition does not hold; the text says which.
    pub fn readiness(&self) -> Result<String, String> {
        let checks = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let (mut page, mut passed) = ("[+]ping ok\n".to_string(), true);
        for check in checks {
            // Writing to a string does not fail.
            let _ = match (check.ask)() {
                Ok(()) => writeln!(page, "[+]{} ok", check.name),
                Err(why) => {
                    passed = false;
                    writeln!(page, "[-]{} failed: {why}", check.name)
                }
            };
        }
        match passed {
            true => Ok(page + "readyz check passed\n"),
            false => Err(page + "readyz check failed\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn readiness_names_what_is_missing() {
        let (health, up) = (Health::default(), Arc::new(AtomicBool::new(false)));
        let flag = up.clone();
        health.require(Check::new("cache pods", move || {
            if flag.load(Ordering::SeqCst) {
                Ok(())
            } else {
                Err("not synced".into())
            }
        }));
        assert_eq!(
            health.readiness().unwrap_err(),
            "[+]ping ok\n[-]cache pods failed: not synced\nreadyz check failed\n"
        );
        up.store(true, Ordering::SeqCst);
        assert_eq!(
            health.readiness().unwrap(),
            "[+]ping ok\n[+]cache pods ok\nreadyz check passed\n"
        );
    }
}
