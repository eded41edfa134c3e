//! The facts a user or a script waits for.
//! In: a cluster that is ready. Out: lines on stdout; the `event` of a JSON line never changes its meaning.

use std::{
    io::{self, Write},
    path::{self, Path},
};

use serde::Serialize;
use tokio::time::Instant;

use crate::arguments::Form;

/// A cluster that is ready, and how to reach it.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct Ready {
    /// `https://127.0.0.1:6443`.
    server: String,
    /// An absolute path, so that it can be used from anywhere.
    kubeconfig: String,
    /// Where a browser can watch; there is no such page yet.
    dashboard: Option<String>,
    /// From the first instruction of the process until the API answers, the caches are synced and the nodes are Ready.
    startup_ms: u128,
}

impl Ready {
    /// The facts about a server at `url` in a process begun at `started`.
    ///
    /// # Errors
    /// The working directory is gone.
    pub(crate) fn new(url: String, kubeconfig: &Path, started: Instant) -> io::Result<Self> {
        let kubeconfig = path::absolute(kubeconfig)?.display().to_string();
        Ok(Self {
            server: url,
            kubeconfig,
            dashboard: None,
            startup_ms: started.elapsed().as_millis(),
        })
    }

    /// Writes them and passes them on at once.
    ///
    /// # Errors
    /// Nobody can be told.
    pub(crate) fn tell(&self, form: Form, out: &mut impl Write) -> io::Result<()> {
        match form {
            Form::Json => writeln!(out, "{}", serde_json::to_string(self)?)?,
            Form::Text => self.tell_people(out)?,
        }
        out.flush()
    }

    fn tell_people(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "ready in {} ms; Ctrl-C stops", self.startup_ms)?;
        writeln!(out, "  server      {}", self.server)?;
        writeln!(out, "  kubeconfig  {}", self.kubeconfig)?;
        writeln!(
            out,
            "  kubectl --kubeconfig {} get namespaces",
            quoted(&self.kubeconfig)
        )
    }
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(form: Form, kubeconfig: &str) -> String {
        let ready = Ready {
            server: "https://127.0.0.1:1".into(),
            kubeconfig: kubeconfig.into(),
            dashboard: None,
            startup_ms: 5,
        };
        let mut out = Vec::new();
        ready.tell(form, &mut out).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn program_gets_one_object_a_line() {
        let line = told(Form::Json, "/a/kubeconfig");
        let read: Value = serde_json::from_str(&line).expect("JSON");
        let wanted = json!({
            "event": "ready", "server": "https://127.0.0.1:1", "kubeconfig": "/a/kubeconfig", "dashboard": null, "startup_ms": 5
        });
        assert_eq!((read, line.lines().count()), (wanted, 1));
    }

    #[test]
    fn last_line_can_be_copied_to_a_shell() {
        let last = |kubeconfig| {
            told(Form::Text, kubeconfig)
                .lines()
                .last()
                .map(|line| line.trim().to_owned())
        };
        assert_eq!(
            last("/a/kubeconfig").as_deref(),
            Some("kubectl --kubeconfig /a/kubeconfig get namespaces")
        );
        assert_eq!(
            last("/my it's").as_deref(),
            Some(r"kubectl --kubeconfig '/my it'\''s' get namespaces")
        );
    }
}
