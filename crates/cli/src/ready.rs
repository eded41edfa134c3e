//! The message of `bellerophon up` when the cluster is ready.
//!
//! Input: a ready cluster. Output: text or one JSON object on stdout. Fields of the JSON object
//! keep their meaning across releases.

use std::{
    fmt,
    io::{self, Write},
    path::{self, Path},
};

use serde::Serialize;
use tokio::time::Instant;

use crate::flags::OutputFormat;

/// A ready cluster, and how to reach it.
#[derive(Serialize)]
#[serde(tag = "event", rename = "ready")]
pub(crate) struct ReadyMessage {
    /// The URL of the API server, such as `https://127.0.0.1:6443`.
    server: String,
    /// The absolute path of the kubeconfig.
    kubeconfig: String,
    /// The URL of the live page, with its token; `null` for an API server only.
    dashboard: Option<String>,
    /// From the start of the process until the API server responds, caches are synced and nodes
    /// are Ready.
    startup_ms: u128,
}

impl ReadyMessage {
    /// The message of a server at `url` in a process that started at `started`.
    ///
    /// # Errors
    /// The working directory does not exist.
    pub(crate) fn new(
        url: String,
        kubeconfig: &Path,
        dashboard: Option<String>,
        started: Instant,
    ) -> io::Result<Self> {
        // The reader of the message may have another working directory.
        let kubeconfig = path::absolute(kubeconfig)?.display().to_string();
        Ok(Self {
            server: url,
            kubeconfig,
            dashboard,
            startup_ms: started.elapsed().as_millis(),
        })
    }

    /// Writes the message and flushes it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, format: OutputFormat, out: &mut impl Write) -> io::Result<()> {
        match format {
            OutputFormat::Json => writeln!(out, "{}", serde_json::to_string(self)?)?,
            OutputFormat::Text => self.write_text(out)?,
        }
        // A script waits for this line, and stdout is block-buffered if it is a pipe.
        out.flush()
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "ready in {} ms; Ctrl-C stops", self.startup_ms)?;
        writeln!(out, "  server      {}", self.server)?;
        writeln!(out, "  kubeconfig  {}", self.kubeconfig)?;
        if let Some(dashboard) = &self.dashboard {
            writeln!(out, "  live page   {dashboard}")?;
        }
        writeln!(
            out,
            "  kubectl --kubeconfig {} get namespaces",
            shell_quote(&self.kubeconfig)
        )
    }
}

impl fmt::Debug for ReadyMessage {
    /// For logs: without the URL of the page, which has its token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyMessage")
            .field("server", &self.server)
            .field("kubeconfig", &self.kubeconfig)
            .field("startup_ms", &self.startup_ms)
            .finish_non_exhaustive()
    }
}

/// Quotes a word for a POSIX shell, if necessary.
fn shell_quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(format: OutputFormat, kubeconfig: &str) -> String {
        let message = ReadyMessage {
            server: "https://127.0.0.1:1".into(),
            kubeconfig: kubeconfig.into(),
            dashboard: Some("http://127.0.0.1:2/#token=secret".into()),
            startup_ms: 5,
        };
        assert!(!format!("{message:?}").contains("secret"));
        let mut out = Vec::new();
        message
            .write(format, &mut out)
            .expect("a write to memory succeeds");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn json_message_is_one_line() {
        let text = written(OutputFormat::Json, "/a/kubeconfig");
        assert_eq!(text.lines().count(), 1);
        let message: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            message,
            json!({
                "event": "ready", "server": "https://127.0.0.1:1",
                "kubeconfig": "/a/kubeconfig",
                "dashboard": "http://127.0.0.1:2/#token=secret", "startup_ms": 5,
            })
        );
    }

    #[test]
    fn last_line_is_a_shell_command() {
        let last_line = |kubeconfig| {
            let text = written(OutputFormat::Text, kubeconfig);
            text.lines().last().map(|line| line.trim().to_owned())
        };
        assert_eq!(
            last_line("/a/kubeconfig").as_deref(),
            Some("kubectl --kubeconfig /a/kubeconfig get namespaces")
        );
        assert_eq!(
            last_line("/my it's").as_deref(),
            Some(r"kubectl --kubeconfig '/my it'\''s' get namespaces")
        );
    }
}
