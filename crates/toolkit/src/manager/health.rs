//! Health: whether the process is alive and whether it is ready.
//!
//! In: checks. Out: the responses of `/healthz` and `/readyz`, in kube-apiserver's format.
//! Guarantees: a check is called for each request; checks do not block.

use std::fmt;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type CheckFn = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// One condition with a name.
#[derive(Clone)]
struct Check {
    name: String,
    check: CheckFn,
}

#[derive(Default)]
struct Checks {
    healthz: Vec<Check>,
    readyz: Vec<Check>,
}

/// The checks of `/healthz` and `/readyz` of a [`Manager`](super::Manager). Clones share them.
///
/// ```
/// use bellerophon::prelude::*;
///
/// fn setup(mgr: &mut Manager) {
///     mgr.readyz_check("upstream", || Err("connection refused".into()));
///     assert!(!mgr.health().is_ready());
/// }
/// ```
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Checks>>);

impl Health {
    pub(super) fn add_healthz(&self, name: String, check: CheckFn) {
        self.lock().healthz.push(Check { name, check });
    }

    pub(super) fn add_readyz(&self, name: String, check: CheckFn) {
        self.lock().readyz.push(Check { name, check });
    }

    /// Whether every check of `/readyz` passes.
    pub fn is_ready(&self) -> bool {
        self.readyz().is_ok()
    }

    /// The response of `/healthz`: every check on a line, and the sum.
    ///
    /// # Errors
    /// The response if a check fails.
    pub fn healthz(&self) -> Result<String, String> {
        // Cloned, so that checks run without the lock and may add checks or read the health
        // themselves.
        let checks = self.lock().healthz.clone();
        response("healthz", checks)
    }

    /// The response of `/readyz`, likewise.
    ///
    /// # Errors
    /// The response if a check fails.
    pub fn readyz(&self) -> Result<String, String> {
        let checks = self.lock().readyz.clone();
        response("readyz", checks)
    }

    fn lock(&self) -> MutexGuard<'_, Checks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("is_ready", &self.is_ready())
            .finish()
    }
}

fn response(name: &str, checks: Vec<Check>) -> Result<String, String> {
    let mut text = "[+]ping ok\n".to_string();
    let mut passed = true;
    for Check { name, check } in checks {
        // Writing to a string does not fail.
        let _ = match check() {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(reason) => {
                passed = false;
                writeln!(text, "[-]{name} failed: {reason}")
            }
        };
    }
    match passed {
        true => Ok(format!("{text}{name} check passed\n")),
        false => Err(format!("{text}{name} check failed\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failing_check_makes_the_process_unready_but_not_unhealthy() {
        let health = Health::default();
        health.add_readyz("a".into(), Arc::new(|| Ok(())));
        assert_eq!(
            health.readyz().as_deref(),
            Ok("[+]ping ok\n[+]a ok\nreadyz check passed\n")
        );
        health.add_readyz("b".into(), Arc::new(|| Err("no".into())));
        let failed = "[+]ping ok\n[+]a ok\n[-]b failed: no\nreadyz check failed\n";
        assert_eq!(health.readyz(), Err(failed.to_owned()));
        assert!(health.healthz().is_ok());
        health.add_healthz("c".into(), Arc::new(|| Err("stuck".into())));
        assert!(health.healthz().is_err());
    }
}
