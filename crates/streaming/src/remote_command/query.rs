//! The streams that an exec or attach request specifies.

use percent_encoding::percent_decode_str;

/// The requested streams, and the command of exec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// The client sends stdin.
    pub stdin: bool,
    /// The client receives stdout.
    pub stdout: bool,
    /// The client receives stderr. Never together with a terminal, which has only one output.
    pub stderr: bool,
    /// The command runs in a terminal.
    pub tty: bool,
    /// The command and its arguments; empty for attach.
    pub command: Vec<String>,
}

impl StreamOptions {
    /// Reads the query of a request, in the form of the API server (`stdin=true&stdout=true`) or of
    /// kubelet (`input=1&output=1`).
    ///
    /// Parameters of the API server are true unless their first value is `0` or `false`, as in
    /// its conversion of options; those of kubelet only if it is `1`.
    pub fn from_query(query: &str) -> Self {
        let parameters: Vec<(String, String)> = query.split('&').map(parameter).collect();
        let first = |name: &str| {
            let mut found = parameters.iter().filter(|(n, _)| n == name);
            found.next().map(|(_, value)| value.as_str())
        };
        let requests = |api: &str, kubelet: &str| {
            first(api).is_some_and(is_true) || first(kubelet) == Some("1")
        };
        let tty = first("tty").is_some_and(is_true);
        let commands = parameters.iter().filter(|(name, _)| name == "command");
        Self {
            stdin: requests("stdin", "input"),
            stdout: requests("stdout", "output"),
            stderr: requests("stderr", "error") && !tty,
            tty,
            command: commands.map(|(_, value)| value.clone()).collect(),
        }
    }
}

/// Mirrors `Convert_Slice_string_To_bool`.
fn is_true(value: &str) -> bool {
    value != "0" && !value.eq_ignore_ascii_case("false")
}

fn parameter(pair: &str) -> (String, String) {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    (decode(name), decode(value))
}

fn decode(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, expected: &str) {
        let options = StreamOptions::from_query(query);
        let flags = [
            (options.stdin, "stdin"),
            (options.stdout, "stdout"),
            (options.stderr, "stderr"),
            (options.tty, "tty"),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        let set: Vec<&str> = set.map(|(_, name)| *name).collect();
        let actual = format!("{} {:?}", set.join(","), options.command);
        assert_eq!(actual, expected, "{query}");
    }

    #[test]
    fn options_are_read_in_both_forms() {
        check("", " []");
        check(
            "stdin=true&stdout=true&stderr=true",
            "stdin,stdout,stderr []",
        );
        check("input=1&output=1&error=1", "stdin,stdout,stderr []");
        check("stdout=1&stdin=0&stderr=False", "stdout []");
        check("stdout=&stderr", "stdout,stderr []");
        check("input=true&output=0", " []");
    }

    #[test]
    fn terminal_has_no_stderr() {
        check(
            "stdin=true&stdout=true&stderr=true&tty=true",
            "stdin,stdout,tty []",
        );
        check("input=1&output=1&error=1&tty=1", "stdin,stdout,tty []");
    }

    #[test]
    fn command_keeps_order_and_escapes() {
        check(
            "command=sh&command=-c&command=echo+%24HOME%2B1%26&stdout=1",
            r#"stdout ["sh", "-c", "echo $HOME+1&"]"#,
        );
    }
}
